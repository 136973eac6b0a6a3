#include "timeline/step_ends.h"

#include <algorithm>
#include <map>
#include <set>

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

// A pattern of several optimizers longer than this is no pattern.
constexpr size_t kMaxCycle = 16;
// Steps of one optimizer on end, in the mean, from which it does not take turns with others.
constexpr size_t kLongRun = 3;

struct ThreadCounts {
  std::map<SliceKind, size_t> of;
  size_t get(SliceKind kind) const {
    const auto it = of.find(kind);
    return it == of.end() ? 0 : it->second;
  }
};

// Optimizer calls that belong together: one after the other without a backward pass between.
struct Group {
  TimePoint begin, end;
  std::set<int64_t> ids;
  bool after_wait = false;  // the loop has waited for input since the group before
};

std::vector<Group> group_optimizers(std::span<const Slice> slices, SliceKind anchor) {
  std::vector<Group> groups;
  bool waited = false, backward = false;
  for (const Slice& slice : slices) {
    if (slice.kind == SliceKind::kInputWait) waited = true;
    if (slice.kind == SliceKind::kBackward && anchor != SliceKind::kBackward && !groups.empty()) {
      if (slice.begin >= groups.back().end) backward = true;
      // Optimizers that step inside the backward pass: the step ends with it.
      if (slice.begin <= groups.back().begin) groups.back().end = slice.end;
    }
    if (slice.kind != anchor) continue;
    const bool around = !groups.empty() && slice.begin <= groups.back().begin;
    if (around ||
        (!groups.empty() && !waited && !backward && !groups.back().ids.contains(slice.value))) {
      groups.back().end = std::max(groups.back().end, slice.end);
      groups.back().begin = std::min(groups.back().begin, slice.begin);
      groups.back().ids.insert(slice.value);
    } else {
      groups.push_back({slice.begin, slice.end, {slice.value}, waited || groups.empty()});
    }
    waited = backward = false;
  }
  return groups;
}

// Several optimizers (a GAN): which groups end a step.
std::vector<Group> join_cycles(std::vector<Group> groups) {
  const size_t n = groups.size();
  size_t changes = 0, waits = 0;
  for (size_t i = 1; i < n; ++i) {
    changes += groups[i].ids != groups[i - 1].ids;
    waits += groups[i].after_wait;
  }
  if (changes * 10 < n) return groups;  // the same all along, or one phase after another

  if (waits * 10 >= n * 3) {
    // A batch is what a step eats: what is done between two waits is one step.
    std::vector<Group> joined;
    for (Group& group : groups) {
      if (joined.empty() || group.after_wait) {
        joined.push_back(std::move(group));
      } else {
        joined.back().end = group.end;
        joined.back().ids.merge(group.ids);
      }
    }
    groups = std::move(joined);
  }
  std::map<std::set<int64_t>, size_t> kinds, runs;
  for (size_t i = 0; i < groups.size(); ++i) {
    ++kinds[groups[i].ids];
    if (i == 0 || groups[i].ids != groups[i - 1].ids) ++runs[groups[i].ids];
  }
  if (kinds.size() < 2 || kinds.size() > kMaxCycle) return groups;
  // Optimizers that take turns do so step by step, one of them at least: a few-shot learner that
  // makes a new one for each episode does not.
  const bool turns = std::ranges::any_of(
      kinds, [&](const auto& kind) { return kind.second < kLongRun * runs[kind.first]; });
  if (!turns) return groups;

  // Each optimizer with a batch of its own, in turn: a step is one full cycle. The rarest ends it
  // (five steps of the critic, one of the generator); where all are as frequent, the first to
  // appear begins it.
  std::set<int64_t> seen;
  size_t most = 0, least = groups.size();
  const std::set<int64_t>* rarest = nullptr;
  for (const auto& [ids, count] : kinds) {
    for (const int64_t id : ids) {
      if (!seen.insert(id).second) return groups;  // {D} and {D, G}: each is a step
    }
    if (count < least) rarest = &ids;
    most = std::max(most, count);
    least = std::min(least, count);
  }
  const bool balanced = (most - least) * 4 <= most;
  const std::set<int64_t> first = groups.front().ids;
  std::vector<Group> cycles;
  size_t length = 0;  // groups in the last cycle
  bool fresh = true;
  for (const Group& group : groups) {
    if (balanced && group.ids == first) fresh = true;
    if (fresh) {
      cycles.push_back(group);
      length = 1;
    } else {
      cycles.back().end = group.end;
      ++length;
    }
    fresh = !balanced && group.ids == *rarest;
  }
  if (cycles.size() * kMaxCycle < groups.size()) return groups;
  const bool complete = balanced ? length >= kinds.size() : fresh;
  if (!complete) cycles.pop_back();
  return cycles;
}

