// Whose work a device does: the operators and modules whose code launched it.
#pragma once

#include <vector>

#include "model/trace_summary.h"
#include "timeline/trace_host.h"
#include "timeline/trace_index.h"

namespace flatout::timeline {

/// Fills in `owners`, and the owner of each kernel there. Of launches within the window alone.
/// Where the trace was read with TraceOptions::shapes, operators are told apart by their shapes.
/// `events`: of one device.
void find_owners(const TraceIndex& index, const Window& window,
                 const std::vector<TraceIndex::DeviceEvent>& events, model::DeviceSummary& out);

}  // namespace flatout::timeline
