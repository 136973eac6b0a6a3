// Steps where no hook fits (MXNet, Caffe, JAX, NumPy, plain C++): what a thread does again and
// again, seen from outside.
#pragma once

#include <optional>
#include <vector>

#include "model/run.h"
#include "timeline/step_ends.h"

namespace flatout::timeline {

/// The main thread of the process that trains, as far as that can be told from outside; nullopt
/// where too little was read.
std::optional<model::ThreadId> find_main_thread(const model::Run& run);

struct Repetition {
  model::ThreadId thread = 0;
  std::vector<StepEnd> ends;  // each a moment at which the loop comes round
};

/// The loop of the job's main thread, by its counted rounds (loop_rounds.h), else by where the
/// thread is from reading to reading. nullopt unless it comes round at least five times; where not
/// counted, regularly, and slowly enough for the readings to follow.
std::optional<Repetition> find_repetition(const model::Run& run);

}  // namespace flatout::timeline
