// A trace of any size as a picture of bounded size.
#pragma once

#include <cstdint>
#include <vector>

#include "model/trace_picture.h"
#include "model/trace_summary.h"
#include "timeline/trace_index.h"

namespace flatout::timeline {

/// At most about `most_slices` slices and blocks: half of them for all of the trace, the rest for a
/// closer look at its longest gaps and steps, and at whole steps from its middle.
model::TracePicture draw(const TraceIndex& index, const model::TraceSummary& summary,
                         size_t most_slices);

/// Puts the pictures on one clock, that of the first: collectives that all take part in end at the
/// same moment. Where there are none, by Unix time; where that is not known, all begin together.
void align(std::vector<model::TracePicture>& pictures,
           const std::vector<model::TraceSummary>& traces);

}  // namespace flatout::timeline
