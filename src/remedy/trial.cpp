#include "remedy/trial.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/fs.h"
#include "base/text.h"
#include "diagnose/view.h"
#include "recorder/launch.h"
#include "recorder/recorder.h"
#include "remedy/isolation.h"
#include "remedy/trial_json.h"

namespace flatout::remedy {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(10);
constexpr Nanos kEndPatience = std::chrono::seconds(3);
constexpr size_t kTail = 2000;
constexpr double kNextLook = 1.25;  // times as late as the one before

std::vector<int32_t> children() {
  std::vector<int32_t> out;
  const fs::Root proc("/proc");
  const auto names = proc.list("");
  if (!names.ok()) return out;
  const int32_t self = ::getpid();
  for (const std::string& name : *names) {
    const auto pid = parse_number<int32_t>(name);
    if (!pid) continue;
    const auto stat = proc.read(name + "/stat");
    if (!stat.ok()) continue;
    std::string_view rest = *stat;
    rest.remove_prefix(std::min(rest.size(), rest.rfind(')') + 1));  // names may hold blanks
    next_word(rest);
    if (parse_number<int32_t>(next_word(rest)) == self) out.push_back(*pid);
  }
  return out;
}

std::vector<double> losses_in(const std::string& folder) {
  const fs::Root root(folder);
  std::vector<double> out;
  const auto names = root.list("");
  if (!names.ok()) return out;
  for (const std::string& name : *names) {
    if (!name.starts_with("losses-")) continue;
    const auto text = root.read(name);
    if (!text.ok()) continue;
    std::string_view rest = *text, line;
    while (next_line(rest, line)) {
      out.push_back(parse_number<double>(line).value_or(std::nan("")));
    }
    break;
  }
  return out;
}

// Of a file that the agent notes something in; none where it did not.
std::vector<std::string> lines_of(const std::string& folder, const std::string& name) {
  std::vector<std::string> out;
  const auto text = fs::Root(folder).read(name);
  if (!text.ok()) return out;
  std::string_view rest = *text, line;
  while (next_line(rest, line)) out.emplace_back(line);
  return out;
}

Situation situation_of(const model::Run& run, const diagnose::RunView& view) {
  Situation out;
  out.online_cores = std::max(1, static_cast<int>(std::lround(view.cpu().cores)));
  out.cores =
      view.cpu().usable > 0 ? std::max(1, static_cast<int>(view.cpu().usable)) : out.online_cores;
  out.loader = !run.fact("loader.num_workers").empty();
  out.workers = parse_number<int>(run.fact("loader.num_workers")).value_or(0);
  out.torch = !run.fact("torch.version").empty();
  out.gpu = parse_number<int>(run.fact("gpu.count")).value_or(0) > 0;
  out.free_threaded = view.free_threaded();
  out.optimizer_share = run.steps.summary.breakdown[static_cast<size_t>(model::Part::kOptimizer)];
  out.input_share = run.steps.summary.breakdown[static_cast<size_t>(model::Part::kInputWait)];
  out.may_weigh = ::geteuid() == 0;
  out.allocator = !recorder::find_agent().allocator.empty();
  out.arenas = ::getenv("MALLOC_ARENA_MAX") != nullptr;
  out.fuses = !recorder::find_agent().nn.empty();
  out.devmem = !recorder::find_agent().devmem.empty();
  out.pictures = run.fact("loader.dataset_items") == "torchvision.datasets.folder" &&
                 !recorder::find_agent().feed.empty();
  return out;
}

TrialRun result_of(recorder::Recorder& recorder, const std::string& folder, const Judge& judge) {
  TrialRun out;
  model::Run& run = recorder.run();
  const model::Diagnosis diagnosis = judge(run);
  const diagnose::RunView view(run);
  for (const model::Step& step : run.steps.steps) {
    if (step.judged()) out.seconds.push_back(1e-3 * to_ms(step.length()));
    out.warmup_steps += step.warmup ? 1 : 0;
  }
  if (!run.steps.steps.empty()) {
    out.start_seconds = 1e-3 * to_ms(run.steps.steps.front().begin - run.begin);
  }
  out.outside = run.steps.source == model::StepSource::kRepetition;
  out.others = view.cpu().others + view.cpu().stolen;
  out.situation = situation_of(run, view);
  out.verdict = diagnosis.verdict;
  out.headline = diagnosis.headline;
  out.findings = diagnosis.findings;
  out.losses = losses_in(folder);
  out.applied = lines_of(folder, "applied");
  if (std::find(out.applied.begin(), out.applied.end(), "feed") != out.applied.end()) {
    out.situation.feeding = std::max(1, static_cast<int>(std::ceil(view.cpu().producers)));
  }
  out.warmed = lines_of(folder, "warmed");
  for (const std::string& name : lines_of(folder, "decoders")) {
    out.situation.pillow |= name == "pillow";
    out.situation.opencv |= name == "opencv";
  }
  if (const auto text = fs::Root(folder).read("modules"); text.ok()) {
    std::string_view rest = *text, line;
    while (next_line(rest, line)) {
      const std::string_view kind = next_word(line);
      const int count = parse_number<int>(line).value_or(0);
      if (kind == "Conv2d") out.situation.convolutions = count;
      if (kind == "BatchNorm2d") out.situation.norms = count;
    }
  }
  if (recorder.wait_status() != -1) {
    const int status = recorder.wait_status();
    out.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  if (const auto text = fs::Root(folder).read("output", 1 << 24); text.ok()) {
    out.output_tail = text->size() > kTail ? text->substr(text->size() - kTail) : *text;
  }
  return out;
}

void redirect(int fd, const char* path, int flags) {
  const int file = ::open(path, flags | O_CLOEXEC, 0600);
  if (file < 0) return;
  ::dup2(file, fd);
  ::close(file);
}

void give_input(const TrialPlace& place) {
  if (place.input < 0) return redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
  // Opened anew where that is permitted: whoever started us reads on where it was.
  if (place.input != STDIN_FILENO) ::dup2(place.input, STDIN_FILENO);
  redirect(STDIN_FILENO, "/proc/self/fd/0", O_RDONLY);
  ::lseek(STDIN_FILENO, place.input_from, SEEK_SET);
}

// In the process that is forked for one run.
Result<TrialRun> record(const std::vector<std::string>& command, const Setting& setting,
                        const Length& length, const TrialPlace& place, const Judge& judge) {
  if (place.isolate) {
    const std::string layers = place.folder + "/layers";
    if (::mkdir(layers.c_str(), 0700) != 0)
      return fs::error_from_errno(errno, "cannot make " + layers);
    FLATOUT_TRY_STATUS(isolate_files(layers));
  } else {
    ::setenv("FLATOUT_TRIAL_FILES", (place.folder + "/files").c_str(), 1);
  }
  give_input(place);
  if (!place.show_output) {
    redirect(STDOUT_FILENO, (place.folder + "/output").c_str(), O_WRONLY | O_CREAT | O_APPEND);
    ::dup2(STDOUT_FILENO, STDERR_FILENO);
  }
  apply_environment(setting);
  ::setenv("FLATOUT_TRIAL", place.folder.c_str(), 1);
  recorder::Options options;
  options.command = setting.prefix;
  options.command.insert(options.command.end(), command.begin(), command.end());
  options.out = place.folder + "/run";
  options.allocator = setting.allocator;
  options.status = false;
  options.trial = true;
  options.enough_steps = length.steps;
  options.enough_time = length.time;
  options.limit = length.limit;
  FLATOUT_TRY(const auto recorder, recorder::Recorder::open(options));
  FLATOUT_TRY_STATUS(recorder->start());
  recorder->record({});
  end_children();
  return result_of(*recorder, place.folder, judge);
}

[[noreturn]] void be_trial(const std::vector<std::string>& command, const Setting& setting,
                           const Length& length, const TrialPlace& place, const Judge& judge,
                           int32_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // the recorder ends then, and with it the job
  ::setpgid(0, 0);                     // Ctrl-C is for whoever started us
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_DFL);
  if (::getppid() != parent) ::_exit(1);
  const auto run = record(command, setting, length, place, judge);
  const std::string result = place.folder + "/result.json", failure = place.folder + "/failure";
  const Status written = run.ok() ? fs::write_atomically(result, to_json(*run))
                                  : fs::write_atomically(failure, run.error().message);
  end_children();
  ::_exit(written.ok() ? 0 : 1);
}

}  // namespace

