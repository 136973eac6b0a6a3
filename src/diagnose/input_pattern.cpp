// Causes of input waits that show in their pattern over batches: a few heavy batches or one slow
// worker under in-order delivery, workers that start anew every epoch, and the border to the
// device.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/cursor.h"
#include "diagnose/input.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::Slice;
using model::SliceKind;
using model::ThreadId;

namespace {

// A batch this many times as long as the usual one is heavy; heavy ones are the exception.
constexpr double kHeavy = 2.0, kException = 0.3;
// Share of the heavy batches' time in waiting from which something else makes them slow.
constexpr double kStalled = 0.4;
constexpr int kPrefetch = 2;  // PyTorch's default batches in flight per worker

struct Batch {
  double seconds = 0;
  size_t worker = 0;
  const Slice* slice = nullptr;
};

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

}  // namespace

void detect_skew(const RunView& view, const WhatIf& whatif, Findings& findings) {
  const LoaderView& loader = view.loader();
  if (!loader.measured || loader.kind == LoaderKind::kSerial) return;
  if (loader.fetches.size() < 16 || findings.has("stall.hang")) return;
  std::map<ThreadId, size_t> worker_of;
  std::vector<Batch> batches;
  std::map<size_t, std::vector<double>> by_worker;
  for (const Slice* s : loader.fetches) {
    const auto [it, fresh] = worker_of.try_emplace(s->thread, worker_of.size());
    if (fresh) continue;  // a worker's first batch warms it up
    batches.push_back({to_s(s->length()), it->second, s});
    by_worker[it->second].push_back(batches.back().seconds);
  }
  const size_t workers = worker_of.size();
  // One worker alone has nobody to overtake.
  if (workers < 2 || batches.size() < 12 || workers > static_cast<size_t>(loader.workers))
    return;  // restarted
  std::sort(batches.begin(), batches.end(), [](const Batch& a, const Batch& b) {
    return a.slice->value2 != b.slice->value2 ? a.slice->value2 < b.slice->value2
                                              : a.slice->begin < b.slice->begin;
  });
  std::vector<double> lengths;
  lengths.reserve(batches.size());
  for (const Batch& b : batches) lengths.push_back(b.seconds);
  const double usual = median(lengths);
  std::vector<double> medians;
  medians.reserve(by_worker.size());
  for (const auto& [worker, v] : by_worker) medians.push_back(median(v));
  const double fastest = *std::min_element(medians.begin(), medians.end());

  std::vector<Batch> even = batches;
  std::vector<const Slice*> heavy;
  bool slow_worker = false;
  size_t w = 0;
  for (const auto& [worker, v] : by_worker) {
    if (by_worker.size() > 1 && v.size() >= 4 && medians[w] > kHeavy * fastest &&
        static_cast<size_t>(std::count_if(medians.begin(), medians.end(),
                                          [&](double m) { return m > kHeavy * fastest; })) *
                2 <=
            medians.size()) {
      slow_worker = true;
      for (size_t i = 0; i < even.size(); ++i) {
        if (even[i].worker != worker) continue;
        even[i].seconds *= fastest / medians[w];
        heavy.push_back(batches[i].slice);
      }
    }
    ++w;
  }
  if (!slow_worker) {
    for (size_t i = 0; i < even.size(); ++i) {
      if (even[i].seconds > kHeavy * usual) {
        even[i].seconds = usual;
        heavy.push_back(batches[i].slice);
      }
    }
    if (static_cast<double>(heavy.size()) > kException * static_cast<double>(even.size())) return;
  }
  if (heavy.size() < 2) return;
  const size_t ahead = workers * kPrefetch;
  const double compute = whatif.compute();
  const double now = in_order(batches, workers, ahead, compute);
  const double then = in_order(even, workers, ahead, compute);
  const double wait = view.steps().part(Part::kInputWait);
  const double saved = std::min(now - then, wait);
  // Skew is the cause only if the waits are mostly its doing.
  if (saved < 0.5 * wait) return;
  // Batches that are slow because a disk or a core was busy are not heavy themselves.
  const Inside inside = look_inside(view, heavy);
  if (inside.stalled > kStalled) return;
  // A worker that does what the others do, and more of it, got the heavy samples: they would be
  // work for any other, too. What a slow one alone does would be gone.
  double cost = saved;
  if (slow_worker) {
    const std::unordered_set<const Slice*> slow(heavy.begin(), heavy.end());
    std::vector<const Slice*> others;
    for (const Batch& b : batches) {
      if (slow.count(b.slice) == 0) others.push_back(b.slice);
    }
    const Inside usual_work = look_inside(view, others);
    if (inside.where && usual_work.where && inside.where->function == usual_work.where->function &&
        inside.where->file == usual_work.where->file) {
      cost = std::min(saved, now - spread_out(batches, workers, ahead, now, whatif));
    }
  }
  Finding* f = findings.add(
      "input.worker_skew",
      slow_worker ? "One worker is slower than the others and holds up in-order delivery"
                  : "A few heavy samples hold up in-order delivery",
      0.9, cost);
  if (f == nullptr) return;
  f->where = inside.where;
  std::vector<double> heavy_lengths;
  heavy_lengths.reserve(heavy.size());
  for (const Slice* s : heavy) heavy_lengths.push_back(to_ms(s->length()));
  const auto n = static_cast<int64_t>(batches.size());
  const double slow = median(heavy_lengths);
  evidence(*f, fmt::format("the usual batch takes {} to make", format_duration(nanos(usual * 1e9))),
           usual * 1e3, "ms", "agent.loader", n);
  evidence(*f, fmt::format("the slow ones take {}", format_duration(nanos(slow * 1e6))), slow, "ms",
           "agent.loader", static_cast<int64_t>(heavy.size()));
  const double share = static_cast<double>(heavy.size()) / static_cast<double>(batches.size());
  evidence(*f, fmt::format("{} of all batches are slow", format_percent(share)), share, "ratio",
           "agent.loader", n);
  evidence(*f,
           fmt::format("the step waits for input {} of its time",
                       format_percent(wait / view.steps().mean)),
           wait / view.steps().mean, "ratio", "timeline", view.steps().count);
  remedy(*f, "in_order", "Let batches overtake each other (in_order=False) and prefetch more.");
  remedy(*f, "split", "Split or precompute the heavy samples.");
}

