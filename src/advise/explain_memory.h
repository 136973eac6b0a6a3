// Why memory ran out, in a log: `flatout devmem explain`. Which error counts is decided as `flatout
// explain` decides it; what it says of device memory is told by the room devmem, which weighs more.
#pragma once

#include <functional>
#include <string_view>

#include "advise/log_reader.h"
#include "base/result.h"
#include "devmem/explain.h"

namespace flatout::advise {

/// The log's bytes from its beginning: it is read twice, and never held as a whole.
using OpenLog = std::function<Result<ReadBytes>()>;

/// Kind "unknown" where nothing in it says that memory ran out, or the job got over it. Errors:
/// those of reading.
Result<devmem::Explanation> explain_memory(const OpenLog& open);
devmem::Explanation explain_memory(std::string_view log);

}  // namespace flatout::advise
