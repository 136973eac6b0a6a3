// The report as one self-contained HTML file: no request ever leaves it, and a policy inside allows
// only our own scripts and styles (by hash), so no name in the data can run as code.
#pragma once

#include <string>

#include "model/comparison.h"
#include "model/finding.h"
#include "model/run.h"

namespace flatout::report {

struct HtmlOptions {
  const model::Comparison* comparison = nullptr;  // shown as a section of its own if given
};

/// Bounded: about 0.4 MB for a short run, at most 3 MB however long it was.
std::string render_html(const model::Run& run, const model::Diagnosis& diagnosis,
                        const HtmlOptions& options = {});

/// What stands in that page: markup and the charts' data, without the frame, styles and scripts.
std::string report_body(const model::Run& run, const model::Diagnosis& diagnosis,
                        const HtmlOptions& options = {});

}  // namespace flatout::report
