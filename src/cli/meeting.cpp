#include "cli/meeting.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "base/log.h"
#include "serve/site.h"

namespace flatout::cli {
namespace {

constexpr const char* kToken = "FLATOUT_MEET_TOKEN";

// The process that listens: until its parent closes the pipe, by its end or by intent.
[[noreturn]] void listen_for_parent(const MeetingSettings& settings, int pipe) {
  // Not in the job's process group: Ctrl-C is for the job.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  std::string parent;
  std::array<char, 4096> buffer;
  ssize_t got = 0;
  while ((got = ::read(pipe, buffer.data(), buffer.size())) > 0) {
    parent.append(buffer.data(), static_cast<size_t>(got));
    if (parent.back() != '\0') continue;
    parent.pop_back();
    auto meeting = recorder::Meeting::open(settings.place, settings.token, parent);
    if (!meeting.ok()) {
      log_warning(meeting.error().message + "; " + meeting.error().hint);
      ::_exit(1);
    }
    while (::read(pipe, buffer.data(), buffer.size()) > 0) {
    }
    meeting->reset();
  }
  ::_exit(0);
}

}  // namespace

Result<MeetingSettings> read_meeting(const Settings& settings) {
  const auto place = recorder::parse_meeting_place(settings.meet);
  if (!place) {
    return Error{Code::kBadInput, "--meet is HOST:PORT on rank 0's machine",
                 "flatout run --meet $MASTER_ADDR:8611 -- ..."};
  }
  const char* token = std::getenv(kToken);
  if (token == nullptr || !serve::is_good_token(token)) {
    return Error{Code::kBadInput,
                 "--meet needs the same $FLATOUT_MEET_TOKEN for all ranks: 16 or more of letters, "
                 "digits and -_.~",
                 "export FLATOUT_MEET_TOKEN=$(head -c 24 /dev/urandom | base64 | tr +/ -_)"};
  }
  return MeetingSettings{*place, token};
}

std::unique_ptr<MeetingProcess> MeetingProcess::start(const MeetingSettings& settings) {
  int ends[2];
  const pid_t parent = ::getpid();
  if (::pipe2(ends, O_CLOEXEC) != 0) return nullptr;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[1]);
    if (::getppid() != parent) ::_exit(1);
    listen_for_parent(settings, ends[0]);
  }
  ::close(ends[0]);
  if (pid < 0) {
    ::close(ends[1]);
    log_warning("cannot start the process that other ranks are to meet");
    return nullptr;
  }
  return std::unique_ptr<MeetingProcess>(new MeetingProcess(pid, ends[1]));
}

void MeetingProcess::open(const std::string& parent) {
  // With its end, which no path has within.
  (void)!::write(pipe_, parent.c_str(), parent.size() + 1);
}

MeetingProcess::~MeetingProcess() {
  ::close(pipe_);
  ::waitpid(pid_, nullptr, 0);  // ECHILD where the recorder has seen it end
}

}  // namespace flatout::cli
