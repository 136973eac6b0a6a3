// Input that a graph waits for by itself: a step of TensorFlow's that is one call of a compiled
// function takes its batch inside it, where no hook sees the wait.
#pragma once

#include "model/run.h"

namespace flatout::timeline {

/// Splits the forward slices of thread `trainer` into input wait and the rest, where Python of the
/// job's own makes the batches in other threads (feed slices) without a pause, and the process
/// computes nothing meanwhile. Called again, with more of the run, it first takes back what it did.
void reveal_graph_input(model::Run& run, model::ThreadId trainer);

}  // namespace flatout::timeline
