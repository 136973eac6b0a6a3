// flatout run, flatout attach: record, judge, tell.
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/fs.h"
#include "base/log.h"
#include "base/number.h"
#include "base/number_range.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/job.h"
#include "cli/live.h"
#include "cli/meeting.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "cli/ranks.h"
#include "cli/serve.h"
#include "devmem/limits.h"
#include "model/finding_ids.h"
#include "recorder/launch.h"
#include "recorder/rank_place.h"
#include "recorder/recorder.h"
#include "remedy/fix_file.h"
#include "report/json.h"
#include "report/status.h"
#include "report/text.h"

namespace flatout::cli {
namespace {

const Usage kRun{
    "run",
    "[options] -- COMMAND...",
    "Starts a job, watches it, and ends with the verdict. The exit code is the job's own.",
    "  flatout run -- python train.py --epochs 3\n"
    "  flatout run --fail-on any -- python train.py       # exit code 3 if anything is found\n"
    "  flatout run --json=verdict.json -- torchrun --nproc_per_node 2 train.py\n"
    "  torchrun --no-python --nproc_per_node 2 flatout run -- python train.py\n"
    "  flatout run --malloc -- python train.py            # with Flatout's allocator\n"
    "  flatout run --devmem arena -- python train.py      # and its device memory from Flatout's "
    "pools\n"
    "  flatout run --cupti -- python train.py             # and what the GPU waits for\n"
    "  flatout run --with fix.json -- python train.py     # with what flatout fix found\n"
    "  flatout run --no-agent -- ./train                  # from outside only\n"
    "  flatout run --live -- python train.py              # and its processes below its output\n"
    "  flatout run --serve -- python train.py             # and watch it in a browser",
    {"out",           "fail_on",   "quiet",      "live",         "no_agent", "cupti",
     "torch_profile", "malloc",    "devmem",     "devmem_limit", "with",     "serve",
     "listen",        "port",      "token_file", "tls_cert",     "tls_key",  "meet",
     "rate",          "keep_runs", "keep_mb",    "verbose"},
    true,
    true,
    true,
    1,
    1'000'000};

const Usage kAttach{"attach",
                    "PID [options]",
                    "Watches a job that runs already, from outside, changing nothing in it.",
                    "  flatout attach 4121                # until it ends, or Ctrl-C\n"
                    "  flatout attach 4121 --seconds 30\n"
                    "  flatout attach 4121 --dump         # all stacks, once",
                    {"out", "quiet", "rate", "seconds", "dump", "keep_runs", "keep_mb", "verbose"},
                    true,
                    true,
                    false,
                    1,
                    1};

constexpr double kMostSeconds = 1e9;  // 31 years: as nanoseconds it can be added to any time

// Long enough for a few readings: the first may meet a stack that is just changing.
constexpr Nanos kDumpTime = std::chrono::milliseconds(200);

recorder::StatusText status_of(model::Run& run) {
  const model::Diagnosis so_far = judge(run);
  report::TextOptions options = report::options_for(STDERR_FILENO);
  options.width = options.width > 1 ? options.width - 1 : 1;  // never wraps
  return {report::status_line(run, so_far, options), report::title_text(run, so_far),
          so_far.verdict != "none" && run.steps.steps.size() >= 5, !so_far.findings.empty()};
}

/// Of the ranks that a launcher starts on one terminal the first one speaks, for all.
bool another_rank_speaks() {
  const recorder::RankPlace place = recorder::rank_place(recorder::current_environment());
  return place.rank > 0 && place.world > 1;
}

void name_leftovers(recorder::Recorder& recorder) {
  const auto left = recorder.leftovers();
  if (left.empty()) return;
  std::string names;
  for (size_t i = 0; i < left.size() && i < 5; ++i) {
    names += fmt::format("{}{} {}", i == 0 ? "" : ", ", left[i].pid, escape_terminal(left[i].name));
  }
  if (left.size() > 5) names += fmt::format(" and {} more", left.size() - 5);
  log_warning(
      left.size() == 1
          ? fmt::format("the job has ended, but a process of it goes on: {}", names)
          : fmt::format("the job has ended, but {} processes of it go on: {}", left.size(), names));
}

// The job has ended: what the other ranks still write is soon there, or it is not worth the wait.
constexpr Nanos kOtherRanks = std::chrono::seconds(5);

/// `all`: those of other machines, too, which bring theirs.
void wait_for_other_ranks(const recorder::Recorder& recorder, bool all) {
  const recorder::RankPlace& place = recorder.place();
  if (place.rank != 0 || !recorder.on_disk()) return;
  const std::string& own = recorder.folder().path;
  const TimePoint patience = MonotonicClock::now() + kOtherRanks;
  const auto open = [&](const std::string& folder) {
    return folder != own && !fs::Root(folder).exists("run.json");
  };
  while (MonotonicClock::now() < patience) {
    const std::vector<std::string> folders = recorder::folders_of_launch(own);
    const bool complete = !all || folders.size() >= static_cast<size_t>(std::max(0, place.world));
    if (complete && std::none_of(folders.begin(), folders.end(), open)) return;
    ::usleep(50'000);
  }
}

/// Another rank's side of a meeting. It has ended, so it may take its time; the job's code and
/// folder are as they would be without.
void bring_recording(const recorder::Recorder& recorder, const MeetingSettings& meeting) {
  if (recorder.place().rank <= 0 || !recorder.on_disk()) return;
  const auto brought =
      recorder::bring_to_meeting(recorder.folder().path, meeting.place, meeting.token);
  if (!brought.ok()) {
    log_warning(fmt::format("rank {}: {}; its recording is {}", recorder.place().rank,
                            brought.error().message, recorder.folder().path));
  }
}

void tell_torch_profile(const model::Run& run, const Settings& settings) {
  const std::string_view file = run.fact("torch_profile.file");
  const std::string_view failure = run.fact("torch_profile.failed");
  if (!file.empty()) {
    if (!settings.quiet) {
      fmt::print(stderr, "PyTorch's profiler recorded steps {}: flatout trace summary {}\n",
                 settings.torch_profile, escape_terminal(file));
    }
  } else if (!failure.empty()) {
    log_warning(fmt::format("PyTorch's profiler recorded nothing: {}", escape_terminal(failure)));
  } else {
    log_warning(fmt::format("PyTorch's profiler recorded nothing: no PyTorch job got past step {}",
                            settings.torch_profile.substr(settings.torch_profile.find('-') + 1)));
  }
}

// Everything after the recording: the verdict first, then the files that take longer.
model::Diagnosis conclude(recorder::Recorder& recorder, const Settings& settings,
                          const std::optional<MeetingSettings>& meeting) {
  model::Run& run = recorder.run();
  model::Diagnosis diagnosis = judge(run);
  const std::string& folder = recorder.folder().path;
  wait_for_other_ranks(recorder, meeting.has_value());
  if (recorder.on_disk()) {
    if (auto all = judge_launch(folder, run)) diagnosis = std::move(*all);
  }
  Status written;
  if (recorder.on_disk()) written = write_verdict(folder, run, diagnosis);
  if (meeting) bring_recording(recorder, *meeting);
  if (!settings.quiet) {
    report::TextOptions options = report::options_for(STDERR_FILENO);
    options.folder = recorder.on_disk() ? folder : "";
    options.verbose = settings.verbose;
    std::fputs(report::render_text(run, diagnosis, options).c_str(), stderr);  // may be closed
  }
  if (!settings.torch_profile.empty()) tell_torch_profile(run, settings);
  if (settings.json || !settings.json_file.empty()) {
    const Status put = write_text(settings.json_file, report::findings_json(run, diagnosis));
    if (!put.ok()) log_warning(put.error().message);
  }
  if (recorder.on_disk() && written.ok()) written = write_reports(folder, run, diagnosis);
  if (!written.ok()) log_warning(written.error().message);
  prune(recorder, settings);
  return diagnosis;
}

recorder::Options options_of(const Settings& settings) {
  recorder::Options options;
  options.out = settings.out;
  options.agent = !settings.no_agent;
  options.cupti = settings.cupti;
  options.torch_profile = settings.torch_profile;
  options.allocator = settings.malloc;
  options.status = !settings.quiet;
  options.stacks_per_s = settings.rate;
  return options;
}

/// Stacks are most of what is known of a job that nothing is loaded into: why there are none is
/// said.
void name_missing_stacks(const model::Run& run) {
  for (const model::Missing& missing : run.missing) {
    if (missing.signal == "stacks.python")
      log_warning(missing.reason + (missing.hint.empty() ? "" : "; " + missing.hint));
  }
}

int dump(const model::Run& run, const Settings& settings) {
  name_missing_stacks(run);
  const bool json = settings.json || !settings.json_file.empty();
  const std::string text =
      json ? stacks_json(run) : report::render_stacks(run, report::options_for(STDOUT_FILENO));
  const Status put = write_text(settings.json_file, text);
  if (!put.ok()) log_error(put.error().message);
  return put.ok() ? 0 : 1;
}

/// Has PyTorch in the job take its memory from Flatout's pools, as the environment tells the Python
/// side of the agent. Errors: kBadInput; kNotFound where the library is not installed.
Status install_devmem(const Settings& settings) {
  if (settings.devmem.empty()) {
    if (!settings.devmem_limit.empty())
      log_warning("--devmem-limit is for --devmem, and changes nothing without it");
    return {};
  }
  if (settings.devmem != "arena" && settings.devmem != "torch" &&
      settings.devmem != "torch_expandable")
    return Error{Code::kBadInput,
                 fmt::format("--devmem: there is no policy '{}'", escape_terminal(settings.devmem)),
                 "arena, torch or torch_expandable"};
  if (!settings.devmem_limit.empty()) {
    if (const auto limits = devmem::parse_limits(settings.devmem_limit); !limits.ok())
      return Error{limits.error().code, "--devmem-limit: " + limits.error().message,
                   limits.error().hint};
  }
  const std::string library = recorder::find_agent().devmem;
  if (library.empty())
    return Error{Code::kNotFound, "libflatout_devmem.so is not beside flatout", "install it again"};
  ::setenv("FLATOUT_DEVMEM", settings.devmem.c_str(), 1);
  ::setenv("FLATOUT_DEVMEM_LIMIT", settings.devmem_limit.c_str(), 1);
  ::setenv("FLATOUT_DEVMEM_LIBRARY", library.c_str(), 1);
  if (settings.no_agent)
    log_warning("--no-agent: nothing is loaded into the job, so --devmem changes nothing");
  return {};
}

/// Of a word that no finding has, which would never fire: what was meant.
std::optional<std::string> unknown_finding(const std::string& wanted) {
  const std::vector<std::string_view>& ids = model::finding_ids();
  if (wanted.empty() || wanted == "any" || std::find(ids.begin(), ids.end(), wanted) != ids.end()) {
    return std::nullopt;
  }
  const std::string_view meant = nearest(wanted, ids);
  if (!meant.empty()) return fmt::format("did you mean {}?", meant);
  // "cpu", "input.": the ids of the group.
  const std::string group = wanted.substr(0, wanted.find('.')) + ".";
  std::string all;
  for (const std::string_view id : ids) {
    if (id.starts_with(group)) all += fmt::format("{}{}", all.empty() ? "" : ", ", id);
  }
  return all.empty() ? "`any`, or an id of docs/findings: input.decode_cpu" : "one of " + all;
}

bool fails(const std::string& wanted, const model::Diagnosis& diagnosis) {
  return std::any_of(diagnosis.findings.begin(), diagnosis.findings.end(),
                     [&](const model::Finding& f) { return wanted == "any" || wanted == f.id; });
}

}  // namespace

int run(const std::vector<std::string>& arguments) {
  int code = 0;
  auto settings = parse(kRun, arguments, code);
  if (!settings) return code;
  if (const auto hint = unknown_finding(settings->fail_on)) {
    return bad_usage(
        fmt::format("--fail-on: no finding is called '{}'", escape_terminal(settings->fail_on)),
        *hint);
  }
  if (settings->serve) {
    const auto able = read_serving(*settings);
    if (!able.ok()) return bad_usage(able.error().message, able.error().hint);
  }
  if (const Status installed = install_devmem(*settings); !installed.ok())
    return bad_usage(installed.error().message, installed.error().hint);
  std::vector<std::string> command = job_command(*settings, arguments);
  recorder::Options options = options_of(*settings);
  if (!settings->with.empty()) {
    const auto setting = remedy::read_fix_file(settings->with);
    if (!setting.ok()) {
      log_error(setting.error().message, setting.error().hint);
      return 2;
    }
    remedy::apply_environment(*setting);
    command.insert(command.begin(), setting->prefix.begin(), setting->prefix.end());
    options.allocator |= setting->allocator;
    if (settings->no_agent && !setting->agent.empty()) {
      log_warning("--no-agent: what works within the job is left out (" +
                  remedy::agent_words(*setting) + ")");
    }
  }
  if (!settings->torch_profile.empty()) {
    const auto steps = parse_range<uint32_t>(settings->torch_profile);
    if (!steps) {
      return bad_usage(fmt::format("--torch-profile: '{}' names no steps",
                                   escape_terminal(settings->torch_profile)),
                       "--torch-profile 20-25: counted from 0");
    }
    settings->torch_profile = fmt::format("{}-{}", steps->first, steps->second);
    if (settings->no_agent)
      log_warning("--no-agent: nothing is loaded into the job, so --torch-profile records nothing");
    if (settings->cupti)
      log_warning("--cupti takes CUPTI: PyTorch's profiler records no kernels beside it");
  }
  if (settings->no_agent && settings->cupti) {
    log_warning("--no-agent: nothing is loaded into the job, so --cupti records nothing");
  }
  options.command = command;
  options.stdout_to_stderr = settings->json;
  if (another_rank_speaks()) {
    settings->quiet = true;
    settings->json = false;
    settings->json_file.clear();
    settings->fail_on.clear();
    options.status = false;
  }
  std::optional<MeetingSettings> meeting;
  std::unique_ptr<MeetingProcess> host;
  if (!settings->meet.empty()) {
    auto read = read_meeting(*settings);
    if (!read.ok()) return bad_usage(read.error().message, read.error().hint);
    meeting = std::move(read).value();
    const auto place = recorder::rank_place(recorder::current_environment());
    if (place.rank == 0) host = MeetingProcess::start(*meeting);
  }
  LiveSocket live;
  if (settings->live && options.status) live = open_live();
  options.status_fd = live.recorder;
  auto opened = recorder::Recorder::open(options);
  if (!opened.ok()) return start_failed({Code::kIo, opened.error().message, ""}, command);
  recorder::Recorder& recorder = **opened;
  if (const Status started = recorder.start(); !started.ok()) {
    return start_failed(started.error(), command);
  }
  if (!recorder.folder().notice.empty()) log_warning(recorder.folder().notice);
  if (recorder.folder().replaced && !settings->quiet) {
    log_warning("the run that was in " + escape_terminal(recorder.folder().path) + " is replaced");
  }
  if (host != nullptr && recorder.on_disk()) {
    host->open(std::filesystem::path(recorder.folder().path).parent_path());
  }
  std::unique_ptr<HelperProcess> server, view;
  if (settings->serve) server = serve_beside(recorder.folder().path, *settings);
  if (live.recorder >= 0) view = start_live(live, recorder.job());
  recorder.record(status_of);
  view.reset();  // the terminal is whole again for the verdict
  const model::Diagnosis diagnosis = conclude(recorder, *settings, meeting);
  if (settings->quiet) name_leftovers(recorder);  // else the report does
  code = job_code(recorder.wait_status(), recorder.interrupted());
  if (code == 0 && !settings->fail_on.empty() && fails(settings->fail_on, diagnosis)) return 3;
  return code;
}

int attach(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kAttach, arguments, code);
  if (!settings) return code;
  const auto pid = parse_number<int32_t>(settings->positional[0]);
  if (!pid || *pid <= 0) {
    return bad_usage(
        fmt::format("'{}' is not a process id", escape_terminal(settings->positional[0])),
        "flatout attach 4121");
  }
  recorder::Options options = options_of(*settings);
  options.attach_pid = *pid;
  options.limit = Nanos(saturate<int64_t>(std::min(settings->seconds, kMostSeconds) * 1e9));
  if (settings->dump) {
    options.stacks_only = true;
    options.status = false;
    options.limit = kDumpTime;
  }
  auto opened = recorder::Recorder::open(options);
  Status started = opened.ok() ? (*opened)->start() : Status(opened.error());
  if (!started.ok()) {
    log_error(started.error().message, started.error().hint);
    return 1;
  }
  if (!(*opened)->folder().notice.empty()) log_warning((*opened)->folder().notice);
  (*opened)->record(status_of);
  if (settings->dump) return dump((*opened)->run(), *settings);
  conclude(**opened, *settings, std::nullopt);
  if (!settings->quiet) name_missing_stacks((*opened)->run());
  return 0;
}

}  // namespace flatout::cli
