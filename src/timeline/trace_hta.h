// The figures of HolisticTraceAnalysis (HTA) by its own definitions, for people who compare: what
// it counts as a device's event and of which type. Of its defaults two are not followed: the last
// step is kept, and nanoseconds are not rounded (its include_last_profiler_step and
// HTA_DISABLE_NS_ROUNDING=1).
// It sorts by time alone, so that what begins at the same moment comes in no certain order; here
// launches come before begins, and events in the file's order.
#pragma once

#include "model/trace_summary.h"
#include "timeline/trace_index.h"

namespace flatout::timeline {

/// By device. `index`: of a trace with its times as they stand in the file (snap_epoch_times() not
/// called).
std::vector<model::HtaSummary> hta_summary(const TraceIndex& index);

}  // namespace flatout::timeline
