// `flatout trace summary --json`: one document for any number of traces.
#pragma once

#include <string>
#include <vector>

#include "model/finding.h"
#include "model/trace_summary.h"

namespace flatout::report {

std::string trace_summary_json(const std::vector<model::TraceSummary>& traces,
                               const model::TraceDiagnosis& diagnosis);

}  // namespace flatout::report
