// flatout top: the live view, or one look at it for a pipe.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "recorder/folder.h"
#include "recorder/packet_sink.h"
#include "recorder/recording.h"
#include "recorder/redact.h"
#include "report/terminal.h"
#include "screen/deliver.h"
#include "screen/json.h"
#include "screen/top.h"

extern char** environ;

namespace flatout::cli {
namespace {

const Usage kTop{
    "top",
    "[PID] [options]",
    "Full-screen live view of processes, cores, memory, disks, GPUs and training jobs. "
    "F1 shows the keys.",
    "  flatout top\n"
    "  flatout top 4121              # only this process and what descends from it\n"
    "  flatout top --once | head     # one screen as plain text, then end\n"
    "  flatout top --json --delay 5  # means over five seconds",
    {"once", "delay"},
    true,
    false,
    false,
    0,
    1};

constexpr int kPipeWidth = 132;  // columns, where $COLUMNS does not say

// Of a run that nobody recorded: the last minutes as the screen showed them.
Result<std::string> save(const screen::History& history, int32_t job) {
  if (history.size() == 0) return Error{Code::kNotFound, "nothing was seen yet", ""};
  recorder::FolderName name;
  name.command = {"top"};
  for (char** entry = environ; *entry != nullptr; ++entry) name.environment.emplace_back(*entry);
  FLATOUT_TRY(const recorder::RunFolder folder, recorder::make_run_folder(name));
  if (folder.path.empty()) return Error{Code::kDenied, folder.notice, ""};
  recorder::Recording recording;
  FLATOUT_TRY_STATUS(recording.open_files(folder.path));
  recorder::PacketSink sink(recording);
  const screen::Snapshot& first = *history.all().front();
  sink.fact("flatout.version", FLATOUT_VERSION);
  sink.fact("run.mode", "top");
  sink.fact("run.begin_unix_ns", std::to_string(first.unix_ns));
  sink.fact("run.begin_ns", std::to_string(to_ns(first.at)));
  sink.fact("host.name", first.host);
  sink.fact("command", "flatout top");
  screen::deliver(history, job, sink);
  sink.flush();
  FLATOUT_TRY_STATUS(recording.pump(history.all().back()->at, true));
  model::Run& run = recording.run();
  const model::Diagnosis diagnosis = judge(run);
  FLATOUT_TRY_STATUS(write_verdict(folder.path, run, diagnosis));
  FLATOUT_TRY_STATUS(write_reports(folder.path, run, diagnosis));
  return folder.path;
}

int show_once(const screen::TopOptions& options) {
  winsize size{};
  const char* columns = std::getenv("COLUMNS");
  int width = columns == nullptr ? 0 : parse_number<int>(columns).value_or(0);
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) width = size.ws_col;
  if (width <= 0) width = kPipeWidth;
  const bool unicode = report::options_for(STDOUT_FILENO).unicode;
  const Status put =
      write_text("", screen::plain_screen(options, std::min(width, 10'000), unicode));
  return put.ok() ? 0 : fail(put.error());
}

}  // namespace

int top(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kTop, arguments, code);
  if (!settings) return code;
  screen::TopOptions options;
  if (!settings->positional.empty()) {
    const std::string& word = settings->positional[0];
    const auto pid = parse_number<int32_t>(word);
    if (!pid || *pid <= 0) {
      return bad_usage(fmt::format("'{}' is not a process id", escape_terminal(word)),
                       "flatout top 4121");
    }
    if (!fs::Root().exists(fmt::format("proc/{}", *pid))) {
      return fail(Error{Code::kGone, fmt::format("there is no process {}", *pid), "flatout top"});
    }
    options.pid = *pid;
  }
  if (!(settings->delay >= 0.1 && settings->delay <= 3600)) {
    return bad_usage("--delay is from 0.1 to 3600 seconds", "flatout top --delay 2");
  }
  options.delay_s = settings->delay;
  options.sampler.self_pid = static_cast<int32_t>(::getpid());
  options.sampler.redact = recorder::recordable_environment;
  options.save = [&](const screen::History& history) { return save(history, options.pid); };
  if (settings->json) {
    const auto snapshot = screen::look_twice(options);
    screen::UserNames users{fs::Root()};
    const Status put = write_text("", screen::snapshot_json(*snapshot, users, options.pid));
    return put.ok() ? 0 : fail(put.error());
  }
  if (settings->once || ::isatty(STDOUT_FILENO) != 1) return show_once(options);
  const Status done = screen::run_top(options);
  return done.ok() ? 0 : fail(done.error());
}

}  // namespace flatout::cli
