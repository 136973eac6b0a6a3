#include "timeline/trace_analysis.h"

#include <algorithm>
#include <unordered_map>

#include "timeline/critical_path.h"
#include "timeline/trace_gaps.h"
#include "timeline/trace_host.h"
#include "timeline/trace_launches.h"
#include "timeline/trace_owners.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

using DeviceEvents = std::vector<TraceIndex::DeviceEvent>;

struct DeviceSets {
  Intervals busy, compute, communication, memory;
  Intervals working;      // anything but copies from and to the host
  Intervals host_copies;  // these
};

bool with_host(std::string_view name) {
  for (const std::string_view way : {"HtoD", "DtoH", "HostToDevice", "DeviceToHost"})
    if (name.find(way) != std::string_view::npos) return true;
  return false;
}

DeviceSets sets_of(const TraceIndex& index, const DeviceEvents& events) {
  const Trace& trace = index.trace();
  DeviceSets sets;
  for (const auto& [start, event, launch] : events) {
    const int64_t end = trace.end(event);
    sets.busy.add(start, end);
    const bool host_copy =
        trace.kind[event] == EventKind::kMemcpy && with_host(trace.name_of(event));
    (host_copy ? sets.host_copies : sets.working).add(start, end);
    switch (index.type(event)) {
      case KernelType::kCompute:
        sets.compute.add(start, end);
        break;
      case KernelType::kCommunication:
        sets.communication.add(start, end);
        break;
      case KernelType::kMemory:
        sets.memory.add(start, end);
        break;
    }
  }
  return sets;
}

DeviceTimes times_of(const DeviceSets& sets, int64_t begin, int64_t end) {
  DeviceTimes t;
  t.span = end - begin;
  t.busy = overlap(sets.busy, begin, end);
  t.compute = overlap(sets.compute, begin, end);
  t.communication = overlap(sets.communication, begin, end);
  t.memory = overlap(sets.memory, begin, end);
  t.overlap = overlap(sets.communication, sets.compute, begin, end);
  t.exposed_copies =
      overlap(sets.host_copies, begin, end) - overlap(sets.host_copies, sets.working, begin, end);
  return t;
}

void add_kernels(const TraceIndex& index, const DeviceEvents& events, DeviceSummary& out) {
  const Trace& trace = index.trace();
  std::unordered_map<uint64_t, size_t> known;  // name and type
  struct Row {
    EventId event;
    KernelStat stat;
  };
  std::vector<Row> rows;
  for (const auto& [start, event, launch] : events) {
    const KernelType type = index.type(event);
    const uint64_t key = uint64_t{trace.name[event]} << 2 | static_cast<uint64_t>(type);
    const auto [at, is_new] = known.try_emplace(key, rows.size());
    if (is_new) rows.push_back({event, {type, "", 0, INT64_MIN, INT64_MAX, 0}});
    KernelStat& stat = rows[at->second].stat;
    const int64_t duration = trace.duration[event];
    stat.sum += duration;
    stat.max = std::max(stat.max, duration);
    stat.min = std::min(stat.min, duration);
    ++stat.count;
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.stat.sum > b.stat.sum; });
  for (Row& row : rows) {
    row.stat.name = trace.name_of(row.event);
    out.kernels.push_back(std::move(row.stat));
  }
}

void add_copies(const TraceIndex& index, const DeviceEvents& events, DeviceSummary& out) {
  const Trace& trace = index.trace();
  std::map<StringId, CopySummary> copies;
  for (const auto& [start, event, launch] : events) {
    if (trace.kind[event] != EventKind::kMemcpy && trace.kind[event] != EventKind::kMemset)
      continue;
    CopySummary& copy = copies[trace.name[event]];
    ++copy.all_count;
    copy.all_time += trace.duration[event];
    const auto at =
        std::lower_bound(trace.copies.begin(), trace.copies.end(), event,
                         [](const Trace::Copy& c, EventId wanted) { return c.event < wanted; });
    if (at == trace.copies.end() || at->event != event) continue;
    ++copy.count;
    copy.bytes += at->bytes;
    copy.time += trace.duration[event];
  }
  for (auto& [name, copy] : copies) {
    copy.name = trace.strings[name];
    out.copies.push_back(std::move(copy));
  }
}

constexpr int64_t kLongGap = 1'000'000;

using WaitsByThread = std::map<TrackId, Intervals>;  // by the thread that launched what came next

WaitsByThread blame_gaps(const TraceIndex& index, const DeviceEvents& events, DeviceSummary& out) {
  WaitsByThread host_waits;
  for_each_gap(index, events, [&](const DeviceGap& gap) {
    ++out.gaps;
    const int64_t length = gap.end - gap.begin;
    switch (gap.blame) {
      case GapBlame::kSync:
      case GapBlame::kHost:
        out.collective_wait += overlap(index.collectives(), gap.begin, gap.end);
        out.idle.input_wait += gap.input;
        out.idle.host_wait += length - gap.input;
        host_waits[index.trace().track[gap.launch]].add(gap.begin, gap.end);
        if (gap.blame == GapBlame::kSync) {
          out.sync_wait += length - gap.input;
        } else if (length < kLongGap) {
          out.short_wait += length - gap.input;
        }
        break;
      case GapBlame::kKernel:
        out.idle.kernel_wait += length;
        break;
      case GapBlame::kUnknown:
        out.unknown += length;
        [[fallthrough]];
      case GapBlame::kOther:
        out.idle.other += length;
        break;
    }
  });
  return host_waits;
}

