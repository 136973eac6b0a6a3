// Who makes the batches where no hook measures it: feeder threads, pools and processes of the
// job's own.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "diagnose/cursor.h"
#include "diagnose/view.h"

namespace flatout::diagnose {

using model::Part;
using model::ThreadId;

namespace {

// Part of the waits for input in which a thread does something, from which it is waited for.
constexpr double kSomeWait = 0.1;
// Part of what a thread beside the training thread does from which it only passes batches on, as a
// pool's threads in the process that asks it do.
constexpr double kOnlyPasses = 0.8;
// Of the job's steps: processes that live no longer replace each other.
constexpr double kShortLife = 0.3;
// Steps whose ends a process sees if it is part of a loader.
constexpr ptrdiff_t kFewSteps = 4;

}  // namespace

/// Threads that worked while the training thread waited for input, where nothing told who makes the
/// batches.
class RunView::SilentProducers {
 public:
  explicit SilentProducers(RunView& view)
      : view_(view),
        run_(view.run_),
        begin_(view.steps_.windows.front().begin),
        end_(view.steps_.windows.back().end),
        waited_(view.steps_.part(Part::kInputWait) * view.units()),
        told_(!run_.processes[view.trainer_process_].python &&
              std::ranges::any_of(run_.slices, [&](const model::Slice& s) {
                return s.kind == model::SliceKind::kInputWait && s.thread == view.trainer_;
              })) {
    look_at_readings();
    sum_up_broods();
  }

  /// Whether the training thread makes them itself.
  bool is_serial() const {
    const auto it = threads_.find(view_.trainer_);
    return it != threads_.end() && it->second.in_wait > 0.5 * waited_;
  }
  /// Gives those who make them their role, and says in the loader what they do.
  void take();

 private:
  struct Activity : Window {
    double in_wait = 0, all = 0, seen = 0, passing = 0;
  };
  // Processes that replace each other share what one of them would have done; those that live for
  // a step or two are no loader. Parent and name.
  using Brood = std::pair<int32_t, std::string>;

  void look_at_readings();
  void sum_up_broods();
  std::optional<Brood> brood_of(ThreadId thread) const;
  bool outlives_steps(const Window& life) const;
  bool makes_batches(ThreadId thread, const Activity& a) const;

