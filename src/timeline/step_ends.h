// Who trains, and where each step ends.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "model/run.h"

namespace flatout::timeline {

struct TrainingThread {
  model::ThreadId thread = 0;
  model::SliceKind anchor{};  // the kind of slice that tells steps apart
};

/// The thread with the job's steps: markers before optimizers before backward passes before waits
/// for input. Of several ranks that of the command itself, else the first. nullopt: no slices fit.
std::optional<TrainingThread> find_training_thread(const model::Run& run);

struct StepEnd {
  TimePoint at;
  int64_t index = 0;  // as the job counts, from 0; else in order; -1: here the first one begins
  bool lost = false;  // steps right before this one were not recorded
};

/// `slices`: of the training thread, by end. Ascending in time and index.
std::vector<StepEnd> find_step_ends(std::span<const model::Slice> slices, model::SliceKind anchor);

}  // namespace flatout::timeline
