// Lays out steps: from where to where each goes, and which of its time belongs to which part.
#pragma once

#include <span>
#include <vector>

#include "model/run.h"
#include "timeline/step_ends.h"
#include "timeline/steps.h"

namespace flatout::timeline {

struct Layout {
  std::vector<model::Step> steps;  // warm-up not yet told
  std::vector<model::Step> passes;
  std::vector<PartPiece> pieces;
  std::vector<model::Moment> moments;  // empty where slices tell
};

/// `slices`: those of the training thread, by end. `ends`: of find_step_ends().
Layout lay_out_steps(const model::Run& run, model::ThreadId thread,
                     std::span<const model::Slice> slices, const std::vector<StepEnd>& ends);

}  // namespace flatout::timeline
