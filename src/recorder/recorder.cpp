#include "recorder/recorder.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "base/page_size.h"
#include "base/text.h"
#include "probe/job_tree.h"
#include "probe/probe.h"
#include "probe/stack_probe.h"
#include "recorder/facts.h"
#include "recorder/launch.h"
#include "recorder/redact.h"

namespace flatout::recorder {
namespace {

constexpr Nanos kTreePeriod = std::chrono::milliseconds(100);
constexpr Nanos kDrainPeriod = std::chrono::milliseconds(50);
constexpr Nanos kBusyDrainPeriod = std::chrono::milliseconds(10);
constexpr Nanos kSelfPeriod = std::chrono::seconds(1);
constexpr Nanos kStatusPeriod = std::chrono::milliseconds(200);
constexpr Nanos kMinTextPeriod = std::chrono::seconds(1);
constexpr double kTextShare = 0.005;  // of one core, for making the status text
constexpr uint64_t kFirstVerdictSteps = 30;
constexpr Nanos kFirstVerdictAge = std::chrono::seconds(10);
// The usual steps without one after which a hang of several ranks can be told (diagnose/ranks).
constexpr int64_t kSilentSteps = 9;
constexpr Nanos kEarly = std::chrono::seconds(60);
constexpr Nanos kWarm = std::chrono::seconds(10);
constexpr Nanos kPatience = std::chrono::milliseconds(100);
constexpr Nanos kShortestGap = std::chrono::milliseconds(200);

Nanos own_cpu() {
  timespec ts{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return Nanos(int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec);
}

// kNotFound and kDenied are said of the job's command alone.
Error not_the_commands(Error error) {
  if (error.code == Code::kNotFound || error.code == Code::kDenied) error.code = Code::kIo;
  return error;
}

std::string working_folder() {
  char path[4096];
  return ::getcwd(path, sizeof path) != nullptr && path[0] == '/' ? path : "";
}

}  // namespace

Recorder::Recorder(Options options)
    : options_(std::move(options)),
      recording_(options_.limits),
      pace_(nanos(1e9 / std::clamp(options_.stacks_per_s, 0.1, 1000.0))) {}

Recorder::~Recorder() = default;

Result<std::unique_ptr<Recorder>> Recorder::open(Options options) {
  guard_standard_files();
  std::unique_ptr<Recorder> out(new Recorder(std::move(options)));
  FLATOUT_TRY(EventLoop loop, EventLoop::open());
  out->loop_ = std::make_unique<EventLoop>(std::move(loop));
  out->begin_ = out->last_wake_ = MonotonicClock::now();
  Recorder* self = out.get();
  SignalHandlers handlers;
  handlers.child = [self] { self->on_child(); };
  handlers.before_stop = [self] { self->on_stop_or_continue(true); };
  handlers.continued = [self] { self->on_stop_or_continue(false); };
  handlers.asked_to_end = [self](int) { self->ended_ = true; };
  FLATOUT_TRY(out->signals_,
              SignalRelay::open(*out->loop_, !out->attached() && !out->options_.trial, handlers));
  out->environment_ = current_environment();
  if (!out->attached()) out->place_ = rank_place(out->environment_);
  return out;
}

Status Recorder::start() {
  if (attached()) {
    FLATOUT_TRY_STATUS(start_attach());
  } else {
    FLATOUT_TRY_STATUS(start_command());
  }
  watch_job();
  return {};
}

/// Has the job load one of our libraries before its own; says so where that cannot be.
void Recorder::preload(const char* what, const std::string& library,
                       std::vector<std::string>& environment) {
  if (library.empty()) {
    sink_.missing({what, std::string("libflatout_") + what + ".so is not beside flatout",
                   "install it again"});
  } else if (library.find_first_of(": ") != std::string::npos) {
    sink_.missing({what, "LD_PRELOAD cannot name a path with a blank or a colon: " + library,
                   "install flatout elsewhere"});
  } else {
    add_preload(environment, library);
  }
}

Status Recorder::start_command() {
  std::string out = options_.out;
  // The ranks of a launch are all told the same folder.
  if (!out.empty() && place_.world > 1) out += fmt::format("/rank-{}", place_.rank);
  auto made = make_run_folder({options_.command, environment_, out});
  if (!made.ok()) return not_the_commands(std::move(made).error());
  folder_ = std::move(made).value();
  if (!folder_.path.empty()) {
    if (const Status opened = recording_.open_files(folder_.path); !opened.ok()) {
      folder_.notice = opened.error().message + "; recording in memory only";
    }
    if (place_.is_rank()) {
      const Status told = fs::write_atomically(folder_.path + "/rank.json",
                                               rank_file(place_, ::getppid(), unix_now_ns()));
      if (!told.ok()) log_warning(told.error().message);
    }
  }
  std::vector<std::string> environment = environment_;
  const AgentPaths paths = find_agent();
  if (options_.agent) {
    auto server = AgentServer::open(*loop_, recording_, [this](int32_t pid) {
      return tree_ != nullptr && tree_->contains(pid);
    });
    if (!server.ok()) return not_the_commands(std::move(server).error());
    agents_ = std::move(server).value();
    if (paths.library.empty()) {
      sink_.missing({"agent", "libflatout_agent.so is not beside flatout", "install it again"});
    } else {
      set_variable(environment, "FLATOUT_SOCKET", agents_->name());
      set_variable(environment, "FLATOUT_AGENT", paths.library);
      if (options_.cupti) watch_cuda(environment, paths.library);
      if (!options_.torch_profile.empty())
        set_variable(environment, "FLATOUT_TORCH_PROFILE", options_.torch_profile);
      if (!faults_.path().empty()) set_variable(environment, "FLATOUT_FAULTS", faults_.path());
      if (!paths.inject.empty()) {
        const std::string before = variable(environment, "PYTHONPATH");
        // An empty entry would mean the working folder; and a flatout within flatout adds nothing.
        if (before.empty()) {
          set_variable(environment, "PYTHONPATH", paths.inject);
        } else if (before != paths.inject && !before.starts_with(paths.inject + ":")) {
          set_variable(environment, "PYTHONPATH", paths.inject + ":" + before);
        }
      }
    }
  } else {
    sink_.missing(
        {"agent", "turned off by --no-agent", "leave that out to see the loader's stages"});
  }
  if (!folder_.path.empty()) set_variable(environment, "FLATOUT_RUN_DIR", folder_.path);
  if (options_.agent && may_use_mpi(options_.command, environment)) {
    preload("mpi", paths.mpi, environment);
  }
  if (options_.allocator) preload("malloc", paths.allocator, environment);

  // Descendants that lose their parent are handed to us, so they stay known.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  auto started =
      start_job({options_.command, environment, options_.stdout_to_stderr, options_.trial},
                signals_->inherited());
  if (!started.ok()) {
    discard(folder_);
    return std::move(started).error();
  }
  job_ = started.value();
  signals_->set_job(job_);
  if (place_.rank <= 0) publish(folder_);
  return {};
}

void Recorder::watch_cuda(std::vector<std::string>& environment, const std::string& agent) {
  constexpr const char* kInjection = "CUDA_INJECTION64_PATH";
  const std::string taken = variable(environment, kInjection);
  if (taken.empty()) {
    set_variable(environment, kInjection, agent);
  } else if (taken != agent) {
    sink_.missing({"gpu.device_time", fmt::format("{} names {} already", kInjection, taken),
                   "leave that tool out to see what the device waits for"});
  }
}

void Recorder::watch_job() {
  // Only now, so that the job has the limit that it was given: hundreds of agents need descriptors.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < 4096) {
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  tree_ = std::make_unique<probe::JobTree>(fs::Root("/"), job_, ::getpid());
  tree_->ignore(signals_->sentinel());
  exits_ = std::make_unique<ExitWatch>(
      *loop_, [this](int32_t pid, int status) { on_process_end(pid, status); });
  read_tree(MonotonicClock::now());
  if (attached() && !exits_->watch(job_)) ended_ = true;
  tell_facts();
  const int32_t launcher = place_.world > 1 ? ::getppid() : 0;
  const probe::Scope scope{fs::Root("/"), ::getpid(), tree_.get(), launcher};
  if (!options_.stacks_only) probes_ = probe::make_probes(scope);
  stacks_ = std::make_unique<probe::StackProbe>(scope, options_.stacks_only);
  probe_due_.assign(probes_.size(), TimePoint{});
  last_stacks_ = MonotonicClock::now();
  if (options_.status) terminal_ = StatusTerminal::open(*loop_);
}

void Recorder::tell_facts() {
  sink_.fact("flatout.version", FLATOUT_VERSION);
  sink_.fact("run.mode", attached() ? "attach" : "run");
  sink_.fact("run.begin_unix_ns", std::to_string(unix_now_ns()));
  sink_.fact("run.begin_ns", std::to_string(to_ns(begin_)));
  const fs::Root root("/");
  JobFacts job{options_.command, environment_, working_folder()};
  if (attached()) {
    const std::string proc = fmt::format("proc/{}/", job_);
    job.cwd = root.read_link(proc + "cwd").value_or("");
    job.environment.clear();
    const auto split_nul = [](std::string text) {
      std::vector<std::string> words;
      if (!text.empty() && text.back() == '\0') text.pop_back();
      for (const std::string_view word : split(text, '\0')) words.emplace_back(word);
      return words;
    };
    if (const auto text = root.read(proc + "cmdline"); text.ok()) job.command = split_nul(*text);
    if (const auto text = root.read(proc + "environ"); text.ok()) {
      job.environment = split_nul(*text);
    }
  }
  tell_rank(rank_place(job.environment), sink_);
  tell_job(root, job, sink_);
  if (!options_.stacks_only) code_.tell_program(job, sink_);
  tell_machine(root, job_, sink_);
}

void Recorder::on_child() {
  for (;;) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED);
    if (pid <= 0) return;
    const TimePoint now = MonotonicClock::now();
    if (pid == signals_->sentinel()) continue;
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
      // Somebody stopped the command alone: that is no stall of its own making.
      if (pid != job_) continue;
      if (WIFSTOPPED(status) && stopped_since_ == TimePoint{}) stopped_since_ = now;
      if (WIFCONTINUED(status) && stopped_since_ != TimePoint{}) {
        recording_.gap(stopped_since_, now);
        stopped_since_ = {};
      }
      continue;
    }
    exits_->forget(pid);
    sink_.process_end(pid, status, now);
    if (pid == job_) {
      signals_->set_job(0);
      wait_status_ = status;
      ended_ = true;
    }
  }
}

