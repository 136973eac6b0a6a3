#include "cli/job.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "base/number.h"
#include "base/text.h"

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

void prune(const recorder::Recorder& recorder, const Settings& settings) {
  if (recorder.folder().parent.empty() || recorder.place().rank > 0) return;
  const int32_t ranks = std::max(1, recorder.place().world);  // a folder of each is one run
  recorder::prune_runs(recorder.folder().parent,
                       saturate<size_t>(std::max(1.0, settings.keep_runs) * ranks),
                       saturate<uint64_t>(std::max(1.0, settings.keep_mb) * 1e6));
}

}  // namespace flatout::cli
