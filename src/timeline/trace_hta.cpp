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

enum class HtaType : uint8_t { kCompute, kCommunication, kMemory, kOther };

HtaType type_of(std::string_view name) {
  if (name.starts_with("nccl") || name.starts_with("rccl") || name.starts_with("hip") ||
      contains(name, "ncclKernel") || contains(name, "ncclDevKernel")) {
    return HtaType::kCommunication;
  }
  for (const std::string_view memory : {"Memcpy", "Memset", "dma"})
    if (name.starts_with(memory)) return HtaType::kMemory;
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
  HtaType type;
};

using Streams = std::map<int64_t, HtaSummary::Stream>;

// A gap counts from the end of the event before, not from the latest end so far, and is less than
// nothing where the two overlap. What has no launch in the trace was launched in time. Waits are no
// work here, though they are elsewhere.
void add_idle(const Trace& trace, const std::vector<HtaEvent>& events, Streams& out) {
  std::map<int64_t, int64_t> ends;
  for (const HtaEvent& e : events) {
    if (!on_device(trace.kind[e.event])) continue;
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

HtaSummary::Description describe(std::vector<double> values) {
  HtaSummary::Description d;
  if (values.empty()) return d;
  std::sort(values.begin(), values.end());
  d.count = values.size();
  const auto count = static_cast<double>(d.count);
  for (const double value : values) d.mean += value;
  d.mean /= count;
  if (values.size() > 1) {
    double squares = 0;
    for (const double value : values) squares += (value - d.mean) * (value - d.mean);
    d.deviation = std::sqrt(squares / (count - 1));
  }
  // Between two values it interpolates.
  const auto quantile = [&](double share) {
    const double at = share * (count - 1);
    const auto below = static_cast<size_t>(at);
    const double low = values[below];
    const double high = values[std::min(below + 1, values.size() - 1)];
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
    std::vector<double> lengths;
    int64_t length = 0;
    for (const Change& change : changes)
      lengths.push_back(static_cast<double>(length += change.by));
    out[stream].queue = describe(std::move(lengths));
  }
}

HtaSummary::Launches launches_of(const Trace& trace, const std::vector<HtaEvent>& events) {
  constexpr double kSlow = 50e3, kLate = 100e3;
  HtaSummary::Launches out;
  std::vector<double> host, device, delays;
  for (const HtaEvent& e : events) {
    if (e.launch == kNoEvent || !counts_as_launch(trace.name_of(e.launch))) continue;
    const int64_t call = trace.duration[e.launch];
    const int64_t delay = e.start - hta_time(trace, e.launch) - call;
    host.push_back(static_cast<double>(call));
    device.push_back(static_cast<double>(e.end - e.start));
    delays.push_back(static_cast<double>(std::max<int64_t>(0, delay)));
    const bool slow = host.back() > kSlow;
    out.shorter += !slow && device.back() < host.back() ? 1 : 0;
    out.slow += slow ? 1 : 0;
    out.late += delays.back() > kLate ? 1 : 0;
  }
  out.count = host.size();
  out.host = describe(std::move(host));
  out.device = describe(std::move(device));
  out.delay = describe(std::move(delays));
  return out;
}

std::vector<HtaSummary::Kernel> kernels_of(const Trace& trace,
                                           const std::vector<HtaEvent>& events) {
  std::map<StringId, std::vector<double>> durations;
  std::map<StringId, HtaType> types;
  for (const HtaEvent& e : events) {
    if (e.type != HtaType::kCompute && e.type != HtaType::kCommunication) continue;
    durations[trace.name[e.event]].push_back(static_cast<double>(e.end - e.start));
    types[trace.name[e.event]] = e.type;
  }
  std::vector<HtaSummary::Kernel> out;
  for (auto& [name, values] : durations) {
    HtaSummary::Kernel kernel;
    kernel.name = trace.strings[name];
    kernel.communication = types[name] == HtaType::kCommunication;
    for (const double value : values) kernel.sum += static_cast<int64_t>(value);
    kernel.each = describe(std::move(values));
    out.push_back(std::move(kernel));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.sum > b.sum; });
  return out;
}

// Each piece of time is cut down to whole microseconds before they are added.
std::map<std::string, int64_t> types_of(const std::vector<HtaEvent>& events) {
  struct Edge {
    int64_t time;
    int by;  // a bit for each type, negative where it ends
  };
  constexpr std::pair<HtaType, const char*> kTypes[] = {{HtaType::kCompute, "COMPUTATION"},
                                                        {HtaType::kCommunication, "COMMUNICATION"},
                                                        {HtaType::kMemory, "MEMORY"}};
  std::vector<Edge> edges;
  int bit = 1;
  for (const auto& [type, word] : kTypes) {
    Intervals all;
    for (const HtaEvent& e : events)
      if (e.type == type) all.add(e.start, e.end);
    for (const auto& [begin, end] : all.all()) {
      edges.push_back({begin, bit});
      edges.push_back({end, -bit});
    }
    bit *= 2;
  }
  std::stable_sort(edges.begin(), edges.end(),
                   [](const Edge& a, const Edge& b) { return a.time < b.time; });
  std::map<std::string, int64_t> out;
  int running = 0;
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    running += edges[i].by;
    if (running == 0) continue;
    std::string words;
    for (size_t k = 0; k < std::size(kTypes); ++k) {
      if ((running & (1 << k)) == 0) continue;
      words.append(words.empty() ? "" : " overlapping ").append(kTypes[k].second);
    }
    out[words] += (edges[i + 1].time - edges[i].time) / 1000;
  }
  return out;
}