void Recorder::on_process_end(int32_t pid, int wait_status) {
  sink_.process_end(pid, wait_status, MonotonicClock::now());
  if (attached() && pid == job_) {
    wait_status_ = wait_status;
    ended_ = true;
  }
}

void Recorder::on_stop_or_continue(bool stopped) {
  if (stopped) {
    if (terminal_ != nullptr) terminal_->hide();
    pump(MonotonicClock::now(), true);
    return;
  }
  // The loop wakes far more often than that while it is not stopped.
  const TimePoint now = MonotonicClock::now();
  if (now - last_wake_ < kShortestGap) return;
  recording_.gap(last_wake_, now);
  last_stacks_ = last_wake_ = now;
}

void Recorder::record(const StatusMaker& make_status) {
  while (!ended_) {
    loop_->wait(next_deadline());
    const TimePoint now = MonotonicClock::now();
    last_wake_ = now;
    signals_->tick(now);
    step(now);
    if (terminal_ != nullptr && now >= next_status_) show_status(now, make_status);
    if (options_.limit.count() != 0 && now - begin_ >= options_.limit) ended_ = true;
    if (has_enough(now)) ended_ = true;
  }
  finish();
}

bool Recorder::has_enough(TimePoint now) const {
  return options_.enough_steps != 0 && agents_ != nullptr &&
         agents_->steps() >= options_.enough_steps &&
         now - agents_->first_step() >= options_.enough_time;
}

