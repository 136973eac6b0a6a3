// A trace as a picture of memory over its requests.
#pragma once

#include "devmem/trace.h"
#include "model/memory_history.h"

namespace flatout::devmem {

/// At most `most_columns` columns and `most_bands` bands, the last of which is all others. `card`:
/// its memory in bytes, or 0.
model::MemoryHistory memory_history(const Trace& trace, Bytes card = 0, size_t most_columns = 800,
                                    size_t most_bands = 12);

}  // namespace flatout::devmem
