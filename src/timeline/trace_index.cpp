#include "timeline/trace_index.h"

#include <algorithm>
#include <cmath>

#include "base/contains.h"
#include "base/parallel.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

bool is_sync_call(std::string_view name) {
  return contains(name, "Synchronize") || name == "cudaMemcpy" || name == "hipMemcpy" ||
         name == "hipMemcpyWithStream" || name == "cudaEventSynchronize" ||
         name == "urQueueFinish" || name == "urEventWait";
}

enum NameUse : uint8_t {
  kUnknown,
  kNothing,
  kStep,
  kOtherStep,
  kStepRange,
  kOptimizer,
  kInput,
  kSyncCall,
  kFeed,
  kCollective
};

NameUse use_of(std::string_view name, std::string_view format) {
  if (name.starts_with("ProfilerStep")) return kStep;
  if (format == "nsight" && names_step(name)) return kOtherStep;
  // As export_chrome.h writes a run.
  if (format == "flatout" && name.starts_with("step ")) return kStep;
  if ((format == "flatout" || format == "perfetto") && name == "input_wait") return kInput;
  if (name.starts_with("enumerate(DataLoader)") || name.starts_with("IteratorGetNext"))
    return kInput;
  // TensorFlow's: where no ProfilerStep is there.
  for (const std::string_view step :
       {"multi_step_on_iterator", "one_step_on_iterator", "train_function", "train", "StepMarker"})
    if (name == step) return kOtherStep;
  if (name.starts_with("PyFunc") || name == "_Arg") return kFeed;
  if (name.starts_with("gloo:") || name.starts_with("mpi:") || name.starts_with("MPI_"))
    return kCollective;
  if (name.starts_with(kOptimizerStep)) return kOptimizer;
  if (is_sync_call(name)) return kSyncCall;
  return names_step(name) ? kStepRange : kNothing;
}

// By device.
std::map<int64_t, size_t> count_device_events(const Trace& trace) {
  std::vector<size_t> of_track(trace.tracks.size());
  for (size_t i = 0; i < trace.size(); ++i)
    if (on_device(trace.kind[i])) ++of_track[trace.track[i]];
  std::map<int64_t, size_t> out;
  for (size_t t = 0; t < of_track.size(); ++t)
    if (of_track[t] > 0) out[trace.tracks[t].device] += of_track[t];
  return out;
}

}  // namespace

KernelType kernel_type(std::string_view name, std::string_view category) {
  if (name.starts_with("nccl") || name.starts_with("rccl") || name.starts_with("hccl") ||
      contains(name, "ncclKernel") || contains(name, "ncclDevKernel")) {
    return KernelType::kCommunication;
  }
  std::string_view rest = name;
  if (rest.starts_with("hip")) rest.remove_prefix(3);
  if (rest.starts_with("Memcpy") || rest.starts_with("Memset") || name.starts_with("dma") ||
      name == "CopyHostToDevice" || name == "CopyDeviceToHost" || name == "CopyDeviceToDevice" ||
      contains(category, "mem")) {
    return KernelType::kMemory;
  }
  return KernelType::kCompute;
}

namespace {

// From 2006 to 2041 doubles of microseconds lie 1/4 apart, those of nanoseconds 256; both are
// rounded to even.
bool in_our_time(int64_t ns) {
  return ns >= 1'152'921'504'606'846'976 && ns <= 2'251'799'813'685'000'000;
}

int64_t nearest(int64_t value, int64_t unit) {
  const int64_t below = value / unit, rest = value % unit * 2;
  return rest > unit || (rest == unit && below % 2 != 0) ? below + 1 : below;
}

}  // namespace

int64_t on_quarter_microseconds(int64_t ns) {
  return in_our_time(ns) ? nearest(ns * 4, 1000) * 250 : ns;
}

int64_t on_double_grid(int64_t ns) {
  if (in_our_time(ns)) return nearest(on_quarter_microseconds(ns), 256) * 256;
  const auto us = static_cast<double>(static_cast<long double>(ns) / 1000);
  return std::llround(us * 1000);
}

void snap_epoch_times(Trace& trace) {
  if (!trace.epoch_times) return;
  for (int64_t& start : trace.start) start = on_double_grid(start);
}

void TraceIndex::find_launches() {
  size_t count = 0;
  uint32_t least = UINT32_MAX, most = 0;
  const auto each = [&](auto&& visit) {
    for (size_t i = 0; i < trace_.size(); ++i) {
      if (trace_.kind[i] == EventKind::kRuntime && trace_.correlation[i] != 0)
        visit(trace_.correlation[i], static_cast<EventId>(i));
    }
  };
  each([&](uint32_t correlation, EventId) {
    ++count;
    least = std::min(least, correlation);
    most = std::max(most, correlation);
  });
  if (count == 0) return;
  first_correlation_ = least;
  const size_t range = size_t{most} - least + 1;
  hashed_ = range / 4 > count;
  size_t slots = 16;
  while (hashed_ && slots < count * 2) slots *= 2;
  launches_.assign(hashed_ ? slots : range, kNoEvent);
  each([&](uint32_t correlation, EventId event) {
    EventId& slot = launches_[slot_of(correlation)];
    if (slot == kNoEvent) slot = event;  // the first call stays
  });
}

