#include "cli/job.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/log.h"
#include "base/number.h"
#include "base/text.h"
#include "recorder/event_loop.h"
#include "recorder/launch.h"
#include "recorder/signals.h"
#include "report/terminal.h"

namespace flatout::cli {

std::vector<std::string> job_command(const Settings& settings,
                                     const std::vector<std::string>& arguments) {
  std::vector<std::string> command = settings.positional;
  if (std::find(arguments.begin(), arguments.end(), "--") != arguments.end()) return command;
  const std::string program = command[0];
  struct stat info;
  if (!program.ends_with(".py") || ::stat(program.c_str(), &info) != 0 || !S_ISREG(info.st_mode) ||
      ::access(program.c_str(), X_OK) == 0) {
    return command;
  }
  command.insert(command.begin(), "python3");
  log_warning(
      fmt::format("{} is not executable: running it with python3", escape_terminal(program)));
  return command;
}

namespace {
bool died_of_interrupt = false;
}

int job_code(int wait_status, bool interrupted) {
  died_of_interrupt = interrupted && WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGINT;
  if (WIFSIGNALED(wait_status)) return 128 + WTERMSIG(wait_status);
  return WEXITSTATUS(wait_status);
}

int end_as_job(int exit_code) {
  if (!died_of_interrupt) return exit_code;
  std::fflush(nullptr);
  ::signal(SIGINT, SIG_DFL);
  ::raise(SIGINT);
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  ::sigprocmask(SIG_UNBLOCK, &interrupt, nullptr);
  return exit_code;
}

int start_failed(const Error& error, const std::vector<std::string>& command) {
  std::string hint = error.hint;
  if (error.code == Code::kDenied && hint.empty() && command[0].ends_with(".py")) {
    hint = fmt::format("flatout run -- python {}", escape_terminal(command[0]));
  }
  log_error(error.message, hint);
  if (error.code == Code::kNotFound) return 127;
  return error.code == Code::kDenied ? 126 : 125;
}

int run_job(const std::vector<std::string>& command, std::vector<std::string> environment) {
  auto loop = recorder::EventLoop::open();
  if (!loop.ok()) return start_failed(loop.error(), command);
  int32_t job = 0;
  int status = 0;
  bool ended = false;
  recorder::SignalRelay* relay = nullptr;
  recorder::SignalHandlers handlers;
  handlers.before_stop = [] {};
  handlers.continued = [] {};
  handlers.asked_to_end = [](int) {};
  handlers.child = [&] {
    int how = 0;
    while (true) {
      const pid_t pid = ::waitpid(-1, &how, WNOHANG);
      if (pid <= 0) return;
      if (pid != job) continue;
      relay->set_job(0);
      status = how;
      ended = true;
    }
  };
  auto signals = recorder::SignalRelay::open(*loop, true, handlers);
  if (!signals.ok()) return start_failed(signals.error(), command);
  relay = signals->get();
  const auto started = recorder::start_job({command, std::move(environment)}, relay->inherited());
  if (!started.ok()) return start_failed(started.error(), command);
  job = *started;
  relay->set_job(job);
  handlers.child();  // it may have ended before its number was known
  while (!ended) {
    loop->wait(relay->deadline());
    relay->tick(MonotonicClock::now());
  }
  return job_code(status, relay->interrupted());
}

void prune(const recorder::Recorder& recorder, const Settings& settings) {
  if (recorder.folder().parent.empty() || recorder.place().rank > 0) return;
  const int32_t ranks = std::max(1, recorder.place().world);  // a folder of each is one run
  const size_t removed = recorder::prune_runs(
      recorder.folder().parent,
      settings.keep_runs == 0 ? SIZE_MAX
                              : saturate<size_t>(static_cast<double>(settings.keep_runs) * ranks),
      settings.keep_mb == 0 ? UINT64_MAX : saturate<uint64_t>(settings.keep_mb * 1e6));
  if (removed == 0 || settings.quiet) return;
  const std::string said =
      report::render({{fmt::format("removed {} older run{} (--keep-runs {}, --keep-mb {})", removed,
                                   removed == 1 ? "" : "s", settings.keep_runs, settings.keep_mb),
                       report::Paint::kDim}},
                     report::options_for(STDERR_FILENO).color);
  std::fputs((said + "\n").c_str(), stderr);  // may be closed
}

}  // namespace flatout::cli
