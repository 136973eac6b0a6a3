#include "diagnose/view.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/stats.h"
#include "diagnose/cursor.h"
#include "diagnose/framework.h"

namespace flatout::diagnose {
namespace {

using model::EntityKind;
using model::Part;
using model::Run;
using model::SignalId;
using model::Slice;
using model::SliceKind;
using model::Step;
using model::ThreadId;

// A step is slow when it lasts this many times the median.
constexpr double kSlowStep = 1.5;
// Of the step: shorter waits for input are none. And of a pipeline's work, from which Python that
// it calls makes the batches.
constexpr double kSomeWait = 0.02, kByPython = 0.3;
// Start-up that is left out where a run has no steps.
constexpr double kStartUpShare = 0.2, kStartUpSeconds = 2;

Stage stage_of(SliceKind kind) {
  switch (kind) {
    case SliceKind::kFetch:
      return Stage::kFetch;
    case SliceKind::kCollate:
      return Stage::kCollate;
    case SliceKind::kHandover:
      return Stage::kHandover;
    default:
      return Stage::kNone;
  }
}

uint64_t series_key(SignalId signal, model::EntityId entity) {
  return static_cast<uint64_t>(signal) << 32 | entity;
}

}  // namespace

RunView::RunView(const Run& run, int64_t from, int64_t to, const RunView* before)
    : run_(run), before_(before), stacks_(run) {
  for (const model::Series& s : run.series) series_[series_key(s.signal, s.entity)] = &s;
  for (model::EntityId i = 0; i < run.entities.size(); ++i) {
    const model::Entity& e = run.entities[i];
    if (e.kind == EntityKind::kProcess) process_entities_[e.key] = i;
    if (e.kind == EntityKind::kThread) thread_entities_[e.key] = i;
  }
  find_steps(from, to);
  find_roles();
  find_loader();
  find_lock_waits();
  find_silent_producers();
  sum_readings();
  find_cpu();
  find_neighbours();
}

void RunView::find_steps(int64_t from, int64_t to) {
  const std::vector<Step>& all = run_.steps.steps;
  std::vector<double> lengths;
  for (const Step& s : all) {
    if (s.index < from || s.index >= to || s.end <= s.begin) continue;
    ++steps_.seen;
    if (!s.judged()) continue;
    steps_.steady.push_back(&s);
    lengths.push_back(to_s(s.length()));
    steps_.total += lengths.back();
    for (size_t p = 0; p < model::kPartCount; ++p) steps_.parts[p] += to_s(s.parts[p]);
    // Steps that follow each other within a breath are one window.
    if (!steps_.windows.empty() && s.begin - steps_.windows.back().end < Nanos(1'000'000)) {
      steps_.windows.back().end = std::max(steps_.windows.back().end, s.end);
    } else {
      steps_.windows.push_back({s.begin, s.end});
    }
  }
  steps_.count = static_cast<int64_t>(lengths.size());
  if (steps_.count > 0) {
    steps_.mean = steps_.total / static_cast<double>(steps_.count);
    steps_.median = median(lengths);
    for (double& p : steps_.parts) p /= static_cast<double>(steps_.count);
    steps_.slow = std::ranges::count_if(
        lengths, [&](double length) { return length > kSlowStep * steps_.median; });
    return;
  }
  const double length = to_s(run_.end - run_.begin);
  const Nanos skip = nanos(std::min(length * kStartUpShare, kStartUpSeconds) * 1e9);
  steps_.windows.push_back({run_.begin + skip, run_.end});
  wall_ = to_s(run_.end - run_.begin - skip);
  find_waits();
}

// Without steps all that is said is of a second of the run.
void RunView::find_waits() {
  if (!run_.steps.steps.empty()) return;
  const Window steady = steps_.windows.front();
  double all = 0, waits = 0;
  for (const model::Moment& m : run_.steps.moments) {
    if (m.at < steady.begin || m.at >= steady.end) continue;
    ++all;
    if (m.part == Part::kInputWait) ++waits;
  }
  if (all == 0) return;
  knows_waits_ = true;
  steps_.mean = 1;
  steps_.parts[static_cast<size_t>(Part::kInputWait)] = waits / all;
  steps_.parts[static_cast<size_t>(Part::kCompute)] = 1 - waits / all;
}

void RunView::find_roles() {
  roles_.assign(run_.threads.size(), Role::kHelper);
  producer_process_.assign(run_.processes.size(), false);
  const bool told = run_.steps.source != model::StepSource::kNone || !run_.steps.moments.empty();
  if (told && run_.steps.thread < run_.threads.size()) {
    trainer_ = run_.steps.thread;
  } else {
    for (ThreadId t = 0; t < run_.threads.size(); ++t) {
      const model::ProcessId p = run_.threads[t].process;
      if (run_.threads[t].is_main && p < run_.processes.size() && run_.processes[p].main) {
        trainer_ = t;
      }
    }
  }
  if (trainer_ < run_.threads.size()) {
    trainer_process_ = run_.threads[trainer_].process;
    roles_[trainer_] = Role::kTrainer;
  }
  for (const Slice& s : run_.slices) {
    if (s.kind != SliceKind::kFetch || s.thread == trainer_ || s.thread >= roles_.size()) continue;
    roles_[s.thread] = Role::kProducer;
    const model::ProcessId p = run_.threads[s.thread].process;
    if (p < producer_process_.size() && p != trainer_process_) producer_process_[p] = true;
  }
  std::vector<bool> python(run_.threads.size());
  for (const model::StackReading& r : run_.readings) {
    if (r.thread < python.size() && (stacks_.traits(r.stack) & kHasPython) != 0) {
      python[r.thread] = true;
    }
  }
  for (ThreadId t = 0; t < run_.threads.size(); ++t) {
    if (roles_[t] != Role::kHelper || python[t]) continue;
    if (run_.threads[t].process == trainer_process_) roles_[t] = Role::kPool;
    if (is_producer_process(run_.threads[t].process)) roles_[t] = Role::kProducerPool;
  }
}

Role RunView::role(ThreadId thread) const {
  return thread < roles_.size() ? roles_[thread] : Role::kHelper;
}

bool RunView::pool_takes_work() const {
  const Framework library = framework(run_);
  return library == Framework::kTensorFlow || library == Framework::kJax;
}

bool RunView::is_producer_process(model::ProcessId process) const {
  return process < producer_process_.size() && producer_process_[process];
}

/// Whether the loop itself makes the batches that it waits for. A loader with workers may have
/// served it before, or serve its validation.
bool RunView::fetches_in_loop() const {
  double fetched = 0;
  size_t step = 0;
  for (const Slice& s : run_.slices) {
    if (s.kind != SliceKind::kFetch || s.thread != trainer_) continue;
    while (step < steps_.steady.size() && steps_.steady[step]->end < s.end) ++step;
    if (step >= steps_.steady.size()) break;
    if (s.begin >= steps_.steady[step]->begin) fetched += to_s(s.length());
  }
  const double waited = steps_.part(Part::kInputWait) * static_cast<double>(steps_.count);
  return fetched > 0.5 * waited;
}

int side_by_side(const std::vector<Window>& lives) {
  std::vector<std::pair<TimePoint, int>> edges;
  for (const Window& life : lives) {
    edges.emplace_back(life.begin, 1);
    edges.emplace_back(life.end, -1);
  }
  std::sort(edges.begin(), edges.end());
  int alive = 0, most = 0;
  for (const auto& [at, change] : edges) most = std::max(most, alive += change);
  return most;
}

void RunView::find_loader() {
  if (steps_.steady.empty()) return;
  const TimePoint begin = steps_.steady.front()->begin, end = steps_.steady.back()->end;
  std::unordered_map<ThreadId, double> busy;
  double fetch = 0, collate = 0, handover = 0, samples = 0, count = 0, bytes = 0;
  int64_t sized = 0;
  bool remote = false;
  for (const Slice& s : run_.slices) {
    if (s.end < begin || s.begin > end) continue;
    if (s.kind == SliceKind::kFetch && s.thread != trainer_) remote = true;
  }
  remote = remote && !fetches_in_loop();
  for (const Slice& s : run_.slices) {
    if (s.end < begin || s.begin > end) continue;
    if (remote == (s.thread == trainer_)) continue;
    const double length = to_s(s.length());
    switch (s.kind) {
      case SliceKind::kFetch:
        ++loader_.batches;
        fetch += length;
        count += static_cast<double>(std::max<int64_t>(s.value, 0));
        busy[s.thread] += length;
        loader_.fetches.push_back(&s);
        break;
      case SliceKind::kCollate:
        collate += length;
        sized += s.value > 0;  // the agent asks some batches only
        bytes += static_cast<double>(std::max<int64_t>(s.value, 0));
        break;
      case SliceKind::kHandover:
        handover += length;
        busy[s.thread] += length;
        break;
      case SliceKind::kSample:
        samples += static_cast<double>(std::max<int64_t>(s.value2, 0)) * 1e-9;
        break;
      default:
        break;
    }
  }
  if (loader_.batches == 0) return find_graph_loader();
  const double n = static_cast<double>(loader_.batches);
  loader_.measured = true;
  loader_.collate = collate / n;
  loader_.handover = handover / n;
  loader_.samples = samples / n;
  loader_.fetch = (fetch + handover) / n;
  loader_.batch_samples = count / n;
  if (sized > 0) loader_.batch_bytes = bytes / static_cast<double>(sized);
  if (!remote) {
    loader_.kind = LoaderKind::kSerial;
    loader_.busy = 1;
    return;
  }
  // Workers of different epochs follow each other: how many worked side by side?
  double total = 0;
  for (const auto& [thread, seconds] : busy) total += seconds;
  bool inside = true;
  for (const auto& [thread, seconds] : busy) {
    inside &= run_.threads[thread].process == trainer_process_;
  }
  loader_.kind = inside ? LoaderKind::kThreads : LoaderKind::kProcesses;
  std::unordered_map<ThreadId, Window> lives;
  for (const Slice* s : loader_.fetches) {
    const auto [it, fresh] = lives.try_emplace(s->thread, Window{s->begin, s->end});
    it->second.begin = std::min(it->second.begin, s->begin);
    it->second.end = std::max(it->second.end, s->end);
  }
  std::vector<Window> all;
  double lived = 0;
  for (const auto& [thread, life] : lives) {
    all.push_back(life);
    lived += to_s(life.end - life.begin);
  }
  loader_.workers = std::max(loader_.workers, side_by_side(all));
  loader_.busy = lived > 0 ? std::min(1.0, total / lived) : 0;
}

/// Whether Python in other threads makes most of what a pipeline of so many seconds a batch makes.
bool RunView::feeds_pipeline(double seconds) const {
  double fed = 0;
  for (const Slice& s : run_.slices) {
    if (s.kind == SliceKind::kFeed && s.thread != trainer_) fed += to_s(s.length());
  }
  const double steps = static_cast<double>(std::max<int64_t>(steps_.seen, 1));
  return fed / steps > kByPython * seconds;
}

void RunView::find_graph_loader() {
  GraphPipeline pipeline = graph_pipeline(run_);
  if (!pipeline.known() || steps_.part(Part::kInputWait) < kSomeWait * steps_.mean) return;
  if (feeds_pipeline(pipeline.seconds)) return;  // those are found by their Python
  pipeline_ = std::move(pipeline);
  loader_.graph = true;
  loader_.kind = pipeline_.ahead() ? LoaderKind::kThreads : LoaderKind::kSerial;
  loader_.workers = loader_.kind == LoaderKind::kSerial ? 0 : pipeline_.heaviest().threads;
  loader_.batches = steps_.count;
  loader_.fetch = pipeline_.seconds;
  loader_.busy = std::min(1.0, loader_.fetch / steps_.mean / std::max(loader_.workers, 1));
}

// Time that no slice explains: what timeline takes most of it for, beyond the slices' own parts.
Part RunView::rest_part() const {
  std::array<double, model::kPartCount> open = steps_.parts;
  const double n = static_cast<double>(std::max<int64_t>(steps_.count, 1));
  size_t step = 0;
  for (const Slice& s : run_.slices) {
    const Part part = part_of(s.kind);
    if (s.thread != trainer_ || part == Part::kCount) continue;
    while (step < steps_.steady.size() && steps_.steady[step]->end < s.end) ++step;
    if (step >= steps_.steady.size()) break;
    if (s.begin >= steps_.steady[step]->begin) {
      open[static_cast<size_t>(part)] -= to_s(s.length()) / n;
    }
  }
  Part rest = Part::kOther;
  for (const Part p : {Part::kCompute, Part::kInputWait, Part::kForward}) {
    if (open[static_cast<size_t>(p)] > open[static_cast<size_t>(rest)]) rest = p;
  }
  return rest;
}

/// Waits for a disk whose system call was not caught: lines of which more is known to write write.
std::unordered_set<model::FrameId> RunView::writing_lines() const {
  std::unordered_map<model::FrameId, int64_t> balance;
  for (const model::StackReading& r : run_.readings) {
    if (r.state != model::ThreadState::kDisk || r.syscall < 0) continue;
    const Act act = act_of(r, stacks_.traits(r.stack));
    balance[stacks_.user_frame(r.stack)] += act == Act::kWrite ? 1 : -1;
  }
  std::unordered_set<model::FrameId> out;
  for (const auto& [frame, more] : balance) {
    if (frame != 0 && more > 0) out.insert(frame);
  }
  return out;
}

/// Processes that wait for no disk but to write: what they read was in memory. Without Python a
/// reading's stack may be one from before, so that its line is not the one that waits.
std::vector<bool> RunView::processes_that_only_write() const {
  constexpr double kHardlyReads = 0.05;  // of what is written
  std::vector<bool> out(run_.processes.size());
  for (model::ProcessId p = 0; p < out.size(); ++p) {
    const auto read = increase(process(SignalId::kProcReadBytes, p));
    const auto written = increase(process(SignalId::kProcWriteBytes, p));
    out[p] = run_.processes[p].python && read && written && *written > 0 &&
             *read < kHardlyReads * *written;
  }
  return out;
}

namespace {

/// Time of the training thread's input in each generator, but for those in which it trains as well:
/// such a one is the loop itself.
class GeneratorTimes {
 public:
  void add(const Run& run, model::FrameId frame, const Cell& cell) {
    if (cell.part == Part::kInputWait) all_ += cell.seconds;
    if (frame == 0) return;
    Time& time = times_[{run.frames[frame].file, run.frames[frame].function}];
    if (cell.part == Part::kInputWait) time.input += cell.seconds;
    time.trains = time.trains || cell.part == Part::kForward || cell.part == Part::kBackward;
  }
  double share() const {
    double inside = 0;
    for (const auto& [function, time] : times_) inside += time.trains ? 0 : time.input;
    return all_ > 0 ? inside / all_ : 0;
  }

