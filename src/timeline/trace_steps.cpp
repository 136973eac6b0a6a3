#include "timeline/trace_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr size_t kFewest = 3;     // ends of the optimizer's steps
constexpr size_t kMostTurns = 4;  // optimizers that take turns
constexpr size_t kRounds = 3;     // that must be seen to believe in turns

std::vector<TraceStep> as_they_are(const Trace& trace, const std::vector<EventId>& slices) {
  std::vector<TraceStep> out;
  out.reserve(slices.size());
  for (const EventId e : slices)
    out.push_back({trace.start[e], trace.end(e), trace.track[e], std::string(trace.name_of(e))});
  return out;
}

// "train_step" of "train_step_3".
std::string_view without_number(std::string_view name) {
  while (!name.empty() && (name.back() >= '0' && name.back() <= '9')) name.remove_suffix(1);
  while (!name.empty() && (name.back() == '#' || name.back() == '_' || name.back() == ' '))
    name.remove_suffix(1);
  return name;
}

std::vector<TraceStep> outermost(const Trace& trace, const std::vector<EventId>& ranges) {
  std::map<std::string_view, size_t> count;
  for (const EventId e : ranges) ++count[without_number(trace.name_of(e))];
  std::vector<TraceStep> all;
  for (TraceStep& step : as_they_are(trace, ranges)) {
    if (count[without_number(step.name)] > 1) all.push_back(std::move(step));
  }
  std::stable_sort(all.begin(), all.end(), [](const TraceStep& a, const TraceStep& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::map<TrackId, int64_t> end;
  std::vector<TraceStep> out;
  for (TraceStep& step : all) {
    const auto [at, first] = end.try_emplace(step.track, step.end);
    if (!first && step.end <= at->second) continue;
    // What lies between two, such as the wait for a batch, is the later one's.
    if (!first) step.begin = at->second;
    at->second = step.end;
    out.push_back(std::move(step));
  }
  return out;
}

// When the thread's step was over, each time: with the optimizer that steps least often, of several
// that do it equally often the last one.
std::vector<int64_t> ends_of(const Trace& trace, const std::vector<EventId>& slices) {
  std::map<StringId, std::vector<int64_t>> by_name;
  for (const EventId e : slices) by_name[trace.name[e]].push_back(trace.end(e));
  std::vector<int64_t> best;
  for (auto& [name, ends] : by_name) {
    std::sort(ends.begin(), ends.end());
    if (ends.size() < kFewest) continue;
    if (best.empty() || ends.size() < best.size() ||
        (ends.size() == best.size() && ends.back() > best.back()))
      best = std::move(ends);
  }
  return best;
}

// What the thread began between two ends.
struct Work {
  uint64_t operators = 0;
  uint64_t names = 0;  // a sum over their names, whatever their order
};

// Neighbouring numbers of names would add up to the same too often.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  return (x ^ (x >> 27)) * 0x94D049BB133111EBull;
}

std::vector<Work> work_between(const Trace& trace, TrackId track,
                               const std::vector<int64_t>& ends) {
  std::vector<Work> out(ends.size() - 1);
  for (size_t i = 0; i < trace.size(); ++i) {
    if (trace.kind[i] != EventKind::kOp || trace.track[i] != track) continue;
    const auto next = std::upper_bound(ends.begin(), ends.end(), trace.start[i]);
    if (next == ends.begin() || next == ends.end()) continue;
    Work& work = out[static_cast<size_t>(next - ends.begin()) - 1];
    ++work.operators;
    work.names += mixed(uint64_t{trace.name[i]} + 1);
  }
  return out;
}

// Optimizers of one kind that take turns, as those of a GAN do, are told apart by what is computed
// for each, by the operators' number or, where that is the same for all, by their names: after so
// many steps of an optimizer the same comes again. 1: each is a step.
size_t turns(const std::vector<Work>& work) {
  const auto repeats_by = [&](size_t period, uint64_t Work::*what) {
    size_t same = 0;
    for (size_t i = period; i < work.size(); ++i)
      same += work[i].*what == work[i - period].*what ? 1 : 0;
    return same * 10 >= (work.size() - period) * 9;
  };
  const auto what = repeats_by(1, &Work::operators) ? &Work::names : &Work::operators;
  const auto repeats = [&](size_t period) { return repeats_by(period, what); };
  for (size_t period = 1; period <= kMostTurns && work.size() >= period * kRounds; ++period) {
    if (repeats(period)) return period;
  }
  return 1;
}

std::vector<TraceStep> between_ends(const Trace& trace, const std::vector<EventId>& optimizer) {
  std::map<TrackId, std::vector<EventId>> by_track;
  for (const EventId e : optimizer) by_track[trace.track[e]].push_back(e);
  std::vector<TraceStep> out;
  for (const auto& [track, slices] : by_track) {
    const std::vector<int64_t> ends = ends_of(trace, slices);
    if (ends.size() < kFewest) continue;
    const size_t period = turns(work_between(trace, track, ends));
    // A recording begins between two rounds, so that the last of the optimizers ends one.
    for (size_t i = 2 * period - 1, step = 1; i < ends.size(); i += period, ++step)
      out.push_back({ends[i - period], ends[i], track, fmt::format("step#{}", step)});
  }
  return out;
}

}  // namespace

bool names_step(std::string_view range) {
  std::array<char, 12> word;  // of the letters alone
  size_t letters = 0;
  for (const char c : range.substr(0, 32)) {
    if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z')) continue;
    if (letters == word.size()) return false;
    word[letters++] = static_cast<char>(c | ' ');
  }
  const std::string_view said(word.data(), letters);
  for (const std::string_view step :
       {"step", "trainstep", "trainingstep", "iteration", "iter", "batch", "trainbatch"})
    if (said == step) return true;
  return false;
}

TraceSteps find_trace_steps(const Trace& trace, const StepSlices& slices) {
  TraceSteps out;
  const auto take = [&](TraceStepSource source, std::vector<TraceStep> steps) {
    if (!out.steps.empty() || steps.empty()) return;
    out = {source, std::move(steps)};
  };
  take(TraceStepSource::kProfiler, as_they_are(trace, slices.profiler));
  take(TraceStepSource::kProfiler, as_they_are(trace, slices.framework));
  if (out.steps.empty()) take(TraceStepSource::kRanges, outermost(trace, slices.ranges));
  if (out.steps.empty()) take(TraceStepSource::kOptimizer, between_ends(trace, slices.optimizer));
  std::stable_sort(out.steps.begin(), out.steps.end(),
                   [](const TraceStep& a, const TraceStep& b) { return a.begin < b.begin; });
  return out;
}

}  // namespace flatout::timeline