// Share of the producers' time spent on batches from which they are the bottleneck.
constexpr double kBound = 0.9;

/// Processes that nobody measures and that replace each other every few steps, as those of an
/// executor that is made for each epoch.
void detect_new_executors(const RunView& view, Findings& findings) {
  const LoaderView& loader = view.loader();
  if (loader.born.empty() || loader.born.size() < 2 * static_cast<size_t>(loader.processes)) return;
  double stall = 0;
  int64_t starts = 0;
  auto born = loader.born.begin();
  TimePoint after = view.steps().steady.front()->begin;
  for (const model::Step* s : view.steps().steady) {
    while (born != loader.born.end() && *born < after) ++born;
    const bool starting = born != loader.born.end() && *born < s->end;
    after = s->end;
    if (!starting) continue;
    ++starts;
    stall += std::max(0.0, to_s(s->length()) - view.steps().median);
  }
  if (starts < 2) return;
  Finding* f = findings.add("input.worker_restart", "Processes that make batches start anew", 0.85,
                            stall / static_cast<double>(view.steps().count));
  if (f == nullptr) return;
  const auto spawns = [](const Cell& c) {
    return c.role == Role::kTrainer && (c.traits & (kInSpawn | kInSubprocess)) != 0;
  };
  f->where = view.where(spawns);
  if (!f->where) {
    f->where = view.where([](const Cell& c) {
      return c.role == Role::kTrainer && c.part == Part::kInputWait && c.slow_step;
    });
  }
  evidence(
      *f,
      fmt::format("{} processes made batches, {} at a time", loader.born.size(), loader.processes),
      static_cast<double>(loader.born.size()), "processes", "stacks", starts);
  evidence(
      *f,
      fmt::format("a step with new ones takes {} more", ms(stall / static_cast<double>(starts))),
      stall / static_cast<double>(starts) * 1e3, "ms", "timeline", starts);
  remedy(*f, "persistent_workers", "Make the pool of processes once and keep it.");
}

double beyond_usual(const RunView& view, const model::Step& step,
                    std::initializer_list<Part> parts) {
  double longer = 0;
  for (const Part part : parts)
    longer += std::max(0.0, to_s(step.part(part)) - view.steps().part(part));
  return longer;
}

