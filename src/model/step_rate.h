// How fast the steps come just now.
#pragma once

#include <optional>

#include "model/step.h"

namespace flatout::model {

/// Steps per second over the last ten seconds or five steps, whichever is more; nullopt of fewer
/// than two steps.
std::optional<double> recent_rate(const StepSet& steps);

}  // namespace flatout::model
