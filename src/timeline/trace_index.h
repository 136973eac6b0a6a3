// What the analyses of one trace share: its device events in order, who launched them, what kind
// each name is.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "model/trace.h"
#include "model/trace_summary.h"
#include "timeline/intervals.h"
#include "timeline/trace_steps.h"

namespace flatout::timeline {

/// What a device's event does, by its name and category; the same patterns for NVIDIA, AMD and
/// others.
model::KernelType kernel_type(std::string_view name, std::string_view category);

/// Puts the starts of a trace with epoch_times where a double holds them in nanoseconds: on
/// multiples of 256. Programs that write and read microseconds since 1970 do so, the reference of
/// our golden numbers too; whether two slices touch depends on it.
void snap_epoch_times(model::Trace& trace);

/// That grid: where microseconds since 1970 that are kept as a double come to lie in nanoseconds.
int64_t on_double_grid(int64_t ns);
/// The grid where they stay microseconds.
int64_t on_quarter_microseconds(int64_t ns);

class TraceIndex {
 public:
  /// `threads` share the work; the result does not depend on their number.
  explicit TraceIndex(const model::Trace& trace, unsigned threads = 1);

  struct DeviceEvent {
    int64_t start = 0;
    model::EventId event = 0;
    model::EventId launch = model::kNoEvent;  // kNoEvent where the trace lacks it
  };
  const model::Trace& trace() const { return trace_; }
  /// By device, each in order of their start.
  const std::map<int64_t, std::vector<DeviceEvent>>& devices() const { return devices_; }
  /// The runtime call with that correlation; kNoEvent where the trace lacks it.
  model::EventId launch(uint32_t correlation) const;
  model::EventId launch_of(model::EventId event) const { return launch(trace_.correlation[event]); }
  model::KernelType type(model::EventId event) const { return types_[event_type_(event)]; }
  /// When some thread asked a data loader for a batch.
  const Intervals& input() const { return input_; }
  /// Of the host, in order of their start.
  const std::vector<TraceStep>& steps() const { return steps_.steps; }
  model::TraceStepSource steps_from() const { return steps_.source; }
  /// Calls that wait for a device, in order of their start.
  const std::vector<model::EventId>& syncs() const { return syncs_; }
  /// When some thread was in a collective of the host's: gloo's, MPI's.
  const Intervals& collectives() const { return collectives_; }
  /// These slices, in order of their start.
  const std::vector<model::EventId>& collective_slices() const { return collective_slices_; }
  /// Operators that hand batches from Python to TensorFlow.
  const std::vector<model::EventId>& feeds() const { return feeds_; }

 private:
  size_t event_type_(model::EventId event) const {
    return size_t{trace_.name[event]} * 2 + (mem_categories_[trace_.category[event]] ? 1 : 0);
  }
  void sort_events();
  void find_launches();
  size_t slot_of(uint32_t correlation) const;

  const model::Trace& trace_;
  std::map<int64_t, std::vector<DeviceEvent>> devices_;
  // By correlation, from the least on: these are numbered one after the other. Where they are not
  // the event numbers lie in a table with open addressing.
  std::vector<model::EventId> launches_;
  uint32_t first_correlation_ = 0;
  bool hashed_ = false;
  std::vector<model::KernelType> types_;
  std::vector<bool> mem_categories_;
  Intervals input_, collectives_;
  TraceSteps steps_;
  std::vector<model::EventId> syncs_, feeds_, collective_slices_;
};

}  // namespace flatout::timeline
