// The report for a terminal: one screen that a person understands in ten seconds.
#pragma once

#include <string>

#include "model/comparison.h"
#include "model/finding.h"
#include "model/run.h"
#include "report/terminal.h"

namespace flatout::report {

/// Verdict, cost, gain, where, what to do; then evidence, breakdown, and what was not measured.
/// With options.height the least important lines are left out until it fits.
std::string render_text(const model::Run& run, const model::Diagnosis& diagnosis,
                        const TextOptions& options);

/// The block of `flatout compare`.
std::string render_comparison(const model::Comparison& comparison, const TextOptions& options);

/// The last stack of every thread of the job with what the thread was doing (`attach --dump`).
std::string render_stacks(const model::Run& run, const TextOptions& options);

}  // namespace flatout::report
