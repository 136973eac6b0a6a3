// A word on jobs that were told to leave cores idle.
#pragma once

#include <string>

#include "diagnose/view.h"

namespace flatout::diagnose {

/// "It was told to compute with 1 thread ..."; "" where more would hardly be faster, as far as it
/// can be told. No finding: who asks for one thread may have reasons, or other jobs beside it.
std::string few_threads(const RunView& view);

}  // namespace flatout::diagnose
