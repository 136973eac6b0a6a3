#pragma once

// The files behind a name of a trace: profilers write folders, too.

#include <string>
#include <vector>

#include "base/result.h"

namespace flatout::timeline {

/// The trace of a run folder.
inline constexpr const char* kRunTrace = "trace.json.gz";

/// `path` itself if it is no folder. Of a run folder its trace; of one that TensorBoard reads
/// (PyTorch's tensorboard_trace_handler, plugins/profile of TensorFlow and JAX) the newest trace of
/// each process or host. At least one. Errors: kBadInput.
Result<std::vector<std::string>> trace_files(const std::string& path);

}  // namespace flatout::timeline
