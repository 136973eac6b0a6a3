#include "report/lanes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace flatout::report {
namespace {

using model::Run;
using model::SliceKind;

constexpr size_t kMostLanes = 24;

bool drawn(SliceKind kind) {
  switch (kind) {
    case SliceKind::kInputWait:
    case SliceKind::kForward:
    case SliceKind::kBackward:
    case SliceKind::kOptimizer:
    case SliceKind::kH2d:
    case SliceKind::kSync:
    case SliceKind::kCommunication:
    case SliceKind::kCheckpoint:
    case SliceKind::kGc:
    case SliceKind::kValidation:
    case SliceKind::kLoaderStart:
    case SliceKind::kFetch:
    case SliceKind::kCollate:
    case SliceKind::kHandover:
    case SliceKind::kLogging:
    case SliceKind::kFeed:
      return true;
    default:
      return false;
  }
}

std::string lane_name(const Run& run, model::ThreadId id) {
  const model::Thread& t = run.threads[id];
  const bool known = t.process < run.processes.size();
  const int32_t pid = known ? run.processes[t.process].pid : 0;
  if (run.steps.source != model::StepSource::kNone && run.steps.thread == id) return "training";
  const std::string& process = known ? run.processes[t.process].name : t.name;
  return t.is_main ? fmt::format("{} {}", pid, process) : fmt::format("{} {}", t.tid, t.name);
}

LaneWindow cut(const Run& run, const std::vector<model::ThreadId>& threads, std::string title,
               TimePoint begin, TimePoint end, size_t most) {
  LaneWindow window{std::move(title), begin, end, {}};
  std::vector<size_t> lane_of(run.threads.size(), SIZE_MAX);
  for (const model::ThreadId id : threads) {
    lane_of[id] = window.lanes.size();
    window.lanes.push_back({lane_name(run, id), {}});
  }
  size_t count = 0;
  // Slices are sorted by their end.
  auto it = std::lower_bound(run.slices.begin(), run.slices.end(), begin,
                             [](const model::Slice& s, TimePoint t) { return s.end < t; });
  for (; it != run.slices.end() && count < most; ++it) {
    if (it->begin > end || !drawn(it->kind) || it->thread >= lane_of.size() ||
        lane_of[it->thread] == SIZE_MAX) {
      continue;
    }
    window.lanes[lane_of[it->thread]].slices.push_back(
        {it->begin, it->end, it->kind, it->value, it->value2});
    ++count;
  }
  for (Lane& lane : window.lanes) {
    std::stable_sort(lane.slices.begin(), lane.slices.end(),
                     [](const LaneSlice& a, const LaneSlice& b) {
                       return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
                     });
  }
  window.lanes.erase(std::remove_if(window.lanes.begin(), window.lanes.end(),
                                    [](const Lane& lane) { return lane.slices.empty(); }),
                     window.lanes.end());
  return window;
}

// The windows' places: first, middle and last steps, and those around the slowest.
struct Place {
  std::string title;
  TimePoint begin, end;
};

std::vector<Place> places(const Run& run, size_t slices, size_t most) {
  std::vector<Place> out;
  const std::vector<model::Step>& steps = run.steps.steps;
  const double share = static_cast<double>(most) / 4 / static_cast<double>(slices);
  if (steps.size() < 8) {
    const Nanos length = nanos(share * static_cast<double>((run.end - run.begin).count()));
    const TimePoint middle = run.begin + (run.end - run.begin) / 2;
    out.push_back({"start", run.begin, run.begin + length});
    out.push_back({"middle", middle, middle + length});
    out.push_back({"end", run.end - length, run.end});
    return out;
  }
  const size_t n = std::clamp<size_t>(
      static_cast<size_t>(share * static_cast<double>(steps.size())), 2, steps.size());
  const auto window = [&](const char* title, size_t first) {
    first = std::min(first, steps.size() - n);
    out.push_back(
        {fmt::format("{} ({} to {})", title, steps[first].index, steps[first + n - 1].index),
         steps[first].begin, steps[first + n - 1].end});
  };
  size_t slowest = 0;
  for (size_t i = 1; i < steps.size(); ++i) {
    const bool better = !steps[i].warmup && !steps[i].after_gap;
    if (better && (steps[slowest].warmup || steps[i].length() > steps[slowest].length())) {
      slowest = i;
    }
  }
  window("around the slowest step", slowest > n / 2 ? slowest - n / 2 : 0);
  window("first steps", 0);
  window("middle steps", steps.size() / 2);
  window("last steps", steps.size() - n);
  return out;
}

}  // namespace

Lanes make_lanes(const Run& run, size_t most) {
  Lanes out;
  std::map<model::ThreadId, size_t> counts;
  size_t total = 0;
  for (const model::Slice& s : run.slices) {
    if (!drawn(s.kind) || s.thread >= run.threads.size()) continue;
    ++counts[s.thread];
    ++total;
  }
  if (total == 0) return out;
  std::vector<model::ThreadId> threads;
  threads.reserve(counts.size());
  for (const auto& [id, count] : counts) threads.push_back(id);
  const auto rank = [&](model::ThreadId id) {
    return run.steps.source != model::StepSource::kNone && run.steps.thread == id ? 0 : 1;
  };
  std::stable_sort(threads.begin(), threads.end(),
                   [&](model::ThreadId a, model::ThreadId b) { return rank(a) < rank(b); });
  if (threads.size() > kMostLanes) {
    out.threads_left_out = threads.size() - kMostLanes;
    threads.resize(kMostLanes);
  }
  if (total <= most) {
    out.windows.push_back(cut(run, threads, "whole run", run.begin, run.end, most));
    return out;
  }
  for (Place& p : places(run, total, most)) {
    LaneWindow window = cut(run, threads, std::move(p.title), p.begin, p.end, most / 2);
    if (!window.lanes.empty()) out.windows.push_back(std::move(window));
  }
  return out;
}

}  // namespace flatout::report
