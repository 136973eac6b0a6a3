// One stream of a device: why it was idle, and how many launches waited for it.
#pragma once

#include <vector>

#include "model/trace_summary.h"
#include "timeline/trace_index.h"

namespace flatout::timeline {

// A gap between two events launched in time is the device's own doing below this, and a dependency
// above.
inline constexpr int64_t kShortGap = 30'000;

/// In order of their numbers. `events`: of one device, in order of their start.
std::vector<model::StreamSummary> summarize_streams(
    const TraceIndex& index, const std::vector<TraceIndex::DeviceEvent>& events);

}  // namespace flatout::timeline