 private:
  struct Time {
    double input = 0;
    bool trains = false;
  };
  std::map<std::pair<model::StringId, model::StringId>, Time> times_;
  double all_ = 0;
};

/// Counts, tick by tick of the readings, how many of the training thread and its pool want a core
/// while the training thread does. (One that only waits for a pool has no share in its work: what
/// the pool's threads lose to each other then is for the pool's maker to weigh.)
class Wanting {
 public:
  /// `seconds`: of the training thread's readings, by that count; 0 where it wanted none.
  explicit Wanting(std::vector<double>& seconds) : seconds_(seconds) {}

  void add(const model::StackReading& reading, const Cell& cell) {
    if (cell.role != Role::kTrainer && cell.role != Role::kPool) return;
    if (reading.at != at_) end_tick();
    at_ = reading.at;
    const bool wants = on_cpu(cell.act) || cell.act == Act::kRunQueue;
    if (wants) ++count_;
    if (cell.role != Role::kTrainer) return;
    trained_ += cell.seconds;
    trainer_wants_ = trainer_wants_ || wants;
  }
  void end_tick() {
    const size_t count = trainer_wants_ ? count_ : 0;
    if (seconds_.size() <= count) seconds_.resize(count + 1);
    seconds_[count] += trained_;
    trained_ = 0;
    count_ = 0;
    trainer_wants_ = false;
  }

