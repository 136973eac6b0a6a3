// What exceptions and fatal signals say of themselves (facts of the agent and of faulthandler).
#pragma once

#include <optional>
#include <string>

#include "model/finding.h"
#include "model/run.h"

namespace flatout::diagnose {

/// The user's innermost line in what faulthandler wrote when the signal struck.
std::optional<model::Where> fault_line(const model::Run& run);

// Of the exception that the facts with this prefix tell: "exception.", "thread_exception.",
// "pid.123.exception.".

/// The user's line that raised it; in a worker, if it came from there.
std::optional<model::Where> exception_line(const model::Run& run, const std::string& prefix);
/// The type, safe to print; "" if there is none.
std::string exception_type(const model::Run& run, const std::string& prefix);
/// The first line of its message, safe to print.
std::string exception_words(const model::Run& run, const std::string& prefix);

}  // namespace flatout::diagnose
