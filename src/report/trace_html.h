// The report of traces as one self-contained HTML file: the verdict, and a timeline to look into.
#pragma once

#include <string>
#include <vector>

#include "model/trace_picture.h"
#include "model/trace_summary.h"

namespace flatout::report {

/// One picture for each trace.
std::string render_trace_html(const std::vector<model::TraceSummary>& traces,
                              const model::TraceDiagnosis& diagnosis,
                              const std::vector<model::TracePicture>& pictures);

}  // namespace flatout::report
