// What cuMemFreeAsync frees outside of living pools stays charged until the stream gets there: an
// event behind the free tells.
#pragma once

#include "devlimit/books.h"

namespace flatout::devlimit {

/// After such a call on that stream: `what` has the memory and its bytes. False: there is no event
/// to be had, and it counts as free at once.
bool begin_free(PendingFree what, Opaque stream, bool per_thread);
/// Gives back what is free by now on the device of that row.
void end_frees(int row);

/// Under Locked, before a context ends: takes what goes with it, and what waits for its streams.
PendingFree* take_frees_of(const Home& context);
/// After that: all of the list is given back.
void end_taken_frees(PendingFree* list);

}  // namespace flatout::devlimit