// Steps of which the optimizer was skipped (a gradient scaler that found infinities) leave several
// batches' backward passes before the next one: they end where their last one does.
void split_skipped(std::span<const Slice> slices, std::vector<StepEnd>& ends) {
  struct Backward {
    TimePoint end;
    bool after_wait;
  };
  std::vector<std::vector<Backward>> backwards(ends.size());
  std::vector<const Slice*> order;
  for (const Slice& slice : slices) {
    if (slice.kind == SliceKind::kBackward || slice.kind == SliceKind::kInputWait) {
      order.push_back(&slice);
    }
  }
  std::ranges::stable_sort(order, {}, &Slice::begin);
  size_t step = 0;
  TimePoint last_end{};
  bool waited = false;
  for (const Slice* slice : order) {
    if (slice->kind == SliceKind::kInputWait) waited = true;
    if (slice->kind == SliceKind::kInputWait || slice->begin < last_end) continue;  // nested
    last_end = slice->end;
    while (step < ends.size() && ends[step].at < slice->end) ++step;
    if (step == ends.size()) break;
    backwards[step].push_back({slice->end, waited});
    waited = false;
  }
  std::map<size_t, size_t> counts;
  for (const auto& b : backwards) ++counts[b.size()];
  const auto usual = std::ranges::max_element(counts, {}, [](const auto& c) { return c.second; });
  if (usual == counts.end() || usual->first == 0 || usual->second * 10 < ends.size() * 6) return;
  const size_t m = usual->first;
  std::vector<StepEnd> out;
  int64_t shift = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    const std::vector<Backward>& own = backwards[i];
    bool split = i > 0 && own.size() > m && own.size() % m == 0 && !ends[i].lost;
    for (size_t k = m; split && k < own.size(); k += m) split = own[k].after_wait;
    for (size_t k = m; split && k < own.size(); k += m) {
      out.push_back({own[k - 1].end, ends[i].index + shift++, false});
    }
    out.push_back({ends[i].at, ends[i].index + shift, ends[i].lost});
  }
  ends = std::move(out);
}

std::vector<StepEnd> ends_of_markers(std::span<const Slice> slices) {
  std::vector<StepEnd> ends;
  for (const Slice& slice : slices) {
    if (slice.kind != SliceKind::kStep) continue;
    if (!ends.empty() && slice.end <= ends.back().at) continue;
    StepEnd end{slice.end, slice.value, false};
    if (!ends.empty()) {
      // A job that does not count (or starts again) is counted for.
      if (end.index <= ends.back().index) end.index = ends.back().index + 1;
      end.lost = end.index > ends.back().index + 1;
    }
    ends.push_back(end);
  }
  return ends;
}

// Where the loop only waits for input (or runs forward only): a step goes from one to the next.
std::vector<StepEnd> ends_of_begins(std::span<const Slice> slices, SliceKind anchor) {
  std::vector<StepEnd> ends;
  std::vector<const Slice*> order;
  for (const Slice& slice : slices) {
    if (slice.kind == anchor) order.push_back(&slice);
  }
  std::ranges::stable_sort(order, {}, &Slice::begin);
  TimePoint last_end{};
  for (const Slice* slice : order) {
    if (slice->begin < last_end) continue;  // nested
    last_end = slice->end;
    ends.push_back({slice->begin, static_cast<int64_t>(ends.size()) - 1, false});
  }
  return ends;
}

