#include "remedy/runner.h"

#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/fs.h"
#include "remedy/isolation.h"

namespace flatout::remedy {
namespace {

volatile sig_atomic_t stop_signal = 0;

void on_signal(int signal) { stop_signal = signal; }

void watch_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
}

// Below /var, which no overlay covers; elsewhere where that cannot be written, and then without
// one.
Result<std::string> make_scratch() {
  for (const char* parent : {"/var/tmp", "/tmp"}) {
    std::string path = std::string(parent) + "/flatout-fix-XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) return path;
  }
  return fs::error_from_errno(errno, "cannot make a scratch folder in /var/tmp or /tmp");
}

// An overlay's work folder is left without any rights.
void remove_all(const std::string& path) {
  std::error_code ignored;
  for (auto it = std::filesystem::recursive_directory_iterator(path, ignored);
       it != std::filesystem::recursive_directory_iterator(); it.increment(ignored)) {
    if (it->is_directory(ignored) && !it->is_symlink(ignored)) ::chmod(it->path().c_str(), 0700);
  }
  std::filesystem::remove_all(path, ignored);
}

}  // namespace

Result<std::unique_ptr<JobRunner>> JobRunner::open(std::vector<std::string> command,
                                                   double budget_seconds, Judge judge,
                                                   std::function<void(const std::string&)> tell) {
  std::unique_ptr<JobRunner> out(
      new JobRunner(std::move(command), budget_seconds, std::move(judge), std::move(tell)));
  FLATOUT_TRY(out->scratch_, make_scratch());
  const std::string probe = out->scratch_ + "/probe";
  if (::mkdir(probe.c_str(), 0700) != 0) return fs::error_from_errno(errno, "cannot make " + probe);
  if (const Status can = can_isolate(probe); !can.ok())
    out->why_not_isolated_ = can.error().message;
  remove_all(probe);
  watch_signals();
  return out;
}

JobRunner::~JobRunner() {
  if (!scratch_.empty()) remove_all(scratch_);
}

Result<TrialRun> JobRunner::run(const Setting& setting, const Length& length, bool show_output) {
  const std::string folder = fmt::format("{}/{}", scratch_, ++runs_);
  if (::mkdir(folder.c_str(), 0700) != 0)
    return fs::error_from_errno(errno, "cannot make " + folder);
  auto out = run_trial(command_, setting, length, {folder, why_not_isolated_.empty(), show_output},
                       judge_, [this] { return stopped(); });
  remove_all(folder);
  return out;
}

double JobRunner::seconds_left() { return budget_ - 1e-3 * to_ms(MonotonicClock::now() - begin_); }

bool JobRunner::stopped() { return stop_signal != 0; }

}  // namespace flatout::remedy
