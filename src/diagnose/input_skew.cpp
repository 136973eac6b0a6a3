// Batches of uneven weight under in-order delivery: a few heavy samples, or one slow worker.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/cursor.h"
#include "diagnose/input.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::Slice;
using model::ThreadId;

namespace {

// A batch this many times as long as the usual one is heavy; heavy ones are the exception.
constexpr double kHeavy = 2.0, kException = 0.3;
// Share of the heavy batches' time in waiting from which something else makes them slow.
constexpr double kStalled = 0.4;
constexpr size_t kFewBatches = 4;  // of a worker
constexpr int kPrefetch = 2;       // PyTorch's default batches in flight per worker

struct Batch {
  double seconds = 0;
  size_t worker = 0;
  const Slice* slice = nullptr;
};

/// What a loader of several workers made, in the order in which it was handed out.
struct Made {
  std::vector<Batch> batches;
  std::map<size_t, std::vector<double>> by_worker;  // seconds of each
  size_t workers = 0;
};

Made made_by(const LoaderView& loader) {
  Made made;
  std::map<ThreadId, size_t> worker_of;
  for (const Slice* s : loader.fetches) {
    const auto [it, fresh] = worker_of.try_emplace(s->thread, worker_of.size());
    if (fresh) continue;  // a worker's first batch warms it up
    made.batches.push_back({to_s(s->length()), it->second, s});
    made.by_worker[it->second].push_back(made.batches.back().seconds);
  }
  made.workers = worker_of.size();
  std::sort(made.batches.begin(), made.batches.end(), [](const Batch& a, const Batch& b) {
    return a.slice->value2 != b.slice->value2 ? a.slice->value2 < b.slice->value2
                                              : a.slice->begin < b.slice->begin;
  });
  return made;
}

/// Seconds per step of a loader that hands batches out in order: each worker makes its own ones,
/// at most `ahead` of them beyond what was consumed.
double in_order(const std::vector<Batch>& batches, size_t workers, size_t ahead, double compute) {
  std::vector<double> free_at(workers, 0);
  std::vector<double> consumed(batches.size(), 0);
  double now = 0;
  for (size_t i = 0; i < batches.size(); ++i) {
    const double sent = i >= ahead ? consumed[i - ahead] : 0;
    double& worker = free_at[batches[i].worker];
    worker = std::max(worker, sent) + batches[i].seconds;
    now = std::max(now, worker);
    consumed[i] = now;  // taken; the next one is asked for now
    now += compute;
  }
  return batches.empty() ? 0 : now / static_cast<double>(batches.size());
}

/// A loader whose work is the same, and spread over its workers. `now`: seconds per step as it is.
double spread_out(std::vector<Batch> batches, size_t workers, size_t ahead, double now,
                  const WhatIf& whatif) {
  double all = 0;
  for (const Batch& b : batches) all += b.seconds;
  const double mean = all / static_cast<double>(batches.size());
  const auto step_with = [&](double seconds) {
    for (Batch& b : batches) b.seconds = seconds;
    return in_order(batches, workers, ahead, whatif.compute());
  };
  // Workers that were idle now make batches beside those that are busy.
  const auto others = [&](double step) { return (mean + whatif.compute()) / step - 1; };
  const double then = step_with(mean);
  return std::max(step_with(mean * whatif.beside(others(then)) / whatif.beside(others(now))),
                  whatif.on_all_cores());
}

/// What threads did in some of their slices.
struct Inside {
  std::optional<model::Where> where;  // the user's hottest line
  double stalled = 0;                 // share of the time that waited for storage or a core
};

Inside look_inside(const RunView& view, const std::vector<const Slice*>& slices) {
  std::unordered_map<ThreadId, Cursor<bool>> cursors;
  for (const Slice* s : slices) cursors[s->thread].add(s->begin, s->end, true);
  for (auto& [thread, cursor] : cursors) cursor.ready();
  Profile profile;
  for (const model::StackReading& r : view.run().readings) {
    const auto it = cursors.find(r.thread);
    if (it == cursors.end() || !it->second.at(r.at, false)) continue;
    Cell cell;
    cell.user = view.stacks().user_frame(r.stack);
    if (cell.user == 0) cell.user = view.stacks().package_frame(r.stack);
    cell.seconds = r.weight_us * 1e-6;
    cell.readings = 1;
    cell.act = act_of(r, view.stacks().traits(r.stack));
    profile.add(cell);
  }
  Inside out;
  const auto any = [](const Cell&) { return true; };
  const double all = profile.seconds(any);
  if (all > 0) {
    out.stalled = profile.seconds([](const Cell& c) {
      return c.act == Act::kRead || c.act == Act::kRunQueue;
    }) / all;
  }
  if (const auto hot = profile.hottest(any, view.run())) {
    out.where = view.stacks().where(hot->frame);
  }
  return out;
}

/// Which batches are heavy, and what they would take if they were not.
struct Skew {
  std::vector<const Slice*> heavy;
  std::vector<Batch> even;  // all batches
  double usual = 0;         // seconds
  bool slow_worker = false;
};

/// Workers that are far slower than the fastest, where these are at most half of them.
std::map<size_t, double> slow_workers(const Made& made) {
  std::map<size_t, double> medians, slow;
  for (const auto& [worker, seconds] : made.by_worker) medians[worker] = median(seconds);
  const double fastest =
      std::ranges::min_element(medians, {}, [](const auto& m) { return m.second; })->second;
  size_t slower = 0;
  for (const auto& [worker, usual] : medians) {
    if (usual <= kHeavy * fastest) continue;
    ++slower;
    if (made.by_worker.at(worker).size() >= kFewBatches) slow[worker] = usual / fastest;
  }
  return 2 * slower <= medians.size() ? slow : std::map<size_t, double>{};
}

Skew skew_of(const Made& made) {
  Skew skew;
  std::vector<double> lengths;
  lengths.reserve(made.batches.size());
  for (const Batch& b : made.batches) lengths.push_back(b.seconds);
  skew.usual = median(lengths);
  skew.even = made.batches;
  const auto slow = slow_workers(made);
  skew.slow_worker = !slow.empty();
  for (Batch& b : skew.even) {
    const auto of_slow = slow.find(b.worker);
    const bool is_heavy =
        skew.slow_worker ? of_slow != slow.end() : b.seconds > kHeavy * skew.usual;
    if (!is_heavy) continue;
    b.seconds = skew.slow_worker ? b.seconds / of_slow->second : skew.usual;
    skew.heavy.push_back(b.slice);
  }
  return skew;
}

/// Whether the other batches are made at the same place as the heavy ones.
bool work_of_all(const RunView& view, const Made& made, const Skew& skew, const Inside& inside) {
  const std::unordered_set<const Slice*> slow(skew.heavy.begin(), skew.heavy.end());
  std::vector<const Slice*> others;
  for (const Batch& b : made.batches) {
    if (!slow.contains(b.slice)) others.push_back(b.slice);
  }
  const Inside usual = look_inside(view, others);
  return inside.where && usual.where && inside.where->function == usual.where->function &&
         inside.where->file == usual.where->file;
}

void add_evidence(Finding& f, const RunView& view, const Made& made, const Skew& skew) {
  std::vector<double> lengths;
  lengths.reserve(skew.heavy.size());
  for (const Slice* s : skew.heavy) lengths.push_back(to_ms(s->length()));
  const auto n = static_cast<int64_t>(made.batches.size());
  const auto heavy = static_cast<int64_t>(skew.heavy.size());
  const double slow = median(lengths);
  evidence(
      f, fmt::format("the usual batch takes {} to make", format_duration(nanos(skew.usual * 1e9))),
      skew.usual * 1e3, "ms", "agent.loader", n);
  evidence(f, fmt::format("the slow ones take {}", format_duration(nanos(slow * 1e6))), slow, "ms",
           "agent.loader", heavy);
  const double share = static_cast<double>(heavy) / static_cast<double>(n);
  evidence(f, fmt::format("{} of all batches are slow", format_percent(share)), share, "ratio",
           "agent.loader", n);
  const double waits = view.steps().part(Part::kInputWait) / view.steps().mean;
  evidence(f, fmt::format("the step waits for input {} of its time", format_percent(waits)), waits,
           "ratio", "timeline", view.steps().count);
}

}  // namespace

