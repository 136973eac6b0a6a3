// Why memory ran out, in a log: `flatout devmem explain`. Which error counts is decided as `flatout
// explain` decides it; what it says of device memory is told by the room devmem, which weighs more.
#pragma once

#include <string_view>

#include "devmem/explain.h"

namespace flatout::advise {

/// Kind "unknown" where nothing in it says that memory ran out, or the job got over it.
devmem::Explanation explain_memory(std::string_view log);

}  // namespace flatout::advise
