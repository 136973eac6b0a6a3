#include "cli/job.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/number.h"
#include "base/text.h"
#include "recorder/event_loop.h"
#include "recorder/launch.h"
#include "recorder/signals.h"

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

int job_code(int wait_status) {
  if (WIFSIGNALED(wait_status)) return 128 + WTERMSIG(wait_status);
  return WEXITSTATUS(wait_status);
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
  return job_code(status);
}

void prune(const recorder::Recorder& recorder, const Settings& settings) {
  if (recorder.folder().parent.empty() || recorder.place().rank > 0) return;
  const int32_t ranks = std::max(1, recorder.place().world);  // a folder of each is one run
  recorder::prune_runs(recorder.folder().parent,
                       saturate<size_t>(std::max(1.0, settings.keep_runs) * ranks),
                       saturate<uint64_t>(std::max(1.0, settings.keep_mb) * 1e6));
}

}  // namespace flatout::cli