// What all copies of a kind in flight move at once, a value for each begin and each end. A copy of
// no length takes a microsecond.
std::map<std::string, HtaSummary::Description> bandwidths_of(const Trace& trace,
                                                             const std::vector<HtaEvent>& events) {
  std::map<EventId, double> known;
  for (const Trace::Copy& copy : trace.copies) known[copy.event] = copy.gb_per_s;
  std::map<std::string, std::vector<std::pair<int64_t, double>>> changes;
  for (const HtaEvent& e : events) {
    if (e.type != HtaType::kMemory) continue;
    const std::string_view name = trace.name_of(e.event);
    const std::string kind(name.starts_with("Memset")   ? "Memset"
                           : name.starts_with("Memcpy") ? name.substr(0, 11)
                                                        : "Memcpy Unknown");
    const auto at = known.find(e.event);
    const double rate = at != known.end() ? at->second : 0;
    changes[kind].emplace_back(e.start, rate);
    changes[kind].emplace_back(e.end > e.start ? e.end : e.start + 1000, -rate);
  }
  std::map<std::string, HtaSummary::Description> out;
  for (auto& [kind, list] : changes) {
    std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<double> values;
    double rate = 0;
    for (const auto& [time, by] : list) {
      rate += by;
      if (rate > 0) values.push_back(rate);
    }
    if (!values.empty()) out[kind] = describe(std::move(values));
  }
  return out;
}

}  // namespace

std::vector<HtaSummary> hta_summary(const TraceIndex& index) {
  const Trace& trace = index.trace();
  std::set<std::string_view> steps;
  if (index.steps_from() == TraceStepSource::kProfiler) {
    for (const TraceStep& step : index.steps()) steps.insert(step.name);
  }
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
    devices[device].push_back(
        {start, start + trace.duration[i], stream, e, launch, type_of(trace.name_of(e))});
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
      if (e.type == HtaType::kCompute) compute.add(e.start, e.end);
      if (e.type == HtaType::kCommunication) communication.add(e.start, e.end);
      end = std::max(end, e.end);
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
    s.launches = launches_of(trace, events);
    s.kernels = kernels_of(trace, events);
    s.types = types_of(events);
    s.bandwidth = bandwidths_of(trace, events);
    out.push_back(std::move(s));
  }
  return out;
}

}  // namespace flatout::timeline