// Where its launch is or would be.
size_t TraceIndex::slot_of(uint32_t correlation) const {
  if (!hashed_) return correlation - first_correlation_;
  const size_t mask = launches_.size() - 1;
  const uint32_t hash = correlation * 0x9E3779B1u;
  size_t at = hash & mask;
  while (launches_[at] != kNoEvent && trace_.correlation[launches_[at]] != correlation)
    at = (at + 1) & mask;
  return at;
}

EventId TraceIndex::launch(uint32_t correlation) const {
  if (correlation == 0 || launches_.empty()) return kNoEvent;
  if (!hashed_ &&
      (correlation < first_correlation_ || correlation - first_correlation_ >= launches_.size())) {
    return kNoEvent;
  }
  return launches_[slot_of(correlation)];
}

TraceIndex::TraceIndex(const Trace& trace, unsigned threads) : trace_(trace) {
  for_all(2, threads, [this](size_t i) { i == 0 ? sort_events() : find_launches(); });
  for (auto& [device, events] : devices_)
    for (DeviceEvent& e : events) e.launch = launch_of(e.event);
}

void TraceIndex::sort_events() {
  const Trace& trace = trace_;
  for (const std::string& category : trace.categories)
    mem_categories_.push_back(contains(category, "mem"));
  types_.resize(trace.strings.size() * 2);
  for (StringId id = 0; id < trace.strings.size(); ++id) {
    types_[size_t{id} * 2] = kernel_type(trace.strings[id], "");
    types_[size_t{id} * 2 + 1] = kernel_type(trace.strings[id], "mem");
  }
  std::vector<NameUse> uses(trace.strings.size(), kUnknown);
  const auto use = [&](EventId e) {
    NameUse& known = uses[trace.name[e]];
    if (known == kUnknown) known = use_of(trace.name_of(e), trace.format);
    return known;
  };
  for (const auto& [device, count] : count_device_events(trace)) devices_[device].reserve(count);
  std::vector<Interval64> input, collectives;
  StepSlices steps;
  std::vector<std::vector<DeviceEvent>*> device_of(trace.tracks.size());
  for (size_t i = 0; i < trace.size(); ++i) {
    const auto e = static_cast<EventId>(i);
    switch (trace.kind[i]) {
      case EventKind::kKernel:
      case EventKind::kMemcpy:
      case EventKind::kMemset: {
        auto*& list = device_of[trace.track[i]];
        if (list == nullptr) list = &devices_[trace.tracks[trace.track[i]].device];
        list->push_back({trace.start[i], e, kNoEvent});
        break;
      }
      case EventKind::kRuntime:
        if (use(e) == kSyncCall) syncs_.push_back(e);
        break;
      case EventKind::kAnnotation:
      case EventKind::kOther:
      case EventKind::kOp:
        switch (use(e)) {
          case kStep:
            if (trace.kind[i] == EventKind::kAnnotation || trace.kind[i] == EventKind::kOther)
              steps.profiler.push_back(e);
            break;
          case kOtherStep:
            steps.framework.push_back(e);
            break;
          case kStepRange:
            if (trace.kind[i] != EventKind::kOp) steps.ranges.push_back(e);
            break;
          case kOptimizer:
            steps.optimizer.push_back(e);
            break;
          case kInput:
            input.push_back({trace.start[i], trace.end(e)});
            break;
          case kFeed:
            feeds_.push_back(e);
            break;
          case kCollective:
            collectives.push_back({trace.start[i], trace.end(e)});
            collective_slices_.push_back(e);
            break;
          default:
            break;
        }
        break;
      default:
        break;
    }
  }
  input_ = unite(std::move(input));
  collectives_ = unite(std::move(collectives));
  steps_ = find_trace_steps(trace, steps);
  for (auto& [device, events] : devices_) {
    const auto earlier = [](const DeviceEvent& a, const DeviceEvent& b) {
      return a.start != b.start ? a.start < b.start : a.event < b.event;
    };
    if (!std::is_sorted(events.begin(), events.end(), earlier))
      std::sort(events.begin(), events.end(), earlier);
  }
  const auto by_start = [&](EventId a, EventId b) { return trace.start[a] < trace.start[b]; };
  std::stable_sort(syncs_.begin(), syncs_.end(), by_start);
  std::stable_sort(collective_slices_.begin(), collective_slices_.end(), by_start);
}

}  // namespace flatout::timeline
