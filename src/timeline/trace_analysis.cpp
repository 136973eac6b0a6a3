#include "timeline/trace_analysis.h"

#include <algorithm>
#include <functional>

#include "base/parallel.h"
#include "timeline/critical_path.h"
#include "timeline/trace_gaps.h"
#include "timeline/trace_host.h"
#include "timeline/trace_launches.h"
#include "timeline/trace_owners.h"
#include "timeline/trace_times.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

using DeviceEvents = std::vector<TraceIndex::DeviceEvent>;

constexpr uint32_t kNoRow = 0xFFFFFFFF;
constexpr size_t kTypes = 3;  // of kernels

/// `row_of`: kNoRow for each name and type, and so again afterwards: there may be many devices.
void add_kernels(const TraceIndex& index, const DeviceEvents& events, std::vector<uint32_t>& row_of,
                 DeviceSummary& out) {
  const Trace& trace = index.trace();
  const auto slot = [&](EventId event) {
    return size_t{trace.name[event]} * kTypes + static_cast<size_t>(index.type(event));
  };
  struct Row {
    EventId event;
    KernelStat stat;
  };
  std::vector<Row> rows;
  for (const auto& [start, event, launch] : events) {
    uint32_t& row = row_of[slot(event)];
    if (row == kNoRow) {
      row = static_cast<uint32_t>(rows.size());
      rows.push_back({event, {index.type(event), "", 0, INT64_MIN, INT64_MAX, 0}});
    }
    KernelStat& stat = rows[row].stat;
    const int64_t duration = trace.duration[event];
    stat.sum += duration;
    stat.max = std::max(stat.max, duration);
    stat.min = std::min(stat.min, duration);
    ++stat.count;
  }
  for (const Row& row : rows) row_of[slot(row.event)] = kNoRow;
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

/// Waits for a thread that launched what came next.
struct HostWaits {
  int64_t length = 0;  // of all
  Intervals near;      // those in the window that is looked at closely, less input wait
};
using WaitsByThread = std::map<TrackId, HostWaits>;

// [begin, end) without what is in `but`.
void add_without(Intervals& to, int64_t begin, int64_t end, const Intervals& but) {
  auto piece = std::partition_point(but.all().begin(), but.all().end(),
                                    [&](const Interval64& i) { return i.end <= begin; });
  for (; piece != but.all().end() && piece->begin < end; ++piece) {
    to.add(begin, piece->begin);
    begin = piece->end;
  }
  to.add(begin, end);
}

WaitsByThread blame_gaps(const TraceIndex& index, const Window& window, const DeviceEvents& events,
                         DeviceSummary& out) {
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
        {
          HostWaits& waits = host_waits[index.trace().track[gap.launch]];
          waits.length += length;
          if (gap.begin < window.end && gap.end > window.begin)
            add_without(waits.near, gap.begin, gap.end, index.input());
        }
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
        out.unknown_input += gap.input;
        if (gap.waited) out.unknown_sync += length - gap.input;
        [[fallthrough]];
      case GapBlame::kOther:
        out.idle.other += length;
        break;
    }
  });
  return host_waits;
}

/// From the first begin to the last end.
int64_t span_of(const Trace& trace, const DeviceEvents& events) {
  int64_t end = events.front().start;
  for (const auto& [start, event, launch] : events)
    end = std::max(end, start + trace.duration[event]);
  return end - events.front().start;
}

void add_gaps(const TraceIndex& index, const DeviceEvents& events, const Window& window,
              DeviceSummary& out) {
  const int64_t span = span_of(index.trace(), events);
  for (const auto& [thread, waits] : blame_gaps(index, window, events, out)) {
    // Threads that hardly matter would each cost a pass over all events.
    if (waits.length * 20 > span) add_use(out.host, host_use(index, thread, window, waits.near));
  }
}

