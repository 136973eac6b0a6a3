// The recording of a process's large requests (malloc/recording.h), as its file is completed when
// the job has ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace flatout::heap {

/// Puts {"op":"mark"} where the steps begin (`begins`: ns of the monotonic clock, ascending),
/// unless the job marked its steps itself. `pid`: of the process that has them; `path`: the name
/// that was asked for, so the file of that process may be one beside it. Errors: those of reading
/// and writing; kNotFound where there is no file of that process, kUnsupported beyond 4 GiB.
Status mark_steps(const std::string& path, int32_t pid, const std::vector<uint64_t>& begins);

}  // namespace flatout::heap
