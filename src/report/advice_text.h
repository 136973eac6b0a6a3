// The terminal's view of `flatout explain` and `flatout check`.
#pragma once

#include <string>

#include "model/advice.h"
#include "report/terminal.h"

namespace flatout::report {

std::string render_explanation(const model::Explanation& explanation, const TextOptions& options);
std::string render_check_up(const model::CheckUp& check_up, const TextOptions& options);

}  // namespace flatout::report
