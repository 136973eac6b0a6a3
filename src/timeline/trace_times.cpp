#include "timeline/trace_times.h"

#include <algorithm>

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr size_t kBlock = 8192;  // events whose sets are held at once

struct DeviceSets {
  Intervals busy, compute, communication, memory;
  Intervals working;      // anything but copies from and to the host
  Intervals host_copies;  // these

  void forget(int64_t time) {
    for (Intervals* set : {&busy, &compute, &communication, &memory, &working, &host_copies})
      set->forget(time);
  }
};

bool with_host(std::string_view name) {
  for (const std::string_view way : {"HtoD", "DtoH", "HostToDevice", "DeviceToHost"})
    if (name.find(way) != std::string_view::npos) return true;
  return false;
}

void add_event(const TraceIndex& index, const TraceIndex::DeviceEvent& e, DeviceSets& sets) {
  const Trace& trace = index.trace();
  const int64_t end = trace.end(e.event);
  sets.busy.add(e.start, end);
  const bool host_copy =
      trace.kind[e.event] == EventKind::kMemcpy && with_host(trace.name_of(e.event));
  (host_copy ? sets.host_copies : sets.working).add(e.start, end);
  switch (index.type(e.event)) {
    case KernelType::kCompute:
      sets.compute.add(e.start, end);
      break;
    case KernelType::kCommunication:
      sets.communication.add(e.start, end);
      break;
    case KernelType::kMemory:
      sets.memory.add(e.start, end);
      break;
  }
}

void add_times(const DeviceSets& sets, int64_t begin, int64_t end, DeviceTimes& to) {
  to.busy += overlap(sets.busy, begin, end);
  to.compute += overlap(sets.compute, begin, end);
  to.communication += overlap(sets.communication, begin, end);
  to.memory += overlap(sets.memory, begin, end);
  to.overlap += overlap(sets.communication, sets.compute, begin, end);
  to.exposed_copies +=
      overlap(sets.host_copies, begin, end) - overlap(sets.host_copies, sets.working, begin, end);
}

}  // namespace

DeviceTimes divide_time(const TraceIndex& index, int64_t device,
                        const std::vector<TraceIndex::DeviceEvent>& events,
                        std::vector<TraceStepSummary>& steps) {
  const int64_t begin = events.front().start;
  int64_t end = INT64_MIN;
  for (const auto& e : events) end = std::max(end, index.trace().end(e.event));
  DeviceTimes all;
  all.span = end - begin;
  for (TraceStepSummary& step : steps) step.devices[device].span = step.wall;
  DeviceSets sets;
  size_t open = 0;  // the first step that is not over
  for (size_t first = 0; first < events.size(); first += kBlock) {
    const size_t last = std::min(first + kBlock, events.size());
    for (size_t i = first; i < last; ++i) add_event(index, events[i], sets);
    // What the sets hold of this stretch is all there is: what follows begins after it.
    const int64_t from = events[first].start;
    const int64_t to = last < events.size() ? events[last].start : end;
    add_times(sets, from, to, all);
    while (open < steps.size() && steps[open].begin + steps[open].wall <= from) ++open;
    for (size_t s = open; s < steps.size() && steps[s].begin < to; ++s) {
      const int64_t step_from = std::max(steps[s].begin, from);
      const int64_t step_to = std::min(steps[s].begin + steps[s].wall, to);
      if (step_from < step_to) add_times(sets, step_from, step_to, steps[s].devices[device]);
    }
    sets.forget(to);
  }
  return all;
}

}  // namespace flatout::timeline
