// Whether a CUDA context can be created on each GPU: it is tried, in a process of its own, since a
// driver that is not well may hang or crash. libcuda is opened at run time; names and numbers as in
// its public cuda.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace flatout::advise {

/// What came of it on one GPU.
struct ContextTrial {
  int32_t device = 0;  // as CUDA counts them, in the order of the PCI bus
  int32_t code = 0;    // 0: there was a context, and it is gone again
  std::string error;   // "CUDA_ERROR_OUT_OF_MEMORY"
  std::string uuid;    // as NVML writes it: "GPU-..."; empty where it is not told
  uint64_t free_bytes = 0, total_bytes = 0;  // within the context
};

/// One after another, each with a few hundred megabytes of the GPU for as long as it takes, which
/// is up to a second or two; `most` for all of them.
/// Errors: kNotFound (no libcuda), kUnsupported (CUDA does not start), kTimeout, kGone (crashed).
Result<std::vector<ContextTrial>> try_contexts(const std::string& library, Nanos most);

}  // namespace flatout::advise