// Host time within the steps, or from first to last slice where there are none.
void summarize_host(const TraceIndex& index, TrackId thread, const Window& window,
                    HostSummary& out) {
  const Trace& trace = index.trace();
  Intervals span;
  for (const TraceStep& step : index.steps()) span.add(step.begin, step.end);
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
    if (out.loader.empty() && trace.name_of(static_cast<EventId>(i)).starts_with("IteratorGetNext"))
      out.loader = trace.name_of(static_cast<EventId>(i));  // TensorFlow's
    if (trace.kind[i] != EventKind::kOp) continue;
    ++out.operator_count;
    // A batch that Python makes for TensorFlow, in a thread of its own, is no work of the step's.
    if (trace.name_of(static_cast<EventId>(i)).starts_with("PyFunc")) continue;
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
  Intervals rest;  // neither an operator nor a batch asked for, nor a collective
  int64_t from = window.begin;
  std::vector<Interval64> known = busy.all();
  known.insert(known.end(), index.input().all().begin(), index.input().all().end());
  const Intervals worked = unite(known);
  const auto& collectives = index.collectives().all();
  known.insert(known.end(), collectives.begin(), collectives.end());
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
    out.collective_wait = static_cast<int64_t>(
        static_cast<double>(overlap(taken, looked_at) - overlap(worked, looked_at)) /
        static_cast<double>(looked_at.length()) * static_cast<double>(out.span));
  }
  if (loader != kNoEvent) out.input = host_use(index, loader, window, index.input());
  out.training = host_use(index, thread, window, rest);
}

}  // namespace

TraceSummary summarize(const TraceIndex& index, unsigned threads) {
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
  out.steps_from = index.steps_from();
  for (const TraceStep& step : index.steps()) {
    TraceStepSummary s;
    s.name = step.name;
    s.begin = step.begin;
    s.wall = step.wall();
    s.input_wait = overlap(index.input(), s.begin, s.begin + s.wall);
    out.steps.push_back(std::move(s));
  }
  const Window window = closer_look(index);
  const TrackId thread = training_thread(index);
  out.begin = window.begin;
  for (const auto& [device, events] : index.devices()) {
    out.device_events += events.size();
    for (const auto& [start, event, launch] : events) {
      if (index.type(event) == KernelType::kCommunication)
        out.collectives.push_back({start, trace.end(event), std::string(trace.name_of(event))});
    }
    DeviceSummary& d = out.devices.emplace_back();
    d.device = device;
    const auto name = trace.device_names.find(device);
    if (name != trace.device_names.end()) d.name = name->second;
    d.begin = events.front().start;
    if (!index.steps().empty() && index.steps().front().begin < d.begin)
      d.first_input_wait = overlap(index.input(), index.steps().front().begin, d.begin);
  }

  if (out.collectives.empty()) {
    for (const EventId e : index.collective_slices())
      out.collectives.push_back({trace.start[e], trace.end(e), std::string(trace.name_of(e))});
  }

  // Each fills in other members. The longest come first.
  std::vector<std::function<void()>> parts;
  const auto for_each_device = [&](auto&& part) {
    size_t i = 0;
    for (const auto& device : index.devices())
      parts.emplace_back(
          [part, events = &device.second, d = &out.devices[i++]] { part(*events, *d); });
  };
  for_each_device(
      [&](const DeviceEvents& events, DeviceSummary& d) { add_gaps(index, events, window, d); });
  parts.emplace_back([&] { summarize_host(index, thread, window, out.host); });
  parts.emplace_back([&] { out.path = critical_path(index); });
  parts.emplace_back([&] {  // of all devices: they share the steps, and the rows' table
    std::vector<uint32_t> row_of(trace.strings.size() * kTypes, kNoRow);
    size_t i = 0;
    for (const auto& [device, events] : index.devices()) {
      DeviceSummary& d = out.devices[i++];
      add_kernels(index, events, row_of, d);
      find_owners(index, window, events, d);
    }
  });
  parts.emplace_back([&] {
    size_t i = 0;
    for (const auto& [device, events] : index.devices())
      out.devices[i++].times = divide_time(index, device, events, out.steps);
  });
  for_each_device([&](const DeviceEvents& events, DeviceSummary& d) {
    d.streams = summarize_streams(index, events);
    add_launches(index, events, d.launch);
    add_copies(index, events, d);
  });
  parts.emplace_back([&] { count_launches(index, out); });
  for_all(parts.size(), threads, [&](size_t i) { parts[i](); });
  return out;
}

}  // namespace flatout::timeline
