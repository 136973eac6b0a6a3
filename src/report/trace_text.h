// The terminal's view of traces: verdict first, then where each device's time went.
#pragma once

#include <string>
#include <vector>

#include "model/trace_diff.h"
#include "model/trace_summary.h"
#include "report/terminal.h"

namespace flatout::report {

std::string render_trace_summary(const std::vector<model::TraceSummary>& traces,
                                 const model::TraceDiagnosis& diagnosis,
                                 const TextOptions& options);

std::string render_trace_diff(const model::TraceDiff& diff, const TextOptions& options);

}  // namespace flatout::report
