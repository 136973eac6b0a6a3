// cuGetProcAddress: what the CUDA runtime and most libraries look functions up with since 11.3.
#include "devlimit/cuda_abi.h"
#include "devlimit/export.h"
#include "devlimit/real.h"

namespace flatout::devlimit {
namespace {

void replace(const char* name, void** function, int version, uint64_t flags) {
  if (name == nullptr || function == nullptr || *function == nullptr) return;
  if (void* const hook = hook_for(name, version, flags)) *function = hook;
}

}  // namespace

extern "C" FLATOUT_EXPORT CUresult cuGetProcAddress(const char* name, void** function, int version,
                                                    uint64_t flags) {
  const CUresult result =
      FLATOUT_REAL(cuGetProcAddress, cuGetProcAddress, name, function, version, flags);
  if (result == CUDA_SUCCESS) replace(name, function, version, flags);
  return result;
}

extern "C" FLATOUT_EXPORT CUresult cuGetProcAddress_v2(const char* name, void** function,
                                                       int version, uint64_t flags, int* status) {
  const CUresult result = FLATOUT_REAL(cuGetProcAddress_v2, cuGetProcAddress_v2, name, function,
                                       version, flags, status);
  if (result == CUDA_SUCCESS) replace(name, function, version, flags);
  return result;
}

}  // namespace flatout::devlimit
