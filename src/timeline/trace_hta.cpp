#include "timeline/trace_hta.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/contains.h"
#include "base/text.h"
#include "timeline/trace_streams.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

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

// It keeps microseconds as doubles: since 1970 these lie a quarter apart.
int64_t hta_time(const Trace& trace, EventId e) {
  return trace.epoch_times ? on_quarter_microseconds(trace.start[e]) : trace.start[e];
}

bool counts_as_launch(std::string_view name) {
  return name == "cudaLaunchKernel" || name == "cudaLaunchKernelExC" || name == "cudaMemcpyAsync" ||
         name == "cudaMemsetAsync";
}

// For its queues it knows more calls than for its launches.
bool counts_for_queue(std::string_view name) {
  for (const std::string_view call :
       {"cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync",
        "cuLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel", "hipExtModuleLaunchKernel",
        "hipMemcpyAsync", "hipMemsetAsync", "hipMemcpyWithStream",
        "runFunction - job_prep_and_submit_for_execution"}) {
    if (name == call) return true;
  }
  return false;
}

// A device's event, or a wait that is drawn on a stream.
struct HtaEvent {
  int64_t start, end, stream;
  EventId event;
  EventId launch;
};

using Streams = std::map<int64_t, HtaSummary::Stream>;

// A gap counts from the end of the event before, not from the latest end so far, and is less than
// nothing where the two overlap. What has no launch in the trace was launched in time.
void add_idle(const Trace& trace, const std::vector<HtaEvent>& events, Streams& out) {
  std::map<int64_t, int64_t> ends;
  for (const HtaEvent& e : events) {
    HtaSummary::Stream& s = out[e.stream];
    const auto [last, is_first] = ends.try_emplace(e.stream, e.end);
    if (is_first) continue;
    const int64_t gap = e.start - last->second;
    if (e.launch != kNoEvent && hta_time(trace, e.launch) > last->second) {
      s.host_wait += gap;
    } else if (gap < kShortGap) {
      s.kernel_wait += gap;
    } else {
      s.other += gap;
    }
    last->second = e.end;
  }
}

HtaSummary::Description describe(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  HtaSummary::Description d;
  d.count = values.size();
  const auto count = static_cast<double>(d.count);
  for (const int64_t value : values) d.mean += static_cast<double>(value);
  d.mean /= count;
  if (values.size() > 1) {
    double squares = 0;
    for (const int64_t value : values) {
      const double away = static_cast<double>(value) - d.mean;
      squares += away * away;
    }
    d.deviation = std::sqrt(squares / (count - 1));
  }
  // Between two values it interpolates.
  const auto quantile = [&](double share) {
    const double at = share * (count - 1);
    const auto below = static_cast<size_t>(at);
    const auto low = static_cast<double>(values[below]);
    const auto high = static_cast<double>(values[std::min(below + 1, values.size() - 1)]);
    return low + (high - low) * (at - static_cast<double>(below));
  };
  d.min = quantile(0);
  d.quartile1 = quantile(0.25);
  d.median = quantile(0.5);
  d.quartile3 = quantile(0.75);
  d.max = quantile(1);
  return d;
}

// Each launch and each begin is a value, however long the queue stays so.
void add_queues(const Trace& trace, const std::vector<HtaEvent>& events, Streams& out) {
  struct Change {
    int64_t time;
    int64_t by;
  };
  std::map<int64_t, std::vector<Change>> streams;
  for (const HtaEvent& e : events) {
    if (!on_device(trace.kind[e.event]) || e.launch == kNoEvent ||
        !counts_for_queue(trace.name_of(e.launch))) {
      continue;
    }
    streams[e.stream].push_back({hta_time(trace, e.launch), 1});
    streams[e.stream].push_back({e.start, -1});
  }
  for (auto& [stream, changes] : streams) {
    std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
      return a.time != b.time ? a.time < b.time : a.by > b.by;
    });
    std::vector<int64_t> lengths;
    int64_t length = 0;
    for (const Change& change : changes) lengths.push_back(length += change.by);
    out[stream].queue = describe(std::move(lengths));
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
    const EventId launch = index.launch_of(e);
    if (drops && launch == kNoEvent) continue;
    const int64_t start = hta_time(trace, e);
    devices[device].push_back({start, start + trace.duration[i], stream, e, launch});
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
      if (e.launch != kNoEvent && counts_as_launch(trace.name_of(e.launch))) ++s.launches;
    }
    Streams streams;
    add_idle(trace, events, streams);
    add_queues(trace, events, streams);
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