void Recorder::step(TimePoint now) {
  if (now >= next_drain_) drain(now);
  if (now >= next_stacks_) read_stacks(now);
  if (now >= next_tree_) read_tree(now);
  read_probes(now);
  if (now >= next_self_) read_self(now);
  pump(now, false);
}

TimePoint Recorder::next_deadline() const {
  TimePoint first = std::min({next_stacks_, next_tree_, next_drain_, next_self_});
  for (const TimePoint due : probe_due_) first = std::min(first, due);
  if (terminal_ != nullptr) first = std::min(first, next_status_);
  if (options_.limit.count() != 0) first = std::min(first, begin_ + options_.limit);
  return std::min(first, signals_->deadline());
}

void Recorder::read_tree(TimePoint now) {
  tree_->update(now, sink_);
  for (const probe::JobProcess* process : tree_->processes()) {
    // The command itself is our child in `run`: waitpid tells.
    if (process->pid != job_ && !exits_->watches(process->pid)) exits_->watch(process->pid);
  }
  next_tree_ = now + kTreePeriod;
}

void Recorder::read_probes(TimePoint now) {
  for (size_t i = 0; i < probes_.size(); ++i) {
    if (now < probe_due_[i]) continue;
    probes_[i]->read(now, sink_);
    probe_due_[i] = now + std::max<Nanos>(probes_[i]->period(), std::chrono::milliseconds(10));
  }
}

