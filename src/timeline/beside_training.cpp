#include "timeline/beside_training.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>

#include "base/contains.h"

namespace flatout::timeline {

using model::StackReading;
using model::ThreadState;

namespace {

// Of the training thread's waits, from which others work for it.
constexpr double kMostOfWait = 0.5;
// Of its time: one that computes less than this has others compute, since somebody must.
constexpr double kHardlyAnything = 0.02;
// Of its time, from which what others do while it computes can be told from what they do while it
// only wakes to wait again; and seconds of that.
constexpr double kComputes = 0.05, kSeen = 0.1;
// Of how much others work while it waits.
constexpr double kIdleMeanwhile = 0.3, kBusyMeanwhile = 0.5;

bool works(ThreadState state) {
  return state == ThreadState::kOnCpuPython || state == ThreadState::kOnCpuNative ||
         state == ThreadState::kKernel || state == ThreadState::kRunQueue ||
         state == ThreadState::kDisk;
}

/// Part of the time between its first and last reading that the thread was on a core in user mode.
double computing(const model::Run& run, model::ThreadId thread) {
  const model::EntityId entity = run.entity(model::EntityKind::kThread, run.threads[thread].tid);
  const model::Series* cpu = run.find(model::SignalId::kThreadCpuUser, entity);
  const double length = to_s(run.end - run.begin);
  if (cpu == nullptr || length <= 0) return 0;
  return cpu->increase(run.begin, run.end).value_or(0) * 1e-9 / length;
}

/// The functions that OpenMP's compilers make of a parallel region's body.
bool is_region(std::string_view function) {
  return contains_any(function, {"._omp_fn.", "omp_outlined"});
}

bool is_runtime(std::string_view file) {
  return contains_any(file, {"libgomp", "libomp", "libiomp"});
}

/// What a stack has of OpenMP: the region that its thread works on (0: none), and whether it is in
/// the library, as at the region's end.
struct Parallel {
  model::StringId region = 0;
  bool runtime = false;
};

std::vector<Parallel> by_stack(const model::Run& run) {
  std::vector<Parallel> out(run.stacks.size());
  for (model::StackId stack = 1; stack < run.stacks.size(); ++stack) {
    const model::Frame& frame = run.frames[run.stacks[stack].frame];
    if (run.stacks[stack].parent < stack) out[stack] = out[run.stacks[stack].parent];
    if (is_region(run.string(frame.function))) out[stack].region = frame.function;
    out[stack].runtime = out[stack].runtime || is_runtime(run.string(frame.file));
  }
  return out;
}

}  // namespace

std::vector<model::ThreadId> BesideTraining::working_ahead() const {
  std::vector<model::ThreadId> out;
  if (computes < kComputes || runs < kSeen || waits <= 0) return out;
  if (waits_for_team > waits_elsewhere) return out;
  for (const Thread& t : threads) {
    if (t.in_team) continue;
    if (t.while_runs / runs >= kBusyMeanwhile * t.while_waits / waits) out.push_back(t.thread);
  }
  return out;
}

bool BesideTraining::computes_in_team() const {
  if (waits <= 0 || while_waits < kMostOfWait * waits) return false;
  if (waits_for_team > waits_elsewhere) return true;
  if (computes < kHardlyAnything) return true;
  return computes >= kComputes && runs >= kSeen &&
         while_runs / runs < kIdleMeanwhile * while_waits / waits;
}

BesideTraining beside_training(const model::Run& run, model::ThreadId training_thread) {
  BesideTraining out;
  if (training_thread >= run.threads.size()) return out;
  const model::ProcessId process = run.threads[training_thread].process;
  if (process >= run.processes.size() || run.processes[process].python) return out;
  const std::vector<Parallel> parallel = by_stack(run);
  const auto at = [&](const StackReading& r) {
    return r.stack < parallel.size() ? parallel[r.stack] : Parallel{};
  };
  std::set<model::StringId> shared;  // regions that the training thread has its part in
  std::vector<const StackReading*> own;
  for (const StackReading& r : run.readings) {
    if (r.thread != training_thread) continue;
    own.push_back(&r);
    if (at(r).region != 0) shared.insert(at(r).region);
    if (!works(r.state) && r.stack != 0) {
      const bool team = at(r).runtime || at(r).region != 0;
      (team ? out.waits_for_team : out.waits_elsewhere) += r.weight_us * 1e-6;
    }
    (works(r.state) ? out.runs : out.waits) += r.weight_us * 1e-6;
  }
  std::vector<double> most(own.size());                      // of any other's work at that moment
  std::vector<size_t> places(run.threads.size(), SIZE_MAX);  // in out.threads
  size_t now = 0;  // the training thread's reading of the same moment
  for (const StackReading& r : run.readings) {
    while (now < own.size() && own[now]->at < r.at) ++now;
    if (now == own.size()) break;
    if (r.thread == training_thread || r.thread >= run.threads.size()) continue;
    if (run.threads[r.thread].process != process || !works(r.state)) continue;
    size_t& place = places[r.thread];
    if (place == SIZE_MAX) {
      place = out.threads.size();
      out.threads.push_back({r.thread});
    }
    BesideTraining::Thread& of = out.threads[place];
    of.in_team = of.in_team || shared.contains(at(r).region);
    const double seconds = r.weight_us * 1e-6;
    (works(own[now]->state) ? of.while_runs : of.while_waits) += seconds;
    most[now] = std::max(most[now], seconds);
  }
  for (size_t i = 0; i < own.size(); ++i)
    (works(own[i]->state) ? out.while_runs : out.while_waits) += most[i];
  out.computes = computing(run, training_thread);
  return out;
}

}  // namespace flatout::timeline