 private:
  std::vector<double>& seconds_;
  TimePoint at_{};
  double trained_ = 0;
  size_t count_ = 0;
  bool trainer_wants_ = false;
};

}  // namespace

void RunView::sum_readings() {
  const std::unordered_set<model::FrameId> writing = writing_lines();
  const std::vector<bool> only_writes = processes_that_only_write();
  PartCursor parts(run_, trainer_, rest_part());
  std::unordered_map<ThreadId, Cursor<Stage>> stages;
  for (const Slice& s : run_.slices) {
    if (stage_of(s.kind) != Stage::kNone) stages[s.thread].add(s.begin, s.end, stage_of(s.kind));
  }
  for (auto& [thread, cursor] : stages) cursor.ready();
  const double slow = steps_.median * kSlowStep;
  size_t step = 0, window = 0;
  double trained = 0;
  std::unordered_map<ThreadId, double> pool_queue;
  Wanting wanting(wanted_);
  GeneratorTimes generators;
  for (const model::StackReading& r : run_.readings) {
    if (r.thread >= roles_.size()) continue;
    Cell cell;
    if (steps_.steady.empty()) {
      while (window < steps_.windows.size() && steps_.windows[window].end <= r.at) ++window;
      if (window >= steps_.windows.size() || r.at < steps_.windows[window].begin) continue;
      if (knows_waits_) cell.part = parts.at(r.at);
    } else {
      while (step < steps_.steady.size() && steps_.steady[step]->end <= r.at) ++step;
      if (step >= steps_.steady.size()) break;
      const Step& s = *steps_.steady[step];
      if (r.at < s.begin) continue;
      cell.part = parts.at(r.at);
      cell.slow_step = to_s(s.length()) > slow;
    }
    cell.traits = traits(r);
    cell.act = act_of(r, cell.traits);
    cell.role = roles_[r.thread];
    cell.aside = run_.threads[r.thread].process != trainer_process_;
    if (const auto it = stages.find(r.thread); it != stages.end()) {
      cell.stage = it->second.at(r.at, Stage::kNone);
    }
    cell.user = stacks_.user_frame(r.stack);
    if (cell.user == 0) cell.user = stacks_.package_frame(r.stack);
    if (r.state == model::ThreadState::kDisk && r.syscall < 0 && cell.act == Act::kRead &&
        (writing.count(cell.user) > 0 || only_writes[run_.threads[r.thread].process])) {
      cell.act = Act::kWrite;
    }
    count_native_call(cell.user, stacks_.native_call(r.stack));
    cell.seconds = r.weight_us * 1e-6;
    cell.readings = 1;
    if (cell.role == Role::kTrainer) {
      trained += cell.seconds;
      generators.add(run_, stacks_.generator_frame(r.stack), cell);
      order_.add(r.stack, cell);
      python_ = python_ || (cell.traits & kHasPython) != 0;
    }
    wanting.add(r, cell);
    if (cell.role == Role::kPool && cell.act == Act::kRunQueue) {
      pool_queue[r.thread] += cell.seconds;
    }
    profile_.add(cell);
  }
  wanting.end_tick();
  if (trained > 0) scale_ = seconds() / trained;
  in_generators_ = generators.share();
  find_delays(pool_queue);
}

/// A reading of native code under the line.
void RunView::count_native_call(model::FrameId line, NativeCall call) {
  if (call == NativeCall::kUnseen) return;
  NativeCalls& calls = native_calls_[line];
  switch (call) {
    case NativeCall::kLookup:
      ++calls.lookups;
      break;
    case NativeCall::kOther:
      ++calls.others;
      break;
    default:
      ++calls.unclear;
  }
}

/// Waits for cores; the kernel's own account is finer than readings where it can be had.
/// pool_queue: seconds of readings, by thread.
void RunView::find_delays(const std::unordered_map<ThreadId, double>& pool_queue) {
  const auto queued = [](const Cell& c) { return c.act == Act::kRunQueue; };
  trainer_delay_ = per_step(Role::kTrainer, queued);
  trainer_delay_in_wait_ = trainer_in(Part::kInputWait, queued);
  const double unit = units();
  if (unit <= 0) return;
  std::optional<double> delayed;
  for (ThreadId t = 0; t < run_.threads.size(); ++t) {
    if (t != trainer_ && run_.threads[t].continues != trainer_) continue;
    const auto ns = increase(thread(SignalId::kThreadRunDelay, t));
    if (ns) delayed = delayed.value_or(0) + *ns;
  }
  if (delayed) {
    const double share = trainer_delay_ > 0 ? trainer_delay_in_wait_ / trainer_delay_ : 0;
    trainer_delay_ = *delayed * 1e-9 / unit;
    trainer_delay_in_wait_ = trainer_delay_ * share;
  }
  for (ThreadId t = 0; t < roles_.size(); ++t) {
    if (roles_[t] != Role::kPool) continue;
    const auto read = pool_queue.find(t);
    double delay = read != pool_queue.end() ? read->second * scale_ / unit : 0;
    if (const auto ns = increase(thread(SignalId::kThreadRunDelay, t)); ns) {
      delay = *ns * 1e-9 / unit;
    }
    pool_delay_ = std::max(pool_delay_, delay);
  }
}

double RunView::per_step(Role role, const Profile::Filter& filter) const {
  const double unit = units();
  if (unit <= 0) return 0;
  return profile_.seconds([&](const Cell& c) { return c.role == role && filter(c); }) * scale_ /
         unit;
}

Crowd RunView::crowd() const {
  const double unit = has_steps() ? steps_.mean : 1.0;
  const auto wanted = [&](Role role) {
    return per_step(role, [](const Cell& c) { return on_cpu(c.act) || c.act == Act::kRunQueue; }) /
           unit;
  };
  double trained = 0, overfull = 0;
  for (size_t count = 0; count < wanted_.size(); ++count) {
    trained += wanted_[count];
    if (static_cast<double>(count) > cpu_.usable) overfull += wanted_[count];
  }
  return {wanted(Role::kTrainer),      wanted(Role::kPool),   wanted(Role::kProducer),
          wanted(Role::kProducerPool), wanted(Role::kHelper), trained > 0 ? overfull / trained : 0};
}

double RunView::trainer_in(Part part, const Profile::Filter& filter) const {
  return per_step(Role::kTrainer, [&](const Cell& c) { return c.part == part && filter(c); });
}

double RunView::producer_delay_share() const {
  const auto working = [](const Cell& c) {
    return c.role == Role::kProducer && (c.stage != Stage::kNone || waits_for_nobody(c.act));
  };
  const double all = profile_.seconds(working);
  if (all <= 0) return 0;
  return profile_.seconds([&](const Cell& c) { return working(c) && c.act == Act::kRunQueue; }) /
         all;
}

std::optional<model::Where> RunView::where(const Profile::Filter& filter) const {
  std::optional<Hot> hot;
  if (before_ != nullptr && before_->steps_.count > 0) {
    hot = profile_.hottest(
        filter, run_, &before_->profile_,
        static_cast<double>(steps_.count) / static_cast<double>(before_->steps_.count));
  }
  if (!hot) hot = profile_.hottest(filter, run_);
  if (!hot) return std::nullopt;
  return stacks_.where(hot->frame);
}

const model::Series* RunView::series(SignalId signal, model::EntityId entity) const {
  const auto it = series_.find(series_key(signal, entity));
  return it == series_.end() ? nullptr : it->second;
}

const model::Series* RunView::host(SignalId signal) const { return run_.find(signal); }

std::optional<double> RunView::host_last(SignalId signal) const {
  const model::Series* s = host(signal);
  return s == nullptr ? std::nullopt : s->last();
}

const model::Series* RunView::process(SignalId signal, model::ProcessId process) const {
  if (process >= run_.processes.size()) return nullptr;
  const auto it = process_entities_.find(run_.processes[process].pid);
  return it == process_entities_.end() ? nullptr : series(signal, it->second);
}

const model::Series* RunView::thread(SignalId signal, ThreadId thread) const {
  if (thread >= run_.threads.size()) return nullptr;
  const auto it = thread_entities_.find(run_.threads[thread].tid);
  return it == thread_entities_.end() ? nullptr : series(signal, it->second);
}

std::optional<double> RunView::increase(const model::Series* series) const {
  if (series == nullptr || steps_.windows.empty()) return std::nullopt;
  double sum = 0;
  bool any = false;
  for (const Window& w : steps_.windows) {
    if (const auto one = series->increase(w.begin, w.end)) {
      sum += *one;
      any = true;
    }
  }
  if (!any) return std::nullopt;
  return sum;
}

double RunView::process_increase(SignalId signal,
                                 const std::function<bool(model::ProcessId)>& which) const {
  double sum = 0;
  for (model::ProcessId p = 0; p < run_.processes.size(); ++p) {
    if (!run_.processes[p].in_job || !which(p)) continue;
    sum += increase(process(signal, p)).value_or(0);
  }
  return sum;
}

}  // namespace flatout::diagnose
