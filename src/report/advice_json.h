// The JSON documents of `flatout explain` and `flatout check`.
#pragma once

#include <string>

#include "model/advice.h"

namespace flatout::report {

std::string explanation_json(const model::Explanation& explanation);
std::string check_up_json(const model::CheckUp& check_up);

}  // namespace flatout::report