void detect_restart(const RunView& view, Findings& findings) {
  const model::Run& run = view.run();
  if (view.steps().steady.empty()) return;
  if (!view.loader().measured) {
    detect_new_executors(view, findings);
    return;
  }
  const TimePoint begin = view.steps().steady.front()->begin;
  const TimePoint end = view.steps().steady.back()->end;
  std::unordered_set<ThreadId> producers;
  for (const Slice& s : run.slices) {
    if (s.kind == SliceKind::kFetch && s.thread != view.trainer()) producers.insert(s.thread);
  }
  const LoaderView& loader = view.loader();
  if (loader.workers == 0 || producers.size() < 2 * static_cast<size_t>(loader.workers)) return;
  std::vector<const Slice*> starts, waits;
  for (const Slice& s : run.slices) {
    if (s.thread != view.trainer() || s.begin < begin || s.end > end) continue;
    if (s.kind == SliceKind::kLoaderStart && s.value > 0) starts.push_back(&s);
    if (s.kind == SliceKind::kInputWait) waits.push_back(&s);
  }
  if (starts.empty()) return;
  const auto by_begin = [](const Slice* a, const Slice* b) { return a->begin < b->begin; };
  std::sort(waits.begin(), waits.end(), by_begin);
  std::vector<double> lengths, fetches;
  for (const Slice* w : waits) lengths.push_back(to_s(w->length()));
  for (const Slice* s : loader.fetches) fetches.push_back(to_s(s->length()));
  const double usual = lengths.empty() ? 0 : median(lengths);
  const double first_batch = fetches.empty() ? 0 : median(fetches);
  // Workers that otherwise keep up are behind for some batches more.
  const bool keeps_up = loader.busy < kBound;
  std::sort(starts.begin(), starts.end(), by_begin);
  const auto& steady = view.steps().steady;
  const auto step_at = [&](TimePoint at) -> const model::Step* {
    const auto found =
        std::upper_bound(steady.begin(), steady.end(), at,
                         [](TimePoint t, const model::Step* s) { return t < s->end; });
    return found != steady.end() && (*found)->begin <= at ? *found : nullptr;
  };
  // While workers start they take cores, and their memory is the training process's until it is
  // written to: by the optimizer above all.
  const auto computes_longer = [&](const model::Step* step) {
    if (step == nullptr) return 0.0;
    return beyond_usual(view, *step,
                        {Part::kForward, Part::kBackward, Part::kOptimizer, Part::kCompute});
  };
  double stall = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    const Slice& start = *starts[i];
    const TimePoint until = i + 1 < starts.size() ? starts[i + 1]->begin : end;
    auto it = std::find_if(waits.begin(), waits.end(),
                           [&](const Slice* w) { return w->end >= start.end; });
    const model::Step* step = step_at(start.end);
    // The wait that found the loader empty also ended its workers.
    const bool empty = it != waits.begin() && step != nullptr &&
                       (*std::prev(it))->begin >= step->begin &&
                       (*std::prev(it))->end <= start.begin;
    const double ending = empty ? std::max(0.0, to_s((*std::prev(it))->length()) - usual) : 0;
    // Some loaders are started within the first wait.
    double one = it != waits.end() && (*it)->begin <= start.begin ? 0 : to_s(start.length());
    for (bool first = true; it != waits.end() && (*it)->begin < until; ++it) {
      const double beyond = to_s((*it)->length()) - usual;
      if (!first && (!keeps_up || beyond <= usual)) break;  // they have caught up
      one += std::max(0.0, beyond);
      first = false;
    }
    // Even lasting workers have to make an epoch's first batch while the step waits.
    stall += std::max(0.0, one - first_batch) + ending + computes_longer(step);
  }
  const double saved = stall / static_cast<double>(view.steps().count);
  Finding* f =
      findings.add("input.worker_restart", "Loader workers start anew every epoch", 0.93, saved);
  if (f == nullptr) return;
  f->where = view.where([](const Cell& c) {
    return c.role == Role::kTrainer && (c.traits & (kInSpawn | kInSubprocess)) != 0;
  });
  if (!f->where) {
    f->where = view.where([](const Cell& c) {
      return c.role == Role::kTrainer && c.part == Part::kInputWait && c.slow_step;
    });
  }
  const auto n = static_cast<int64_t>(starts.size());
  const double each = stall / static_cast<double>(n);
  evidence(*f,
           fmt::format("each start of the workers costs {}", format_duration(nanos(each * 1e9))),
           each * 1e3, "ms", "agent.loader", n);
  evidence(*f, fmt::format("{} starts were seen while training", n), static_cast<double>(n),
           "starts", "agent.loader", n);
  remedy(*f, "persistent_workers", "Keep the workers: persistent_workers=True.");
}