void Recorder::read_stacks(TimePoint now) {
  const Nanos before = own_cpu();
  stacks_->count_loops(!options_.stacks_only && (agents_ == nullptr || agents_->steps() == 0));
  stacks_->tick(now, now - last_stacks_, sink_);
  // Native code under Python has a budget of its own.
  pace_.took(own_cpu() - before - stacks_->last_cost().native, now - begin_);
  last_stacks_ = now;
  next_stacks_ = now + pace_.next();
}

void Recorder::read_self(TimePoint now) {
  using model::SignalId;
  const model::EntityId host = sink_.entity(model::EntityKind::kHost, 0, "", model::kNoEntity);
  sink_.reading(SignalId::kSelfCpu, host, now, static_cast<double>(own_cpu().count()));
  sink_.reading(SignalId::kSelfPeriod, host, now, static_cast<double>(pace_.period().count()));
  if (const auto text = fs::Root("/").read("proc/self/statm", 256); text.ok()) {
    std::string_view rest = *text;
    next_word(rest);
    const double pages = parse_number<double>(next_word(rest)).value_or(0);
    sink_.reading(SignalId::kSelfRss, host, now, pages * static_cast<double>(page_bytes()));
  }
  // Also at the end; but a run that is killed is to tell what it ran, too.
  if (!code_told_ && now - begin_ >= kWarm) {
    code_told_ = true;
    code_.tell_seen(run(), sink_);
  }
  next_self_ = now + kSelfPeriod;
}

void Recorder::drain(TimePoint now) {
  const double fullest = agents_ != nullptr ? agents_->drain(now) : 0;
  next_drain_ = now + (fullest > 0.25 ? kBusyDrainPeriod : kDrainPeriod);
}

void Recorder::pump(TimePoint now, bool all) {
  sink_.flush();
  if (const Status status = recording_.pump(now, all); !status.ok()) {
    log_warning(status.error().message + "; the job goes on, recording in memory only");
  }
}