DeviceSummary summarize_device(const TraceIndex& index, int64_t device, const DeviceEvents& events,
                               const DeviceSets& sets, const Window& window) {
  const Trace& trace = index.trace();
  DeviceSummary out;
  out.device = device;
  const auto name = trace.device_names.find(device);
  if (name != trace.device_names.end()) out.name = name->second;
  int64_t end = INT64_MIN;
  for (const auto& e : events) end = std::max(end, trace.end(e.event));
  out.begin = events.front().start;
  out.times = times_of(sets, out.begin, end);
  const WaitsByThread host_waits = blame_gaps(index, events, out);
  for (const auto& [thread, waits] : host_waits) {
    // Threads that hardly matter would each cost a pass over all events.
    if (waits.length() * 20 > out.times.span)
      add_use(out.host, host_use(index, thread, window, waits));
  }
  out.streams = summarize_streams(index, events);
  add_launches(index, events, out.launch);
  add_kernels(index, events, out);
  find_owners(index, window, events, out);
  add_copies(index, events, out);
  return out;
}

// Host time within the steps, or from first to last slice where there are none.
void summarize_host(const TraceIndex& index, TrackId thread, const Window& window,
                    HostSummary& out) {
  const Trace& trace = index.trace();
  Intervals span;
  for (const EventId step : index.steps()) span.add(trace.start[step], trace.end(step));
  if (span.empty()) span.add(window.begin, window.end);
  out.span = span.length();
  std::vector<Interval64> operators;
  TrackId loader = kNoEvent;
  for (size_t i = 0; i < trace.size(); ++i) {
    if (trace.kind[i] == EventKind::kPython) ++out.python_count;
    if (trace.kind[i] == EventKind::kAnnotation && loader == kNoEvent &&
        trace.name_of(static_cast<EventId>(i)).starts_with("enumerate(DataLoader)")) {
      loader = trace.track[i];
      out.loader = trace.name_of(static_cast<EventId>(i));
      out.worker_processes = out.loader.find("MultiProcessing") != std::string::npos;
    }
    if (trace.kind[i] != EventKind::kOp) continue;
    ++out.operator_count;
    if (trace.start[i] < window.end && trace.start[i] + trace.duration[i] > window.begin)
      operators.push_back({trace.start[i], trace.start[i] + trace.duration[i]});
  }
  out.feeds = index.feeds().size();
  for (const EventId feed : index.feeds()) out.fed = out.fed || trace.name_of(feed) == "_Arg";
  out.input_wait = overlap(index.input(), span);
  // Operators are united within the window alone, and scaled to all of it: sorting them all would
  // cost as much as reading them.
  Intervals looked_at;
  for (const Interval64& piece : span.all())
    looked_at.add(std::max(piece.begin, window.begin), std::min(piece.end, window.end));
  const Intervals busy = unite(std::move(operators));
  Intervals rest;  // neither an operator nor a batch asked for
  int64_t from = window.begin;
  std::vector<Interval64> known = busy.all();
  known.insert(known.end(), index.input().all().begin(), index.input().all().end());
  const Intervals taken = unite(std::move(known));
  for (const Interval64& piece : taken.all()) {
    rest.add(from, std::min(piece.begin, window.end));
    from = std::max(from, piece.end);
  }
  rest.add(from, window.end);
  if (looked_at.length() > 0) {
    out.operators = static_cast<int64_t>(
        static_cast<double>(overlap(busy, looked_at) - overlap(busy, index.input())) /
        static_cast<double>(looked_at.length()) * static_cast<double>(out.span));
    out.operators = std::max<int64_t>(out.operators, 0);
  }
  if (loader != kNoEvent) out.input = host_use(index, loader, window, index.input());
  out.training = host_use(index, thread, window, rest);
}

}  // namespace

TraceSummary summarize(const TraceIndex& index) {
  const Trace& trace = index.trace();
  TraceSummary out;
  out.file = trace.file;
  out.format = trace.format;
  out.rank = trace.rank;
  out.world_size = trace.world_size;
  out.bytes = trace.bytes_read;
  out.events = trace.events_seen;
  out.slices_by_category = trace.slices_by_category;
  out.damage = trace.damage;
  out.epoch_times = trace.epoch_times;
  for (const EventId step : index.steps()) {
    TraceStepSummary s;
    s.name = trace.name_of(step);
    s.begin = trace.start[step];
    s.wall = trace.duration[step];
    s.input_wait = overlap(index.input(), s.begin, s.begin + s.wall);
    out.steps.push_back(std::move(s));
  }
  count_launches(index, out);
  out.path = critical_path(index);
  const Window window = closer_look(index);
  const TrackId thread = training_thread(index);
  out.begin = window.begin;
  summarize_host(index, thread, window, out.host);
  for (const auto& [device, events] : index.devices()) {
    out.device_events += events.size();
    for (const auto& [start, event, launch] : events) {
      if (index.type(event) == KernelType::kCommunication)
        out.collectives.push_back({start, trace.end(event), std::string(trace.name_of(event))});
    }
    const DeviceSets sets = sets_of(index, events);
    out.devices.push_back(summarize_device(index, device, events, sets, window));
    for (TraceStepSummary& step : out.steps)
      step.devices[device] = times_of(sets, step.begin, step.begin + step.wall);
  }
  return out;
}

}  // namespace flatout::timeline