Fed fed(const RunView& view) {
  Fed out;
  for (const Slice& s : view.run().slices) {
    if (s.kind != SliceKind::kFeed || s.thread != view.trainer()) continue;
    ++out.calls;
    out.bytes += static_cast<double>(s.value);
  }
  return out;
}

bool fed_by_hand(const RunView& view) {
  const int64_t calls = fed(view).calls;
  return calls > 0 && 2 * calls >= view.steps().count;
}

double fresh_for_feeding(const RunView& view) {
  const Fed all = fed(view);
  const auto ours = [&](model::ProcessId p) { return p == view.trainer_process(); };
  const double faults = view.process_increase(model::SignalId::kProcMinorFaults, ours) /
                        static_cast<double>(view.steps().count);
  if (all.bytes <= 0 || faults <= 0) return 0;
  const double kernel =
      view.trainer_in(Part::kForward, [](const Cell& c) { return in_kernel(c.act); });
  const double pages = all.bytes / static_cast<double>(all.calls) / kOsPageBytes;
  return std::min(1.0, pages / faults) * kernel;
}

void detect_boundary(const RunView& view, Findings& findings) {
  const model::Run& run = view.run();
  const double n = static_cast<double>(view.steps().count);
  double feed = 0, copies = 0, pageable = 0, blocking = 0, bytes = 0;
  int64_t feeds = 0, count = 0;
  size_t step = 0;
  const auto& steady = view.steps().steady;
  for (const Slice& s : run.slices) {
    if (s.kind != SliceKind::kFeed && s.kind != SliceKind::kH2d) continue;
    while (step < steady.size() && steady[step]->end < s.end) ++step;
    if (step >= steady.size()) break;
    if (s.begin < steady[step]->begin || s.thread != view.trainer()) continue;
    const double length = to_s(s.length());
    if (s.kind == SliceKind::kFeed) {
      feed += length;
      ++feeds;
      continue;
    }
    copies += length;
    ++count;
    bytes += static_cast<double>(s.value);
    if ((s.value2 & 1) != 0) pageable += length;
    if ((s.value2 & 3) != 0) blocking += length;
  }
  feed = feed / n + (feeds > 0 ? fresh_for_feeding(view) : 0);
  // The loop makes the batches itself, too.
  if (fed_by_hand(view) && !view.loader().measured) feed += view.steps().part(Part::kInputWait);
  if (Finding* f =
          findings.add("input.feed_dict", "Batches enter TensorFlow through Python", 0.9, feed)) {
    f->where = view.where([](const Cell& c) {
      return c.role == Role::kTrainer && (c.part == Part::kInputWait || c.part == Part::kOther);
    });
    evidence(*f, fmt::format("feeding takes {} a step", format_duration(nanos(feed * 1e9))),
             feed * 1e3, "ms", "agent.feed", feeds);
    remedy(*f, "dataset", "Build the input with the Dataset API and native operations.");
  }
  if (Finding* f = findings.add("input.h2d_sync",
                                pageable > 0.5 * copies
                                    ? "Copies to the device come from pageable memory and block"
                                    : "Copies to the device block the step",
                                0.9, blocking / n)) {
    f->where =
        view.where([](const Cell& c) { return c.role == Role::kTrainer && c.part == Part::kH2d; });
    evidence(*f, fmt::format("copies block {} a step", format_duration(nanos(blocking / n * 1e9))),
             blocking / n * 1e3, "ms", "agent.h2d", count);
    evidence(*f, fmt::format("{} are copied a step", format_bytes(bytes / n)), bytes / n, "bytes",
             "agent.h2d", count);
    remedy(*f, "pin_memory", "Use pin_memory=True and copy with non_blocking=True.");
  }
}

}  // namespace flatout::diagnose