// Once in each silence: a hang is not to wait until the status line's turn comes.
bool Recorder::has_fallen_silent(TimePoint now) {
  if (agents_ == nullptr || agents_->steps() == silent_after_) return false;
  const Nanos usual = agents_->usual_step(), silence = now - agents_->last_step();
  if (usual <= Nanos(0) || silence < std::max<Nanos>(kMinTextPeriod, kSilentSteps * usual))
    return false;
  silent_after_ = agents_->steps();
  return true;
}

void Recorder::show_status(TimePoint now, const StatusMaker& make_status) {
  next_status_ = now + kStatusPeriod;
  if (!terminal_->may_write()) return;
  // The first verdict is not to wait for its turn; where no agent counts steps, that ends too.
  const bool early = agents_ != nullptr && now - begin_ < kEarly &&
                     agents_->steps() < kFirstVerdictSteps &&
                     (agents_->steps() == 0 || now - agents_->first_step() < kFirstVerdictAge);
  if (const bool silent = has_fallen_silent(now); silent || now >= next_text_) {
    const Nanos before = own_cpu();
    status_ = make_status(run());
    const Nanos cost = own_cpu() - before;
    const Nanos rest = nanos(static_cast<double>(cost.count()) / kTextShare);
    next_text_ = now + std::max(kMinTextPeriod, early ? Nanos(0) : rest);
    terminal_->set_title(status_.title);
    if (options_.status_fd >= 0) {
      const std::string line = status_.line + "\n";
      ::send(options_.status_fd, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
  }
  if (status_.line.empty() || options_.status_fd >= 0) return;
  const bool verdict = status_.found || (status_.judged && !early);
  if (terminal_->is_silent(now)) {
    terminal_->draw(status_.line);
  } else if (verdict && !verdict_told_) {
    terminal_->insert_line(status_.line);
  } else {
    return;
  }
  verdict_told_ |= verdict;
}

void Recorder::finish() {
  if (terminal_ != nullptr) terminal_.reset();
  TimePoint now = MonotonicClock::now();
  // What agents wrote last, until nothing comes any more (or the job left somebody who never ends).
  for (int round = 0; round < 8; ++round) {
    loop_->wait(now);
    if (agents_ == nullptr || agents_->drain(now) == 0) break;
  }
  // Workers see the end of their parent a moment later: they are no left-overs.
  read_tree(now);
  const TimePoint patience = now + kPatience;
  for (bool waited = !attached(); waited;) {
    waited = false;
    while (exits_->watching() > 0 && now < patience) {
      loop_->wait(patience);
      now = MonotonicClock::now();
      waited = true;
    }
    // Who ended meanwhile may have left a child behind: so a daemon is made.
    if (waited) read_tree(now);
  }
  if (agents_ != nullptr) agents_->drain(now);
  const bool failed = wait_status_ != -1 && wait_status_ != 0;
  for (const auto& probe : probes_) {
    failed ? probe->read_after_failure(now, sink_) : probe->read(now, sink_);
  }
  read_self(now);
  pump(now, true);
  if (!options_.stacks_only) code_.tell_seen(run(), sink_);
  tell_clocks(run(), sink_);
  sink_.fact("run.end_ns", std::to_string(to_ns(now)));
  if (const std::string text = faults_.text(); !text.empty()) sink_.fact("fault.stack", text);
  if (wait_status_ != -1) {
    sink_.fact("exit_code", std::to_string(WIFSIGNALED(wait_status_) ? 128 + WTERMSIG(wait_status_)
                                                                     : WEXITSTATUS(wait_status_)));
  }
  pump(now, true);
}

std::vector<Leftover> Recorder::leftovers() const {
  std::vector<Leftover> out;
  for (const probe::JobProcess* process : tree_->processes()) {
    const bool alive = process->pid != job_ && exits_->watches(process->pid);
    if (alive) out.push_back({process->pid, process->name});
  }
  return out;
}

}  // namespace flatout::recorder
