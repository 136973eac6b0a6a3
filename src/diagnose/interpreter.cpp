// What the training thread burns on the interpreter, its lock and its collector.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/compiling.h"
#include "diagnose/findings.h"
#include "diagnose/input.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Slice;
using model::SliceKind;

namespace {

/// Whether the job itself made the collector run more often than Python's own thresholds (700, 10,
/// 10) would have it.
bool collects_eagerly(const model::Run& run) {
  const auto parts = split(run.fact("gc.threshold"), ',');
  if (parts.size() != 3) return false;
  const auto young = parse_number<double>(parts[0]), middle = parse_number<double>(parts[1]);
  const auto old = parse_number<double>(parts[2]);
  if (!young || !middle || !old || *young <= 0) return false;
  return *young < 700 || *young * *middle * *old < 0.5 * 700 * 10 * 10;
}

void detect_gc(const RunView& view, Findings& findings) {
  if (!view.has_steps()) return;
  double slices = 0, longest = 0, collected = 0;
  int64_t count = 0, generation = 0;
  size_t step = 0;
  const auto& steady = view.steps().steady;
  for (const Slice& s : view.run().slices) {
    if (s.kind != SliceKind::kGc || s.thread >= view.run().threads.size()) continue;
    // A collection on any thread of the process holds the interpreter lock.
    if (view.run().threads[s.thread].process != view.trainer_process()) continue;
    while (step < steady.size() && steady[step]->end < s.end) ++step;
    if (step >= steady.size()) break;
    if (s.begin < steady[step]->begin) continue;
    slices += to_s(s.length());
    longest = std::max(longest, to_s(s.length()));
    collected += static_cast<double>(std::max<int64_t>(s.value2, 0));
    generation = std::max(generation, s.value);
    ++count;
  }
  const auto collecting = [](const Cell& c) {
    return c.role == Role::kTrainer && c.act == Act::kGc;
  };
  const double read = view.per_step(Role::kTrainer, collecting);
  const double n = static_cast<double>(std::max<int64_t>(view.steps().count, 1));
  const bool measured = count > 0;
  const double cost = measured ? slices / n : read;
  if (!measured && view.readings(collecting) < kFewReadings) return;
  Finding* f = findings.add("cpu.gc", "Garbage-collector pauses stall the steps", 0.95, cost);
  if (f == nullptr) return;
  if (collects_eagerly(view.run())) f->where = setting_line(view.run(), "gc.threshold.set_at");
  if (!f->where) f->where = view.where(collecting);
  evidence(*f, fmt::format("collecting takes {} a step", ms(cost)), cost * 1e3, "ms",
           measured ? "agent.gc" : "stacks", measured ? count : view.readings(collecting));
  if (measured) {
    evidence(*f, fmt::format("the longest pause took {}", ms(longest)), longest * 1e3, "ms",
             "agent.gc", count);
    evidence(*f, fmt::format("up to generation {}", generation), static_cast<double>(generation),
             "generation", "agent.gc", count);
    evidence(*f, fmt::format("{} objects were freed by it", format_number(collected)), collected,
             "objects", "agent.gc", count);
  }
  remedy(*f, "gc_freeze", "Call gc.freeze() after start-up, raise gc.set_threshold().");
}

/// Threads of the training process that are never at rest: what they do is not made for a step, and
/// no more of it comes with more steps.
struct Restless {
  double threads = 0;
  double share = 0;  // of what such threads and others beside the steps hold the lock
};

Restless never_at_rest(const RunView& view) {
  constexpr double kNever = 0.9;
  struct Time {
    double seen = 0, busy = 0, holding = 0;
  };
  std::unordered_map<model::ThreadId, Time> threads;
  const auto& windows = view.steps().windows;
  size_t window = 0;
  for (const model::StackReading& r : view.run().readings) {
    while (window < windows.size() && windows[window].end <= r.at) ++window;
    if (window == windows.size()) break;
    if (r.at < windows[window].begin || view.role(r.thread) != Role::kHelper) continue;
    if (view.run().threads[r.thread].process != view.trainer_process()) continue;
    const Act act = act_of(r, view.stacks().traits(r.stack));
    Time& time = threads[r.thread];
    const double seconds = r.weight_us * 1e-6;
    time.seen += seconds;
    if (on_cpu(act) || act == Act::kGil || act == Act::kRunQueue) time.busy += seconds;
    if (act == Act::kPython) time.holding += seconds;
  }
  Restless out;
  double all = 0;
  for (const auto& [thread, time] : threads) {
    all += time.holding;
    if (time.seen < kNever * view.seconds() || time.busy < kNever * time.seen) continue;
    ++out.threads;
    out.share += time.holding;
  }
  if (all > 0) out.share /= all;
  return out;
}

/// Of `wait` per step what is saved where the work that holds the lock moves to processes: there it
/// takes as long, on the cores that there are.
double saved_elsewhere(const RunView& view, double wait) {
  const Restless restless = never_at_rest(view);
  const double aside = view.per_step(Role::kProducer, holds_gil) +
                       view.per_step(Role::kHelper, holds_gil) * (1 - restless.share);
  const double own = view.steps().mean - wait;
  const double cores = std::max(view.cpu().usable - restless.threads, 1.0);
  const double then =
      std::max(own, (own + aside) / cores) * WhatIf(view).beside(restless.threads + aside / own);
  return std::clamp(view.steps().mean - then, 0.0, wait);
}

/// The training thread waits for the interpreter lock that other threads of its process hold.
void detect_gil(const RunView& view, Findings& findings) {
  if (findings.has("input.gil")) return;
  const auto waits = [](const Cell& c) { return c.role == Role::kTrainer && c.act == Act::kGil; };
  const int64_t readings = view.readings(waits);
  if (readings < kFewReadings) return;
  const double wait = view.per_step(Role::kTrainer, waits);
  // Told already.
  if (findings.has("input.collate") && gil_for_passing(view) > 0.5 * wait) return;
  Finding* f =
      findings.add("input.gil", "Other threads hold the GIL that the training thread wants", 0.9,
                   view.has_steps() ? saved_elsewhere(view, wait) : wait);
  if (f == nullptr) return;
  f->where = view.where(holds_gil);
  evidence(*f, fmt::format("the training thread waits {} a step for the GIL", ms(wait)), wait * 1e3,
           "ms", "stacks", readings);
  unlock(view, *f, "Move that work into processes, or into code that releases the GIL.");
}

}  // namespace

void detect_interpreter(const RunView& view, Findings& findings) {
  detect_gil(view, findings);
  detect_fit_calls(view, findings);
  detect_compiling(view, findings);
  detect_eager(view, findings);
  detect_python_bound(view, findings);
  detect_gc(view, findings);
}

}  // namespace flatout::diagnose
