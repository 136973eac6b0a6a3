// `flatout trace summary --json`: one document for any number of traces.
#pragma once

#include <string>
#include <vector>

#include "model/trace_diff.h"
#include "model/trace_summary.h"

namespace flatout::report {

std::string trace_summary_json(const std::vector<model::TraceSummary>& traces,
                               const model::TraceDiagnosis& diagnosis);

/// `flatout trace diff --json`. Times are of a step where both traces have steps, else of the whole
/// trace.
std::string trace_diff_json(const model::TraceDiff& diff);

}  // namespace flatout::report