void detect_skew(const RunView& view, const WhatIf& whatif, Findings& findings) {
  const LoaderView& loader = view.loader();
  if (!loader.measured || loader.kind == LoaderKind::kSerial) return;
  if (loader.fetches.size() < 16 || findings.has("stall.hang")) return;
  const Made made = made_by(loader);
  // One worker alone has nobody to overtake; more than there are were restarted.
  if (made.workers < 2 || made.batches.size() < 12 ||
      made.workers > static_cast<size_t>(loader.workers)) {
    return;
  }
  const Skew skew = skew_of(made);
  const auto heavy = static_cast<double>(skew.heavy.size());
  if (heavy < 2) return;
  if (!skew.slow_worker && heavy > kException * static_cast<double>(made.batches.size())) return;
  const size_t ahead = made.workers * kPrefetch;
  const double now = in_order(made.batches, made.workers, ahead, whatif.compute());
  const double then = in_order(skew.even, made.workers, ahead, whatif.compute());
  const double wait = view.steps().part(Part::kInputWait);
  const double saved = std::min(now - then, wait);
  // Skew is the cause only if the waits are mostly its doing.
  if (saved < 0.5 * wait) return;
  // Batches that are slow because a disk or a core was busy are not heavy themselves.
  const Inside inside = look_inside(view, skew.heavy);
  if (inside.stalled > kStalled) return;
  // A worker that does what the others do, and more of it, got the heavy samples: they would be
  // work for any other, too. What a slow one alone does would be gone.
  double cost = saved;
  if (skew.slow_worker && work_of_all(view, made, skew, inside)) {
    cost = std::min(saved, now - spread_out(made.batches, made.workers, ahead, now, whatif));
  }
  Finding* f = findings.add(
      "input.worker_skew",
      skew.slow_worker ? "One worker is slower than the others and holds up in-order delivery"
                       : "A few heavy samples hold up in-order delivery",
      0.9, cost);
  if (f == nullptr) return;
  f->where = inside.where;
  add_evidence(*f, view, made, skew);
  remedy(*f, "in_order", "Let batches overtake each other (in_order=False) and prefetch more.");
  remedy(*f, "split", "Split or precompute the heavy samples.");
}

}  // namespace flatout::diagnose
