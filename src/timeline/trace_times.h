// How a device's time divides: busy, compute, communication, copies, what of them overlaps; over
// all of it and in each step.
#pragma once

#include <vector>

#include "model/trace_summary.h"
#include "timeline/trace_index.h"

namespace flatout::timeline {

/// Over the span from the first begin to the last end; `steps` (in order of their begins) get the
/// same for theirs, under `device`. `events`: of one device, in order of their start, at least one.
/// Memory does not grow with their number.
model::DeviceTimes divide_time(const TraceIndex& index, int64_t device,
                               const std::vector<TraceIndex::DeviceEvent>& events,
                               std::vector<model::TraceStepSummary>& steps);

}  // namespace flatout::timeline
