// Finds the steps of a run and gives every nanosecond of each to exactly one part.
#pragma once

#include "model/run.h"

namespace flatout::timeline {

/// Fills in run.steps: from markers, else from hooks, else from what repeats in the training
/// thread's stacks. It says what happened, not what it means. Leaves an empty StepSet where no
/// steps can be told. Pure but for run.steps; may be called again as the run grows.
void find_steps(model::Run& run);

}  // namespace flatout::timeline
