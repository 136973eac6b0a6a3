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

struct Life {
  TimePoint first, last;
};

/// The most that were alive at a time. One that ends at the moment of another's start does not work
/// beside it.
int side_by_side(const std::vector<Life>& lives) {
  std::vector<std::pair<TimePoint, int>> edges;
  for (const Life& life : lives) {
    edges.emplace_back(life.first, 1);
    edges.emplace_back(life.last, -1);
  }
  std::sort(edges.begin(), edges.end());
  int alive = 0, most = 0;
  for (const auto& [at, change] : edges) most = std::max(most, alive += change);
  return most;
}

}  // namespace

// Where nothing told us who makes the batches: threads that worked while the training thread
// waited for input.
void RunView::find_silent_producers() {
  const double wait = steps_.part(Part::kInputWait);
  if (loader_.measured || loader_.graph || units() <= 0 || wait <= 0 || wait < 0.02 * steps_.mean)
    return;
  PartCursor parts(run_, trainer_, rest_part());
  const TimePoint begin = steps_.windows.front().begin, end = steps_.windows.back().end;
  struct Activity : Life {
    double in_wait = 0, all = 0, seen = 0, passing = 0;
  };
  std::unordered_map<ThreadId, Activity> threads;
  for (const model::StackReading& r : run_.readings) {
    if (r.at >= end) break;
    const auto [known, fresh] = threads.try_emplace(r.thread);
    Activity& a = known->second;
    if (fresh) a.first = r.at;
    a.last = r.at;
    if (r.at < begin) continue;
    const bool waiting = parts.at(r.at) == Part::kInputWait;
    const Traits of_reading = traits(r);
    const double seconds = r.weight_us * 1e-6;
    a.seen += seconds;
    // Who waits for a lock has something to do.
    if (!waits_for_nobody(act_of(r, of_reading)) && (of_reading & kAtMutex) == 0) continue;
    a.all += seconds;
    if ((of_reading & kInQueue) != 0) a.passing += seconds;
    if (waiting) a.in_wait += seconds;
  }
  const double waited = wait * units();
  if (const auto it = threads.find(trainer_);
      it != threads.end() && it->second.in_wait > 0.5 * waited) {
    loader_.kind = LoaderKind::kSerial;
    loader_.busy = 1;
    loader_.batches = std::llround(units());
    loader_.fetch = wait;
    return;
  }
  // Not by its time: where starts are what is waited for, a step on average is longer than most.
  const auto outlives_steps = [&](const Life& life) {
    const auto by_end = [](TimePoint at, const model::Step* s) { return at < s->end; };
    const auto& steady = steps_.steady;
    if (steady.empty()) return life.last - life.first >= std::chrono::seconds(kFewSteps);
    return std::upper_bound(steady.begin(), steady.end(), life.last, by_end) -
               std::upper_bound(steady.begin(), steady.end(), life.first, by_end) >=
           kFewSteps;
  };
  // Processes that replace each other share what one of them would have done; those that live for
  // a step or two are no loader.
  using Brood = std::pair<int32_t, std::string>;  // parent and name
  std::map<Brood, double> of_brood;
  const auto brood_of = [&](ThreadId thread) -> std::optional<Brood> {
    const model::ProcessId p = run_.threads[thread].process;
    if (p == trainer_process_ || p >= run_.processes.size()) return std::nullopt;
    return Brood{run_.processes[p].ppid, run_.processes[p].name};
  };
  for (const auto& [thread, a] : threads) {
    if (thread >= roles_.size() || !outlives_steps(a)) continue;
    if (const auto brood = brood_of(thread)) of_brood[*brood] += a.in_wait;
  }
  const auto& ahead = run_.steps.working_ahead;
  const bool told = !run_.processes[trainer_process_].python &&
                    std::ranges::any_of(run_.slices, [&](const model::Slice& s) {
                      return s.kind == model::SliceKind::kInputWait && s.thread == trainer_;
                    });
  double work = 0, busy = 0;
  std::vector<Life> lives;
  std::unordered_map<model::ProcessId, Life> processes;
  for (const auto& [thread, a] : threads) {
    if (thread == trainer_ || thread >= roles_.size() || a.seen == 0) continue;
    // Under Python these compute for what calls them; a program without may have any thread, and
    // may say itself that it waits for input.
    if (roles_[thread] == Role::kPool && !told &&
        std::find(ahead.begin(), ahead.end(), thread) == ahead.end()) {
      continue;
    }
    const double life = to_s(a.last - a.first);
    const auto brood = brood_of(thread);
    // One of a short life may have no reading in a wait.
    const double part = life / to_s(end - begin);
    const bool one_of_many = brood && of_brood[*brood] > kSomeWait * waited && outlives_steps(a) &&
                             (part < kShortLife || a.in_wait > kSomeWait * waited * part);
    if (a.in_wait < kSomeWait * waited && !one_of_many) continue;
    const model::ProcessId p = run_.threads[thread].process;
    if (p == trainer_process_ && a.passing >= kOnlyPasses * a.all) continue;
    roles_[thread] = Role::kProducer;
    if (p != trainer_process_ && p < producer_process_.size()) {
      producer_process_[p] = true;
      Life& whole = processes.try_emplace(p, a).first->second;
      whole = {std::min(whole.first, a.first), std::max(whole.last, a.last)};
    }
    if (p != trainer_process_) {
      loader_.kind = LoaderKind::kProcesses;
    } else if (loader_.kind == LoaderKind::kNone) {
      loader_.kind = LoaderKind::kThreads;
    }
    lives.push_back(a);
    work += a.all;
    busy += a.seen > 0 ? a.all / a.seen : 0;
  }
  const auto producers = static_cast<double>(lives.size());
  if (lives.empty()) return;
  loader_.workers = std::max(loader_.workers, side_by_side(lives));
  lives.clear();
  for (const auto& [process, life] : processes) {
    lives.push_back(life);
    loader_.born.push_back(life.first);
  }
  loader_.processes = side_by_side(lives);
  std::sort(loader_.born.begin(), loader_.born.end());
  loader_.busy = busy / producers;
  loader_.batches = std::llround(units());
  loader_.fetch = work / units();
}

}  // namespace flatout::diagnose
