#include "timeline/trace_diff.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "timeline/trace_index.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

struct Total {
  int64_t time = 0;
  uint64_t count = 0;
};
// By kind and name. Ordered, so that equal differences come out in the same order everywhere.
using Totals = std::map<std::pair<std::string_view, std::string>, Total>;

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

Totals totals_of(const Trace& trace) {
  struct Row {
    int64_t time = 0;
    uint64_t count = 0;
  };
  // By name and kind first: a string per event would cost more than all the rest.
  std::vector<Row> rows(trace.strings.size() * 16);
  const auto row = [&](EventId e) -> Row& {
    return rows[size_t{trace.name[e]} * 16 + static_cast<size_t>(trace.kind[e])];
  };
  std::vector<std::vector<EventId>> by_track(trace.tracks.size());
  for (size_t i = 0; i < trace.size(); ++i) {
    const auto e = static_cast<EventId>(i);
    if (kind_text(trace.kind[i]).empty()) continue;
    row(e).time += trace.duration[i];
    ++row(e).count;
    if (!on_device(trace.kind[i])) by_track[trace.track[i]].push_back(e);
  }
  // Host slices without what they call.
  for (auto& events : by_track) {
    std::sort(events.begin(), events.end(), [&](EventId a, EventId b) {
      return trace.start[a] != trace.start[b] ? trace.start[a] < trace.start[b]
                                              : trace.duration[a] > trace.duration[b];
    });
    std::vector<EventId> open;
    for (const EventId e : events) {
      while (!open.empty() && trace.end(open.back()) <= trace.start[e]) open.pop_back();
      if (!open.empty() && !is_module(trace.name_of(open.back())))
        row(open.back()).time -= std::min(trace.end(e), trace.end(open.back())) - trace.start[e];
      open.push_back(e);
    }
  }
  Totals out;
  for (StringId name = 0; name < trace.strings.size(); ++name) {
    for (size_t kind = 0; kind < 16; ++kind) {
      const Row& r = rows[size_t{name} * 16 + kind];
      if (r.count == 0) continue;
      const bool module = is_module(trace.strings[name]);
      out[{module ? "module" : kind_text(static_cast<EventKind>(kind)),
           std::string(trace.strings[name])}] = {r.time, r.count};
    }
  }
  return out;
}

void steps_of(const Trace& trace, uint64_t& count, int64_t& mean) {
  const TraceIndex index(trace);
  int64_t sum = 0;
  for (const EventId step : index.steps()) sum += trace.duration[step];
  count = index.steps().size();
  mean = count > 0 ? sum / static_cast<int64_t>(count) : 0;
}

}  // namespace

TraceDiff diff_traces(const Trace& a, const Trace& b) {
  TraceDiff out;
  out.file_a = a.file;
  out.file_b = b.file;
  steps_of(a, out.steps_a, out.step_a);
  steps_of(b, out.steps_b, out.step_b);
  Totals of_a = totals_of(a);
  std::map<std::pair<std::string_view, std::string>, TraceChange> changes;
  for (const auto& [key, total] : of_a) {
    TraceChange& c = changes[key];
    c.a = total.time;
    c.count_a = total.count;
  }
  for (const auto& [key, total] : totals_of(b)) {
    TraceChange& c = changes[key];
    c.b = total.time;
    c.count_b = total.count;
  }
  // Of traces with steps on both sides times are those of a step, for one may hold more of them.
  const bool by_step = out.steps_a > 0 && out.steps_b > 0;
  for (auto& [key, c] : changes) {
    c.kind = key.first;
    c.name = key.second;
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
