#include "timeline/trace_owners.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr size_t kMostOwners = 20;

bool is_module(std::string_view name) { return name.starts_with("nn.Module: "); }

// A slice of a host thread, or (with `work`) a launch on it.
struct Mark {
  int64_t start = 0, end = 0;
  EventId event = kNoEvent;
  EventId work = kNoEvent;  // of the device
};

using Totals = std::unordered_map<StringId, OwnerStat>;

std::vector<OwnerStat> most(const Totals& totals, const StringTable& strings) {
  std::vector<OwnerStat> out;
  for (const auto& [name, stat] : totals)
    out.push_back({std::string(strings[name]), stat.time, stat.count});
  std::sort(out.begin(), out.end(), [](const OwnerStat& a, const OwnerStat& b) {
    return a.time != b.time ? a.time > b.time : a.name < b.name;
  });
  if (out.size() > kMostOwners) out.resize(kMostOwners);
  return out;
}

}  // namespace

void find_owners(const TraceIndex& index, const Window& window,
                 const std::vector<TraceIndex::DeviceEvent>& events, DeviceSummary& out) {
  const Trace& trace = index.trace();
  std::map<TrackId, std::vector<Mark>> threads;
  for (const auto& [start, event, launch] : events) {
    if (launch == kNoEvent || trace.start[launch] < window.begin ||
        trace.start[launch] >= window.end)
      continue;
    threads[trace.track[launch]].push_back(
        {trace.start[launch], trace.start[launch], launch, event});
  }
  if (threads.empty()) return;
  std::vector<std::vector<Mark>*> of(trace.tracks.size());
  for (auto& [track, marks] : threads) of[track] = &marks;
  for (size_t i = 0; i < trace.size(); ++i) {
    auto* const marks = of[trace.track[i]];
    if (marks == nullptr) continue;
    const auto e = static_cast<EventId>(i);
    const bool owner = trace.kind[i] == EventKind::kOp ||
                       (trace.kind[i] == EventKind::kPython && is_module(trace.name_of(e)));
    if (owner && trace.start[i] < window.end && trace.end(e) > window.begin)
      marks->push_back({trace.start[i], trace.end(e), e, kNoEvent});
  }
  Totals operators, modules;
  std::unordered_map<uint64_t, int64_t> by_kernel;  // name << 32 | operator
  for (auto& [track, marks] : threads) {
    // A launch comes after the slices that begin with it; the longer slice is the outer one.
    std::sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) {
      if (a.start != b.start) return a.start < b.start;
      return a.end != b.end ? a.end > b.end : a.event < b.event;
    });
    std::vector<Mark> open;
    for (const Mark& mark : marks) {
      while (!open.empty() && open.back().end <= mark.start) open.pop_back();
      if (mark.work == kNoEvent) {
        open.push_back(mark);
        continue;
      }
      const int64_t time = trace.duration[mark.work];
      out.owners.time += time;
      bool has_operator = false, has_module = false;
      for (size_t i = open.size(); i-- > 0 && !(has_operator && has_module);) {
        const EventId e = open[i].event;
        bool& found = trace.kind[e] == EventKind::kOp ? has_operator : has_module;
        if (found || open[i].end <= mark.start) continue;
        found = true;
        OwnerStat& stat = (trace.kind[e] == EventKind::kOp ? operators : modules)[trace.name[e]];
        stat.time += time;
        ++stat.count;
        if (trace.kind[e] == EventKind::kOp)
          by_kernel[uint64_t{trace.name[mark.work]} << 32 | trace.name[e]] += time;
      }
    }
  }
  out.owners.operators = most(operators, trace.strings);
  out.owners.modules = most(modules, trace.strings);
  std::unordered_map<StringId, std::pair<int64_t, StringId>> owner_of;  // by kernel: time, operator
  for (const auto& [key, time] : by_kernel) {
    auto& best = owner_of[static_cast<StringId>(key >> 32)];
    const std::pair here(time, static_cast<StringId>(key));
    if (here > best) best = here;
  }
  for (KernelStat& kernel : out.kernels) {
    const auto at = owner_of.find(trace.strings.find(kernel.name));
    if (at != owner_of.end()) kernel.owner = trace.strings[at->second.second];
  }
}

}  // namespace flatout::timeline
