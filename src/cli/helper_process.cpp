#include "cli/helper_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace flatout::cli {
namespace {

constexpr int kPatienceMs = 4000;  // for it to end

}  // namespace

std::unique_ptr<HelperProcess> HelperProcess::start(std::vector<std::string> words, int input) {
  words.insert(words.begin(), "flatout");
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(1);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::dup2(input >= 0 ? input : ::open("/dev/null", O_RDONLY), STDIN_FILENO);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);  // the job's standard output is its own
    ::execv("/proc/self/exe", argv.data());
    ::_exit(1);
  }
  if (input >= 0) ::close(input);
  if (pid < 0) return nullptr;
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  return std::unique_ptr<HelperProcess>(new HelperProcess(pid, pidfd));
}

HelperProcess::~HelperProcess() {
  // By its descriptor: the recorder may have reaped it, and its number may be another's by now.
  if (pidfd_ < 0) return;  // an old kernel: it ends with this process
  if (::syscall(SYS_pidfd_send_signal, pidfd_, SIGTERM, nullptr, 0) == 0) {
    pollfd ended{pidfd_, POLLIN, 0};
    if (::poll(&ended, 1, kPatienceMs) == 0) {
      ::syscall(SYS_pidfd_send_signal, pidfd_, SIGKILL, nullptr, 0);
    }
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(pidfd_);
}

}  // namespace flatout::cli
