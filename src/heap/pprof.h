// A heap record as pprof's profile.proto (github.com/google/pprof, proto/profile.proto), which
// `go tool pprof` and speedscope read, and `pprof -diff_base` compares.
#pragma once

#include <string>

#include "heap/record.h"
#include "heap/sites.h"

namespace flatout::heap {

/// Not compressed. Values of a sample: blocks and bytes in use at the end, bytes at the peak,
/// blocks and bytes allocated.
std::string pprof_profile(const Record& record, symbols::NativeSymbols* symbols);

}  // namespace flatout::heap
