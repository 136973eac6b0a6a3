// The model's passes in evaluation mode within steps.
#pragma once

#include <span>
#include <vector>

#include "diagnose/view.h"

namespace flatout::diagnose {

/// Without gradients alone, a pass may be what training needs: a line search, priorities computed
/// anew, an agent that acts.
struct EvaluationPasses {
  std::vector<const model::Slice*> slices;
  size_t steps = 0;  // that have any
};

/// Those of the training thread that lie within one of `steps`, which are in the order of time.
EvaluationPasses evaluation_passes(const RunView& view, std::span<const model::Step* const> steps);

}  // namespace flatout::diagnose
