// Numbers too small for their format's exponent, on which a CPU takes many times as long.
#pragma once

#include <optional>

#include "diagnose/view.h"
#include "model/finding.h"

namespace flatout::diagnose {

/// What they cost: at least what one pass over those that the agent saw takes longer; where the job
/// got slower (`fast`: its steps before that, `slow`: after it; or both null), what its kernels
/// take longer since then. nullopt where that is not worth saying.
std::optional<model::Finding> find_denormals(const RunView& view, const RunView* fast,
                                             const RunView* slow);

}  // namespace flatout::diagnose
