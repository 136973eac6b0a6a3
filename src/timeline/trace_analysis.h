// All figures of one trace (definitions: docs/traces.md).
#pragma once

#include "model/trace_summary.h"
#include "timeline/trace_index.h"

namespace flatout::timeline {

/// `threads` share the work; the result does not depend on their number.
model::TraceSummary summarize(const TraceIndex& index, unsigned threads = 1);

}  // namespace flatout::timeline
