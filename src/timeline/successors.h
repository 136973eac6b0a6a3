// Loops that train each epoch in a new thread.
#pragma once

#include "model/run.h"

namespace flatout::timeline {

/// Where training threads of a process follow each other, each over before the next one trains,
/// they are one thread in all that follows: what was read of the later ones becomes the first
/// one's, and Thread::continues says so.
void join_successors(model::Run& run);

}  // namespace flatout::timeline
