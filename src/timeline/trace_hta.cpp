#include "timeline/trace_hta.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "timeline/trace_streams.h"

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

// A device event or a wait that is drawn on a stream.
struct HtaEvent {
  int64_t start, end, stream;
  EventId event;
};

// Each row's gap is counted from the end of the row before, not from the latest end of all before. A missing launch
// counts as in time.
void add_idle(const TraceIndex& index, const std::vector<HtaEvent>& events, std::map<int64_t, HtaSummary::Stream>& out) {
  const Trace& trace = index.trace();
  std::map<int64_t, int64_t> ends;
  for (const HtaEvent& e : events) {
    const auto last = ends.find(e.stream);
    if (last != ends.end()) {
      HtaSummary::Stream& s = out[e.stream];
      const int64_t gap = e.start - last->second;
      const EventId launch = index.launch_of(e.event);
      if (launch != kNoEvent && trace.start[launch] > last->second) {
        s.host_wait += gap;
      } else if (gap < kShortGap) {
        s.kernel_wait += gap;
      } else {
        s.other += gap;
      }
    }
    ends[e.stream] = e.end;
  }
}

void add_queues(const TraceIndex& index, const std::vector<HtaEvent>& events, HtaSummary& out,
                std::map<int64_t, HtaSummary::Stream>& streams) {
  const Trace& trace = index.trace();
  std::map<int64_t, std::vector<std::pair<int64_t, int>>> changes;  // time; -1 where a launch begins, 1 where its work does
  for (const HtaEvent& e : events) {
    const EventId launch = index.launch_of(e.event);
    if (!on_device(trace.kind[e.event]) || launch == kNoEvent || !counts_as_launch(trace.name_of(launch))) continue;
    ++out.launches;
    out.launch_host += trace.duration[launch];
    out.launch_device += trace.duration[e.event];
    out.launch_delay += std::max<int64_t>(0, e.start - trace.end(launch));
    changes[e.stream].emplace_back(trace.start[launch], -1);
    changes[e.stream].emplace_back(e.start, 1);
  }
  for (auto& [stream, all] : changes) {
    std::sort(all.begin(), all.end());
    HtaSummary::Stream& s = streams[stream];
    int64_t length = 0, sum = 0;
    for (const auto& [time, change] : all) {
      length -= change;
      sum += length;
      s.queue_max = std::max(s.queue_max, length);
    }
    s.queue_count = all.size();
    s.queue_mean = static_cast<double>(sum) / static_cast<double>(all.size());
  }
}

}  // namespace

std::vector<HtaSummary> hta_summary(const TraceIndex& index) {
  const Trace& trace = index.trace();
  std::set<std::string_view> steps;
  for (const EventId step : index.steps()) steps.insert(trace.name_of(step));
  // With two steps or more it drops device events that no host event of the trace launched.
  const bool drops = steps.size() >= 2;
  std::map<int64_t, std::vector<HtaEvent>> devices;
  for (size_t i = 0; i < trace.size(); ++i) {
    const auto e = static_cast<EventId>(i);
    int64_t device = 0, stream = 0;
    if (on_device(trace.kind[i])) {
      device = trace.track_of(e).device;
      stream = trace.track_of(e).stream;
    } else if (trace.kind[i] == EventKind::kSync) {
      // A wait for a stream is drawn on that stream's track, and counts as work.
      const auto pid = parse_number<int64_t>(trace.track_of(e).pid);
      const auto tid = parse_number<int64_t>(trace.track_of(e).tid);
      if (!pid || !tid || *tid < 0) continue;
      device = *pid;
      stream = *tid;
    } else {
      continue;
    }
    if (drops && index.launch_of(e) == kNoEvent) continue;
    devices[device].push_back({trace.start[i], trace.end(e), stream, e});
  }
  std::vector<HtaSummary> out;
  for (auto& [device, events] : devices) {
    std::sort(events.begin(), events.end(), [](const HtaEvent& a, const HtaEvent& b) {
      return a.start != b.start ? a.start < b.start : a.event < b.event;
    });
    HtaSummary s;
    s.device = device;
    Intervals busy, compute, communication;
    int64_t end = events.front().start;
    for (const HtaEvent& e : events) {
      busy.add(e.start, e.end);
      const HtaType type = type_of(trace.name_of(e.event));
      if (type == HtaType::kCompute) compute.add(e.start, e.end);
      if (type == HtaType::kCommunication) communication.add(e.start, e.end);
      end = std::max(end, e.end);
    }
    std::map<int64_t, HtaSummary::Stream> streams;
    add_idle(index, events, streams);
    add_queues(index, events, s, streams);
    for (auto& [id, stream] : streams) {
      stream.stream = id;
      s.streams.push_back(stream);
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