void apply_environment(const Setting& setting) {
  for (const auto& [name, value] : setting.environment) ::setenv(name.c_str(), value.c_str(), 1);
  if (const std::string words = agent_words(setting); !words.empty()) {
    ::setenv("FLATOUT_REMEDIES", words.c_str(), 1);
  }
}

void end_children() {
  for (;;) {
    const std::vector<int32_t> mine = children();
    for (const int32_t pid : mine) ::kill(pid, SIGKILL);
    // Theirs are handed to us as they end.
    int status = 0;
    if (::waitpid(-1, &status, 0) < 0 && errno == ECHILD) return;
  }
}

bool waited_for_disk(const TrialRun& run) {
  return std::any_of(run.findings.begin(), run.findings.end(), [](const model::Finding& finding) {
    return finding.id == "input.disk" || finding.id == "input.cold_cache" ||
           finding.id == "input.small_files" || finding.id == "input.random_seek";
  });
}

Result<TrialRun> run_trial(const std::vector<std::string>& command, const Setting& setting,
                           const Length& length, const TrialPlace& place, const Judge& judge,
                           const Watch& watch, const std::function<bool()>& stop) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // should the trial's own process be killed
  const TimePoint begin = MonotonicClock::now();
  const int32_t self = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return fs::error_from_errno(errno, "cannot start a process");
  if (pid == 0) be_trial(command, setting, length, place, judge, self);
  bool stopped = false, enough = !watch || length.look_from.count() == 0;
  TimePoint kill_at{};
  double look_after = 1e-3 * to_ms(length.look_from);
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (!stopped && stop()) {
      stopped = true;
      kill_at = MonotonicClock::now() + kEndPatience;
      ::kill(pid, SIGTERM);
    }
    if (stopped && MonotonicClock::now() > kill_at) ::kill(pid, SIGKILL);
    if (!enough && 1e-3 * to_ms(MonotonicClock::now() - begin) >= look_after) {
      look_after *= kNextLook;
      const auto seen = watch(place.folder + "/run");
      enough = seen && seen->count >= length.steps && seen->time >= length.time;
      if (enough && !stopped) ::kill(pid, SIGTERM);  // it judges what it has, and ends
    }
    std::this_thread::sleep_for(kPoll);
  }
  end_children();
  if (stopped) return Error{Code::kGone, "interrupted", ""};
  const fs::Root folder(place.folder);
  if (const auto text = folder.read("result.json", 1 << 26); text.ok())
    return trial_from_json(*text);
  if (const auto text = folder.read("failure"); text.ok()) return Error{Code::kIo, *text, ""};
  return Error{Code::kIo, "a trial ended without a result", ""};
}

}  // namespace flatout::remedy
