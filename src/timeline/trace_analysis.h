// All figures of one trace (definitions: docs/traces.md).
#pragma once

#include "model/trace_summary.h"
#include "timeline/trace_index.h"

namespace flatout::timeline {

model::TraceSummary summarize(const TraceIndex& index);

}  // namespace flatout::timeline
