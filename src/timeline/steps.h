// Finds the steps of a run and gives every nanosecond of each to exactly one part.
#pragma once

#include <vector>

#include "model/run.h"

namespace flatout::timeline {

/// Fills in run.steps and run.devices: from markers, else from hooks, else from what repeats in the
/// training thread's stacks. It says what happened, not what it means. Leaves an empty StepSet
/// where no steps can be told. Pure but for run.steps; may be called again as the run grows.
void find_steps(model::Run& run);

/// A piece of a step, for drawing. Where only readings tell the parts apart, their order within the
/// time is the usual one (other, input wait, forward), not measured.
struct PartPiece {
  TimePoint begin, end;
  model::Part part{};
};
/// The pieces of all steps of find_steps(), in time order, without overlap.
std::vector<PartPiece> find_parts(const model::Run& run);

}  // namespace flatout::timeline
