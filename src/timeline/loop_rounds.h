// Steps by the rounds of a loop, counted from outside (SignalId::kLoopRounds).
#pragma once

#include <set>
#include <vector>

#include "model/run.h"
#include "timeline/step_ends.h"

namespace flatout::timeline {

/// The ends of the rounds of the loop in which process `pid` trains: of those around nearly all
/// that its loops do the innermost, unless its rounds are too short to be steps. Where several
/// rounds lie between two readings, they are taken to be equally long. Empty: none comes round
/// often enough.
std::vector<StepEnd> find_loop_rounds(const model::Run& run, int32_t pid);

/// The functions of native code in process `pid` whose loops were counted: "train" of an entity
/// named "train calls backward".
std::set<model::StringId> functions_with_loops(const model::Run& run, int32_t pid);

}  // namespace flatout::timeline
