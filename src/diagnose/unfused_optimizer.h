// A word on an optimizer that updates operation by operation.
#pragma once

#include <string>

#include "diagnose/view.h"

namespace flatout::diagnose {

/// "Its AdamW updates tensor by tensor ..."; "" where one pass would hardly be faster. No finding:
/// that is how PyTorch makes it.
std::string unfused_optimizer(const RunView& view);

}  // namespace flatout::diagnose
