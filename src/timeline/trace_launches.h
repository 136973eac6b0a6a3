// Calls that give a device work: what they cost the host, how long the work waited, and which of
// them left no trace on a device.
#pragma once

#include <vector>

#include "model/trace_summary.h"
#include "timeline/trace_index.h"

namespace flatout::timeline {

/// `events`: of one device, in order of their start.
void add_launches(const TraceIndex& index, const std::vector<TraceIndex::DeviceEvent>& events,
                  model::LaunchSummary& out);

/// Fills in launches and unrecorded_launches. What is launched while a stream is captured only goes
/// into a graph.
void count_launches(const TraceIndex& index, model::TraceSummary& out);

}  // namespace flatout::timeline
