// Threads that contend in malloc and free: they wait for each other's lock, and pass its cache
// lines to and fro.
#pragma once

#include "diagnose/view.h"

namespace flatout::diagnose {

/// In malloc or free: on a core, or waiting for another thread there.
bool in_allocator(const Cell& cell);

/// The part of the time that threads spend in there which they would not without each other; 0
/// where they do not contend. Heavy use alone is no contention: then nobody waits.
double malloc_contention(const RunView& view);

}  // namespace flatout::diagnose