// One optimizer counts its steps itself: what the recording misses shows.
std::vector<StepEnd> ends_of_one_optimizer(std::span<const Slice> slices) {
  std::vector<StepEnd> ends;
  std::vector<int64_t> advances;
  int64_t last_count = 0;
  for (const Slice& slice : slices) {
    if (slice.kind != SliceKind::kOptimizer) continue;
    if (!ends.empty() && slice.end <= ends.back().at) continue;
    const int64_t advance = slice.value2 > last_count ? slice.value2 - last_count : 1;
    last_count = slice.value2;
    advances.push_back(advance);
    ends.push_back({slice.end, 0, false});
  }
  const auto ones = std::ranges::count(advances, 1);
  const bool counts = ones * 2 > static_cast<std::ptrdiff_t>(advances.size());
  for (size_t i = 1; i < ends.size(); ++i) {
    const int64_t advance = counts ? std::min(advances[i], int64_t{1} << 40) : 1;
    ends[i].index = ends[i - 1].index + advance;
    ends[i].lost = advance > 1;
  }
  return ends;
}

}  // namespace

std::optional<TrainingThread> find_training_thread(const Run& run) {
  std::vector<ThreadCounts> counts(run.threads.size());
  std::vector<bool> worker(run.processes.size(), false);
  for (const Slice& slice : run.slices) {
    if (slice.thread >= counts.size()) continue;
    ++counts[slice.thread].of[slice.kind];
    const ProcessId process = run.threads[slice.thread].process;
    if (slice.kind == SliceKind::kWorker && process < worker.size()) worker[process] = true;
  }
  struct Anchor {
    SliceKind kind;
    size_t least;
  };
  constexpr Anchor kAnchors[] = {{SliceKind::kStep, 2},     {SliceKind::kOptimizer, 1},
                                 {SliceKind::kBackward, 2}, {SliceKind::kInputWait, 5},
                                 {SliceKind::kForward, 5},  {SliceKind::kFetch, 5},
                                 {SliceKind::kFeed, 5}};
  for (const Anchor& anchor : kAnchors) {
    size_t most = 0;
    const auto usable = [&](ThreadId t) {
      const ProcessId process = run.threads[t].process;
      const bool fits = process >= worker.size() || !worker[process] ||
                        anchor.kind == SliceKind::kOptimizer || anchor.kind == SliceKind::kStep;
      return fits && counts[t].get(anchor.kind) >= anchor.least;
    };
    for (ThreadId t = 0; t < counts.size(); ++t) {
      if (usable(t)) most = std::max(most, counts[t].get(anchor.kind));
    }
    if (most == 0) continue;
    std::optional<ThreadId> chosen;
    bool chosen_main = false;
    for (ThreadId t = 0; t < counts.size(); ++t) {
      if (!usable(t) || counts[t].get(anchor.kind) * 2 < most) continue;
      const ProcessId process = run.threads[t].process;
      const bool main = process < run.processes.size() && run.processes[process].main;
      if (!chosen || (main && !chosen_main)) {
        chosen = t;
        chosen_main = main;
      }
    }
    return TrainingThread{*chosen, anchor.kind};
  }
  return std::nullopt;
}

std::vector<StepEnd> find_step_ends(std::span<const Slice> slices, SliceKind anchor) {
  if (anchor == SliceKind::kStep) return ends_of_markers(slices);
  if (anchor != SliceKind::kOptimizer && anchor != SliceKind::kBackward) {
    return ends_of_begins(slices, anchor);
  }
  std::vector<StepEnd> ends;
  std::set<int64_t> ids;
  for (const Slice& slice : slices) {
    if (slice.kind == anchor) ids.insert(slice.value);
  }
  if (anchor == SliceKind::kOptimizer && ids.size() == 1) {
    // One optimizer counts its steps itself: what the recording misses shows.
    ends = ends_of_one_optimizer(slices);
  } else {
    std::vector<Group> groups = group_optimizers(slices, anchor);
    if (anchor == SliceKind::kBackward) {
      // No optimizer to be seen: all backward passes on one batch are a step.
      const size_t waits =
          static_cast<size_t>(std::ranges::count(groups, true, &Group::after_wait));
      if (waits * 2 > groups.size()) {
        std::vector<Group> joined;
        for (Group& group : groups) {
          if (joined.empty() || group.after_wait) {
            joined.push_back(group);
          } else {
            joined.back().end = group.end;
          }
        }
        groups = std::move(joined);
      }
    } else {
      groups = join_cycles(std::move(groups));
    }
    for (const Group& group : groups) {
      if (!ends.empty() && group.end <= ends.back().at) continue;
      ends.push_back({group.end, static_cast<int64_t>(ends.size()), false});
    }
  }
  if (anchor == SliceKind::kOptimizer && ids.size() == 1) split_skipped(slices, ends);
  return ends;
}

}  // namespace flatout::timeline
