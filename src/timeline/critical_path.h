// Critical path of one step, and what the step would take if some of its work took no time.
//
// The step is a graph. Host threads are chains of points (launches, waits for a device, hand-overs
// between threads); device events follow the one before in their stream and their launch; a call
// that waits ends after what it waited for. Played back as it is, the graph gives the measured
// times exactly; played back with other durations it answers what-if questions: Daydream (USENIX
// ATC 2020) does the same for whole jobs.
#pragma once

#include <optional>

#include "model/trace_summary.h"
#include "timeline/trace_index.h"

namespace flatout::timeline {

/// Of [begin, end). nullopt where no device worked for it.
std::optional<model::CriticalPath> critical_path(const TraceIndex& index, int64_t begin,
                                                 int64_t end);
/// Of the step of median length, or of a window from the middle of a trace without steps.
std::optional<model::CriticalPath> critical_path(const TraceIndex& index);

}  // namespace flatout::timeline