  RunView& view_;
  const model::Run& run_;
  const TimePoint begin_, end_;
  const double waited_;
  const bool told_;  // a program without Python says itself that it waits for input
  std::unordered_map<ThreadId, Activity> threads_;
  std::map<Brood, double> of_brood_;  // seconds in waits
};

void RunView::SilentProducers::look_at_readings() {
  PartCursor parts(run_, view_.trainer_, view_.rest_part());
  for (const model::StackReading& r : run_.readings) {
    if (r.at >= end_) break;
    const auto [known, fresh] = threads_.try_emplace(r.thread);
    Activity& a = known->second;
    if (fresh) a.begin = r.at;
    a.end = r.at;
    if (r.at < begin_) continue;
    const bool waiting = parts.at(r.at) == Part::kInputWait;
    const Traits traits = view_.traits(r);
    const double seconds = r.weight_us * 1e-6;
    a.seen += seconds;
    // Who waits for a lock has something to do.
    if (!waits_for_nobody(act_of(r, traits)) && (traits & kAtMutex) == 0) continue;
    a.all += seconds;
    if ((traits & kInQueue) != 0) a.passing += seconds;
    if (waiting) a.in_wait += seconds;
  }
}

void RunView::SilentProducers::sum_up_broods() {
  for (const auto& [thread, a] : threads_) {
    if (thread >= view_.roles_.size() || !outlives_steps(a)) continue;
    if (const auto brood = brood_of(thread)) of_brood_[*brood] += a.in_wait;
  }
}

std::optional<RunView::SilentProducers::Brood> RunView::SilentProducers::brood_of(
    ThreadId thread) const {
  const model::ProcessId p = run_.threads[thread].process;
  if (p == view_.trainer_process_ || p >= run_.processes.size()) return std::nullopt;
  return Brood{run_.processes[p].ppid, run_.processes[p].name};
}

/// Not by its time: where starts are what is waited for, a step on average is longer than most.
bool RunView::SilentProducers::outlives_steps(const Window& life) const {
  const auto by_end = [](TimePoint at, const model::Step* s) { return at < s->end; };
  const auto& steady = view_.steps_.steady;
  if (steady.empty()) return life.end - life.begin >= std::chrono::seconds(kFewSteps);
  return std::upper_bound(steady.begin(), steady.end(), life.end, by_end) -
             std::upper_bound(steady.begin(), steady.end(), life.begin, by_end) >=
         kFewSteps;
}

bool RunView::SilentProducers::makes_batches(ThreadId thread, const Activity& a) const {
  if (thread == view_.trainer_ || thread >= view_.roles_.size() || a.seen == 0) return false;
  // Under Python these compute for what calls them; a program without may have any thread.
  const auto& ahead = run_.steps.working_ahead;
  if (view_.roles_[thread] == Role::kPool && !told_ &&
      std::find(ahead.begin(), ahead.end(), thread) == ahead.end()) {
    return false;
  }
  if (a.in_wait < kSomeWait * waited_) {
    // One of a short life may have no reading in a wait.
    const auto brood = brood_of(thread);
    const double part = to_s(a.end - a.begin) / to_s(end_ - begin_);
    const bool one_of_many = brood && of_brood_.contains(*brood) &&
                             of_brood_.at(*brood) > kSomeWait * waited_ && outlives_steps(a) &&
                             (part < kShortLife || a.in_wait > kSomeWait * waited_ * part);
    if (!one_of_many) return false;
  }
  return run_.threads[thread].process != view_.trainer_process_ || a.passing < kOnlyPasses * a.all;
}

void RunView::SilentProducers::take() {
  LoaderView& loader = view_.loader_;
  double work = 0, busy = 0;
  std::vector<Window> lives;
  std::unordered_map<model::ProcessId, Window> processes;
  for (const auto& [thread, a] : threads_) {
    if (!makes_batches(thread, a)) continue;
    view_.roles_[thread] = Role::kProducer;
    lives.push_back(a);
    work += a.all;
    busy += a.all / a.seen;
    const model::ProcessId p = run_.threads[thread].process;
    if (p == view_.trainer_process_) {
      if (loader.kind == LoaderKind::kNone) loader.kind = LoaderKind::kThreads;
      continue;
    }
    loader.kind = LoaderKind::kProcesses;
    if (p >= view_.producer_process_.size()) continue;
    view_.producer_process_[p] = true;
    Window& whole = processes.try_emplace(p, a).first->second;
    whole = {std::min(whole.begin, a.begin), std::max(whole.end, a.end)};
  }
  if (lives.empty()) return;
  loader.workers = std::max(loader.workers, side_by_side(lives));
  loader.busy = busy / static_cast<double>(lives.size());
  loader.batches = std::llround(view_.units());
  loader.fetch = work / view_.units();
  lives.clear();
  for (const auto& [process, life] : processes) {
    lives.push_back(life);
    loader.born.push_back(life.begin);
  }
  loader.processes = side_by_side(lives);
  std::sort(loader.born.begin(), loader.born.end());
}

void RunView::find_silent_producers() {
  const double wait = steps_.part(Part::kInputWait);
  if (loader_.measured || loader_.graph || units() <= 0 || wait <= 0 || wait < 0.02 * steps_.mean)
    return;
  SilentProducers producers(*this);
  if (!producers.is_serial()) {
    producers.take();
    return;
  }
  loader_.kind = LoaderKind::kSerial;
  loader_.busy = 1;
  loader_.batches = std::llround(units());
  loader_.fetch = wait;
}

}  // namespace flatout::diagnose
