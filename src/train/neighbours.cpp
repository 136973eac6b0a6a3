// Busy processes outside of the job, for cpu.noisy_neighbour: `flatout train --neighbours N`. What
// a job starts itself belongs to the job, so these are started first and by somebody else.
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "train/inject.h"

namespace flatout::train {
namespace {

volatile sig_atomic_t g_stop = 0;

// An abstract socket's name says that they run; nothing is left behind.
socklen_t socket_name(sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const std::string name = fmt::format("flatout-neighbours-{}", getuid());
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

__attribute__((noinline)) void keep_a_core_busy(TimePoint until) {
  volatile uint64_t n = 0;
  while (g_stop == 0 && MonotonicClock::now() < until) {
    for (int i = 0; i < 1000000; ++i) n = n + 1;
  }
}

}  // namespace

bool neighbours_are_running() {
  sockaddr_un address;
  const socklen_t size = socket_name(address);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool found = connect(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0;
  close(fd);
  return found;
}

int run_neighbours(int count, double seconds) {
  sockaddr_un address;
  const socklen_t size = socket_name(address);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(fd, 64) != 0) {
    log_error("neighbours run already");
    return 1;
  }
  struct sigaction stop {};
  stop.sa_handler = [](int) { g_stop = 1; };
  sigaction(SIGINT, &stop, nullptr);
  sigaction(SIGTERM, &stop, nullptr);
  const TimePoint until = MonotonicClock::now() + nanos(seconds * 1e9);
  const pid_t parent = getpid();
  std::vector<pid_t> children;
  for (int i = 1; i < count; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      prctl(PR_SET_NAME, "neighbour");
      setsid();  // the kernel shares cores among sessions: these are as many users
      if (getppid() == parent) keep_a_core_busy(until);
      _exit(0);
    }
    if (pid > 0) children.push_back(pid);
  }
  prctl(PR_SET_NAME, "neighbour");
  keep_a_core_busy(until);
  for (const pid_t pid : children) {
    kill(pid, SIGTERM);
    waitpid(pid, nullptr, 0);
  }
  close(fd);
  return 0;
}

}  // namespace flatout::train
