#include "timeline/trace_launches.h"

#include <algorithm>
#include <map>

#include "base/contains.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

enum class CallUse : uint8_t { kUnknown, kNothing, kLaunch, kBeginCapture, kEndCapture };

// cudaLaunchKernel, cuLaunchKernelEx, cudaLaunchCooperativeKernel, hipExtModuleLaunchKernel,
// cudaGraphLaunch, ...
CallUse use_of(std::string_view call) {
  if (contains(call, "StreamBeginCapture")) return CallUse::kBeginCapture;
  if (contains(call, "StreamEndCapture")) return CallUse::kEndCapture;
  if (contains(call, "Launch") && (contains(call, "Kernel") || contains(call, "GraphLaunch")))
    return CallUse::kLaunch;
  return CallUse::kNothing;
}

}  // namespace

void add_launches(const TraceIndex& index, const std::vector<TraceIndex::DeviceEvent>& events,
                  LaunchSummary& out) {
  const Trace& trace = index.trace();
  // One per correlation id: the first device event of a launch that made several. Launches are
  // events, so a bit each will do.
  std::vector<bool> seen(trace.size());
  std::map<StringId, LaunchCall> calls;
  LaunchCall* last = nullptr;
  StringId last_name = StringTable::kUnknown;
  for (const auto& [start, event, launch] : events) {
    if (launch == kNoEvent) continue;
    if (last == nullptr || trace.name[launch] != last_name) {
      last_name = trace.name[launch];
      last = &calls[last_name];
    }
    ++last->events;
    if (seen[launch]) continue;
    seen[launch] = true;
    const int64_t delay = std::max<int64_t>(0, start - trace.end(launch));
    ++last->count;
    last->host += trace.duration[launch];
    last->delay += delay;
    ++out.count;
    out.host += trace.duration[launch];
    out.device += trace.duration[event];
    out.delay += delay;
    if (trace.duration[event] < trace.duration[launch]) ++out.shorter_than_launch;
    if (delay > 100'000) ++out.late;
  }
  for (auto& [name, call] : calls) {
    call.name = trace.strings[name];
    out.calls.push_back(std::move(call));
  }
  std::stable_sort(out.calls.begin(), out.calls.end(),
                   [](const LaunchCall& a, const LaunchCall& b) { return a.count > b.count; });
}

void count_launches(const TraceIndex& index, TraceSummary& out) {
  const Trace& trace = index.trace();
  if (index.devices().empty())
    return;  // nothing of a device was recorded, which is no gap in a recording
  std::vector<bool> started(trace.size());
  for (const auto& [device, events] : index.devices()) {
    for (const auto& [start, event, launch] : events) {
      if (launch != kNoEvent) started[launch] = true;
    }
  }
  std::vector<CallUse> uses(trace.strings.size(), CallUse::kUnknown);
  std::vector<EventId> unrecorded, captures;
  for (size_t i = 0; i < trace.size(); ++i) {
    if (trace.kind[i] != EventKind::kRuntime) continue;
    CallUse& use = uses[trace.name[i]];
    if (use == CallUse::kUnknown) use = use_of(trace.strings[trace.name[i]]);
    if (use == CallUse::kLaunch && trace.correlation[i] != 0) {
      if (started[i]) {
        ++out.launches;
      } else {
        unrecorded.push_back(static_cast<EventId>(i));
      }
    }
    if (use == CallUse::kBeginCapture || use == CallUse::kEndCapture)
      captures.push_back(static_cast<EventId>(i));
  }
  // By thread, what was captured.
  std::stable_sort(captures.begin(), captures.end(),
                   [&](EventId a, EventId b) { return trace.start[a] < trace.start[b]; });
  std::map<TrackId, Intervals> captured;
  std::map<TrackId, int64_t> open;
  for (const EventId e : captures) {
    const TrackId track = trace.track[e];
    if (uses[trace.name[e]] == CallUse::kBeginCapture) {
      open.try_emplace(track, trace.start[e]);
    } else if (const auto begin = open.find(track); begin != open.end()) {
      captured[track].add(begin->second, trace.end(e));
      open.erase(begin);
    }
  }
  for (const auto& [track, begin] : open) captured[track].add(begin, INT64_MAX);
  // A call of the runtime makes calls of the driver, which may have ids of their own.
  std::map<TrackId, Intervals> calling;
  if (!unrecorded.empty()) {
    std::map<TrackId, std::vector<Interval64>> calls;
    for (size_t i = 0; i < trace.size(); ++i) {
      const auto e = static_cast<EventId>(i);
      if (started[i]) calls[trace.track[i]].push_back({trace.start[i], trace.end(e)});
    }
    for (auto& [track, of_track] : calls) calling[track] = unite(std::move(of_track));
  }
  for (const EventId call : unrecorded) {
    const auto caller = calling.find(trace.track[call]);
    if (caller != calling.end() && trace.duration[call] > 0 &&
        overlap(caller->second, trace.start[call], trace.end(call)) == trace.duration[call]) {
      continue;
    }
    const auto set = captured.find(trace.track[call]);
    if (set != captured.end() &&
        overlap(set->second, trace.start[call], trace.start[call] + 1) > 0) {
      continue;
    }
    ++out.unrecorded_launches;
    ++out.launches;
  }
}

}  // namespace flatout::timeline
