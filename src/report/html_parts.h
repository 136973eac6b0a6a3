// The parts of the HTML report that are plain markup; charts are drawn into it by page.js.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "model/comparison.h"
#include "model/finding.h"
#include "model/run.h"

namespace flatout::report {

/// Text for HTML: escaped, with control characters and direction marks made visible, cut if huge.
std::string html_text(std::string_view s);

/// `step`: how long one takes on average, 0 where that is not known. `failed`: so did the job.
std::string verdict_html(const model::Diagnosis& diagnosis, Nanos step, bool failed = false);
std::string steps_html(const model::Run& run);
/// What the devices of the training process did; "" where none was recorded.
std::string devices_html(const model::Run& run);
std::string comparison_html(const model::Comparison& comparison);
/// Processes, facts of the machine and the job, what was not measured.
std::string details_html(const model::Run& run);

}  // namespace flatout::report
