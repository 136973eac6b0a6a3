#include "timeline/trace_hta.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

enum class HtaType : uint8_t { kCompute, kCommunication, kOther };

HtaType type_of(std::string_view name) {
  if (name.starts_with("nccl") || name.starts_with("rccl") || name.starts_with("hip") ||
      contains(name, "ncclKernel") || contains(name, "ncclDevKernel")) {
    return HtaType::kCommunication;
  }
  for (const std::string_view other : {"Memcpy", "Memset", "dma", "Sync"})
    if (contains(name, other)) return HtaType::kOther;
  return HtaType::kCompute;
}

bool counts_as_launch(std::string_view name) {
  return name == "cudaLaunchKernel" || name == "cudaLaunchKernelExC" || name == "cudaMemcpyAsync" ||
         name == "cudaMemsetAsync";
}

}  // namespace

std::vector<HtaSummary> hta_summary(const TraceIndex& index) {
  const Trace& trace = index.trace();
  std::set<std::string_view> steps;
  for (const EventId step : index.steps()) steps.insert(trace.name_of(step));
  // With two steps or more it drops device events that no host event of the trace launched.
  const bool drops = steps.size() >= 2;
  struct Event {
    int64_t start, end;
    EventId event;
  };
  std::map<int64_t, std::vector<Event>> devices;
  for (size_t i = 0; i < trace.size(); ++i) {
    const auto e = static_cast<EventId>(i);
    int64_t device = 0;
    if (on_device(trace.kind[i])) {
      device = trace.track_of(e).device;
    } else if (trace.kind[i] == EventKind::kSync) {
      // A wait for a stream is drawn on that stream's track, and counts as work.
      const auto pid = parse_number<int64_t>(trace.track_of(e).pid);
      const auto tid = parse_number<int64_t>(trace.track_of(e).tid);
      if (!pid || !tid || *tid < 0) continue;
      device = *pid;
    } else {
      continue;
    }
    if (drops && index.launch_of(e) == kNoEvent) continue;
    devices[device].push_back({trace.start[i], trace.end(e), e});
  }
  std::vector<HtaSummary> out;
  for (auto& [device, events] : devices) {
    std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
      return a.start != b.start ? a.start < b.start : a.event < b.event;
    });
    HtaSummary s;
    s.device = device;
    Intervals busy, compute, communication;
    int64_t end = events.front().start;
    for (const Event& e : events) {
      busy.add(e.start, e.end);
      const HtaType type = type_of(trace.name_of(e.event));
      if (type == HtaType::kCompute) compute.add(e.start, e.end);
      if (type == HtaType::kCommunication) communication.add(e.start, e.end);
      end = std::max(end, e.end);
      const EventId launch = index.launch_of(e.event);
      if (launch != kNoEvent && counts_as_launch(trace.name_of(launch))) ++s.launches;
    }
    s.kernel_time = end - events.front().start;
    s.idle_time = s.kernel_time - busy.length();
    s.compute_time = compute.length();
    s.non_compute_time = busy.length() - compute.length();
    s.communication_time = communication.length();
    s.overlap = overlap(communication, compute);
    out.push_back(s);
  }
  return out;
}

}  // namespace flatout::timeline
