// Workers and processes that make batches and start anew: every epoch, or every few steps.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <unordered_set>
#include <vector>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/input.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::Slice;
using model::SliceKind;
using model::ThreadId;

namespace {

// Share of the producers' time spent on batches from which they are the bottleneck.
constexpr double kBound = 0.9;

std::optional<model::Where> where_started(const RunView& view) {
  const auto spawns = view.where([](const Cell& c) {
    return c.role == Role::kTrainer && (c.traits & (kInSpawn | kInSubprocess)) != 0;
  });
  return spawns ? spawns : view.where([](const Cell& c) {
    return c.role == Role::kTrainer && c.part == Part::kInputWait && c.slow_step;
  });
}

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
  f->where = where_started(view);
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

/// While workers start they take cores, and their memory is the training process's until it is
/// written to: by the optimizer above all.
double computes_longer(const RunView& view, const model::Step& step) {
  return beyond_usual(view, step,
                      {Part::kForward, Part::kBackward, Part::kOptimizer, Part::kCompute});
}

/// The starts of a loader's workers within the steps, and what each holds up.
class Restarts {
 public:
  explicit Restarts(const RunView& view);
  size_t count() const { return starts_.size(); }
  /// Seconds, of all of them.
  double stall() const;

 private:
  using Slices = std::vector<const Slice*>;

  const model::Step* step_at(TimePoint at) const;
  double stall_of(size_t start) const;

  const RunView& view_;
  Slices starts_, waits_;
  double usual_ = 0;        // wait, seconds
  double first_batch_ = 0;  // even lasting workers make an epoch's first while the step waits
  bool keeps_up_ = false;   // workers that otherwise do are behind for some batches more
};

Restarts::Restarts(const RunView& view) : view_(view), keeps_up_(view.loader().busy < kBound) {
  const TimePoint begin = view.steps().steady.front()->begin;
  const TimePoint end = view.steps().steady.back()->end;
  for (const Slice& s : view.run().slices) {
    if (s.thread != view.trainer() || s.begin < begin || s.end > end) continue;
    if (s.kind == SliceKind::kLoaderStart && s.value > 0) starts_.push_back(&s);
    if (s.kind == SliceKind::kInputWait) waits_.push_back(&s);
  }
  const auto by_begin = [](const Slice* a, const Slice* b) { return a->begin < b->begin; };
  std::sort(starts_.begin(), starts_.end(), by_begin);
  std::sort(waits_.begin(), waits_.end(), by_begin);
  const auto usual = [](const Slices& slices) {
    std::vector<double> lengths;
    for (const Slice* s : slices) lengths.push_back(to_s(s->length()));
    return lengths.empty() ? 0 : median(lengths);
  };
  usual_ = usual(waits_);
  first_batch_ = usual(view.loader().fetches);
}

const model::Step* Restarts::step_at(TimePoint at) const {
  const auto& steady = view_.steps().steady;
  const auto found = std::upper_bound(steady.begin(), steady.end(), at,
                                      [](TimePoint t, const model::Step* s) { return t < s->end; });
  return found != steady.end() && (*found)->begin <= at ? *found : nullptr;
}

double Restarts::stall_of(size_t i) const {
  const Slice& start = *starts_[i];
  const TimePoint until =
      i + 1 < starts_.size() ? starts_[i + 1]->begin : view_.steps().steady.back()->end;
  auto it = std::find_if(waits_.begin(), waits_.end(),
                         [&](const Slice* w) { return w->end >= start.end; });
  const model::Step* step = step_at(start.end);
  // The wait that found the loader empty also ended its workers.
  const Slice* before = it != waits_.begin() ? *std::prev(it) : nullptr;
  const bool empty = before != nullptr && step != nullptr && before->begin >= step->begin &&
                     before->end <= start.begin;
  const double ending = empty ? std::max(0.0, to_s(before->length()) - usual_) : 0;
  // Some loaders are started within the first wait.
  double waited = it != waits_.end() && (*it)->begin <= start.begin ? 0 : to_s(start.length());
  for (bool first = true; it != waits_.end() && (*it)->begin < until; ++it) {
    const double beyond = to_s((*it)->length()) - usual_;
    if (!first && (!keeps_up_ || beyond <= usual_)) break;  // they have caught up
    waited += std::max(0.0, beyond);
    first = false;
  }
  const double computing = step != nullptr ? computes_longer(view_, *step) : 0;
  return std::max(0.0, waited - first_batch_) + ending + computing;
}

double Restarts::stall() const {
  double all = 0;
  for (size_t i = 0; i < starts_.size(); ++i) all += stall_of(i);
  return all;
}

/// Whether at least two generations of workers made batches.
bool workers_change(const RunView& view) {
  std::unordered_set<ThreadId> producers;
  for (const Slice& s : view.run().slices) {
    if (s.kind == SliceKind::kFetch && s.thread != view.trainer()) producers.insert(s.thread);
  }
  const auto workers = static_cast<size_t>(view.loader().workers);
  return workers > 0 && producers.size() >= 2 * workers;
}

}  // namespace

double beyond_usual(const RunView& view, const model::Step& step,
                    std::initializer_list<Part> parts) {
  double longer = 0;
  for (const Part part : parts)
    longer += std::max(0.0, to_s(step.part(part)) - view.steps().part(part));
  return longer;
}

void detect_restart(const RunView& view, Findings& findings) {
  if (view.steps().steady.empty()) return;
  if (!view.loader().measured) {
    detect_new_executors(view, findings);
    return;
  }
  if (!workers_change(view)) return;
  const Restarts restarts(view);
  if (restarts.count() == 0) return;
  const double stall = restarts.stall();
  const double saved = stall / static_cast<double>(view.steps().count);
  Finding* f =
      findings.add("input.worker_restart", "Loader workers start anew every epoch", 0.93, saved);
  if (f == nullptr) return;
  f->where = where_started(view);
  const auto n = static_cast<int64_t>(restarts.count());
  const double each = stall / static_cast<double>(n);
  evidence(*f,
           fmt::format("each start of the workers costs {}", format_duration(nanos(each * 1e9))),
           each * 1e3, "ms", "agent.loader", n);
  evidence(*f, fmt::format("{} starts were seen while training", n), static_cast<double>(n),
           "starts", "agent.loader", n);
  remedy(*f, "persistent_workers", "Keep the workers: persistent_workers=True.");
}

}  // namespace flatout::diagnose
