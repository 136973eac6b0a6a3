#include "timeline/trace_diff.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "timeline/intervals.h"
#include "timeline/trace_host.h"
#include "timeline/trace_index.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

struct Total {
  int64_t time = 0;
  uint64_t count = 0;
};
// By kind, name and where it was called. Ordered, so that equal differences come out in the same
// order everywhere.
using Totals = std::map<std::tuple<std::string_view, std::string, std::string>, Total>;

std::string_view kind_text(EventKind kind) {
  switch (kind) {
    case EventKind::kKernel:
      return "kernel";
    case EventKind::kMemcpy:
    case EventKind::kMemset:
      return "copy";
    case EventKind::kOp:
      return "operator";
    case EventKind::kPython:
      return "python";
    case EventKind::kRuntime:
      return "runtime";
    default:
      return "";
  }
}

// "nn.Module: Conv2d_17" is counted with all that it calls.
bool is_module(std::string_view name) { return name.starts_with("nn.Module: "); }

bool has_python(const Trace& trace) {
  return std::find(trace.kind.begin(), trace.kind.end(), EventKind::kPython) != trace.kind.end();
}

/// The slices that say where in the program something is: modules, and lines of the user's own.
class Places {
 public:
  explicit Places(const Trace& trace) : trace_(trace), known_(trace.strings.size(), -1) {}
  bool is_place(EventId e) {
    if (trace_.kind[e] != EventKind::kPython) return false;
    signed char& known = known_[trace_.name[e]];
    if (known < 0) {
      Where where;
      known = is_module(trace_.name_of(e)) || user_line(trace_.name_of(e), where) ? 1 : 0;
    }
    return known == 1;
  }

 private:
  const Trace& trace_;
  std::vector<signed char> known_;
};

/// `by_place`: operators and what they launch are told apart by the place that calls them.
/// `window`: of the host's slices that begin in it, and of what they launch.
Totals totals_of(const Trace& trace, bool by_place, const Window& window) {
  struct Row {
    int64_t time = 0;
    uint64_t count = 0;
  };
  struct Key {
    StringId name, place;
    EventKind kind;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& k) const {
      const uint64_t h = (uint64_t{k.name} << 32 | k.place) * 0x9E3779B97F4A7C15ull;
      return static_cast<size_t>(h ^ (h >> 29) ^ static_cast<uint64_t>(k.kind));
    }
  };
  // By number first: strings for each event would cost more than all the rest.
  std::unordered_map<Key, Row, Hash> rows;
  const auto inside = [&](EventId e) {
    return trace.start[e] >= window.begin && trace.start[e] < window.end;
  };
  const auto add = [&](EventId e, StringId place, int64_t time, uint64_t count) {
    Row& row = rows[{trace.name[e], place, trace.kind[e]}];
    row.time += time;
    row.count += count;
  };
  std::vector<std::vector<EventId>> by_track(trace.tracks.size());
  for (size_t i = 0; i < trace.size(); ++i) {
    if (!kind_text(trace.kind[i]).empty() && !on_device(trace.kind[i]))
      by_track[trace.track[i]].push_back(static_cast<EventId>(i));
  }
  // Host slices without what they call.
  Places places(trace);
  std::vector<StringId> launched_at(by_place ? trace.size() : 0);
  for (auto& events : by_track) {
    std::sort(events.begin(), events.end(), [&](EventId a, EventId b) {
      return trace.start[a] != trace.start[b] ? trace.start[a] < trace.start[b]
                                              : trace.duration[a] > trace.duration[b];
    });
    struct Open {
      EventId event;
      StringId place;  // that it was called from
      StringId inner;  // that what it calls is called from
    };
    std::vector<Open> open;
    for (const EventId e : events) {
      while (!open.empty() && trace.end(open.back().event) <= trace.start[e]) open.pop_back();
      const StringId place = open.empty() ? 0 : open.back().inner;
      const bool tells =
          by_place && (trace.kind[e] == EventKind::kOp || trace.kind[e] == EventKind::kRuntime);
      if (!open.empty() && !is_module(trace.name_of(open.back().event))) {
        const Open& outer = open.back();
        if (inside(outer.event))
          add(outer.event, outer.place,
              -(std::min(trace.end(e), trace.end(outer.event)) - trace.start[e]), 0);
      }
      if (inside(e)) add(e, tells ? place : 0, trace.duration[e], 1);
      if (by_place && trace.kind[e] == EventKind::kRuntime) launched_at[e] = place;
      open.push_back(
          {e, tells ? place : 0, by_place && places.is_place(e) ? trace.name[e] : place});
    }
  }
  const TraceIndex index(trace);
  for (const auto& [device, events] : index.devices()) {
    for (const auto& [start, e, launch] : events) {
      if (inside(launch != kNoEvent ? launch : e))
        add(e, by_place && launch != kNoEvent ? launched_at[launch] : 0, trace.duration[e], 1);
    }
  }
  Totals out;
  for (const auto& [key, row] : rows) {
    const std::string_view name = trace.strings[key.name];
    Total& total = out[{is_module(name) ? "module" : kind_text(key.kind), std::string(name),
                        std::string(trace.strings[key.place])}];
    total.time += row.time;
    total.count += row.count;
  }
  return out;
}

