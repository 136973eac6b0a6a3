// Which kernels, operators and modules take longer in one trace than in another.
#pragma once

#include "model/trace.h"
#include "model/trace_diff.h"

namespace flatout::timeline {

/// `a` before, `b` after. Read both with TraceOptions::shapes for operators to be matched by their
/// shapes too.
model::TraceDiff diff_traces(const model::Trace& a, const model::Trace& b);

}  // namespace flatout::timeline
