// The CUDA driver's binary interface (wire/cuda_abi.h), and the part of NVML's that the interposer
// needs, declared here so that it builds without CUDA.
#pragma once

#include "wire/cuda_abi.h"

namespace flatout::devlimit {

using namespace cuda;  // NOLINT(google-build-using-namespace): the interface's own names

using nvmlReturn = int;
enum : nvmlReturn { NVML_SUCCESS = 0, NVML_ERROR_INSUFFICIENT_SIZE = 7, NVML_ERROR_NOT_FOUND = 13 };
struct nvmlMemory {
  unsigned long long total, free, used;
};
struct nvmlMemory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct nvmlProcessInfo {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId, computeInstanceId;
};

}  // namespace flatout::devlimit