struct Steps {
  uint64_t count = 0;
  int64_t mean = 0;
  // Of which the totals are to be. The profiler records whole steps; what comes before and after
  // those that the optimizer tells is a part of more.
  Window window{INT64_MIN, INT64_MAX};
  int64_t input_wait = 0, input_wait_in_all = 0;  // in the steps; in the whole trace
};

Steps steps_of(const Trace& trace) {
  const TraceIndex index(trace);
  Steps out;
  out.input_wait_in_all = index.input().length();
  int64_t sum = 0;
  for (const TraceStep& step : index.steps()) {
    sum += step.wall();
    out.input_wait += overlap(index.input(), step.begin, step.end);
  }
  out.count = index.steps().size();
  out.mean = out.count > 0 ? sum / static_cast<int64_t>(out.count) : 0;
  if (index.steps_from() != TraceStepSource::kOptimizer) return out;
  out.window = {index.steps().front().begin, index.steps().front().end};
  for (const TraceStep& step : index.steps()) out.window.end = std::max(out.window.end, step.end);
  return out;
}

}  // namespace

TraceDiff diff_traces(const Trace& a, const Trace& b) {
  TraceDiff out;
  const Steps of_a = steps_of(a), of_b = steps_of(b);
  out.steps_a = of_a.count, out.step_a = of_a.mean;
  out.steps_b = of_b.count, out.step_b = of_b.mean;
  const bool by_place = has_python(a) && has_python(b);
  // Of traces with steps on both sides times are those of a step, for one may hold more of them.
  const bool by_step = out.steps_a > 0 && out.steps_b > 0;
  constexpr Window all{INT64_MIN, INT64_MAX};
  const Window in_a = by_step ? of_a.window : all, in_b = by_step ? of_b.window : all;
  std::map<Totals::key_type, TraceChange> changes;
  for (const auto& [key, total] : totals_of(a, by_place, in_a)) {
    TraceChange& c = changes[key];
    c.a = total.time;
    c.count_a = total.count;
  }
  for (const auto& [key, total] : totals_of(b, by_place, in_b)) {
    TraceChange& c = changes[key];
    c.b = total.time;
    c.count_b = total.count;
  }
  // No operator of the training thread says how long it waited for a batch.
  TraceChange& input = changes[{"input", "waiting for batches", ""}];
  input.a = by_step ? of_a.input_wait : of_a.input_wait_in_all;
  input.b = by_step ? of_b.input_wait : of_b.input_wait_in_all;
  input.count_a = of_a.count, input.count_b = of_b.count;
  for (auto& [key, c] : changes) {
    std::tie(c.kind, c.name, c.place) = key;
    if (by_step) {
      c.a /= static_cast<int64_t>(out.steps_a);
      c.b /= static_cast<int64_t>(out.steps_b);
    }
    if (c.difference() > 0) out.slower.push_back(c);
    if (c.difference() < 0) out.faster.push_back(c);
  }
  std::stable_sort(
      out.slower.begin(), out.slower.end(),
      [](const TraceChange& x, const TraceChange& y) { return x.difference() > y.difference(); });
  std::stable_sort(
      out.faster.begin(), out.faster.end(),
      [](const TraceChange& x, const TraceChange& y) { return x.difference() < y.difference(); });
  return out;
}

}  // namespace flatout::timeline
