// A process under a limit of 1 GiB on device 0 and 512 MiB on device 1, in front of a stand-in
// driver. What counts is what the stand-in card has handed out.
#pragma once

#include <gtest/gtest.h>

#include "devlimit/testing/cuda_calls.h"

namespace flatout::devlimit {

using fake::kMiB;
inline constexpr uint64_t kLimit = 1024 * kMiB;
inline constexpr CUresult kFull = CUDA_ERROR_OUT_OF_MEMORY;

class Devlimit : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(cuda_library(), nullptr) << ::dlerror();
    ASSERT_EQ(cuda("cuDevicePrimaryCtxRetain", &context_, CUdevice{0}), CUDA_SUCCESS);
    ASSERT_EQ(cuda("cuCtxSetCurrent", context_), CUDA_SUCCESS);
    ASSERT_EQ(taken(), fake::kContextBytes);
  }
  void TearDown() override {
    EXPECT_LE(fake::card().peak[0], kLimit);
    EXPECT_LE(fake::card().peak[1], kLimit / 2);
  }
  static CUresult allocate(CUdeviceptr* address, size_t bytes) {
    return cuda("cuMemAlloc_v2", address, bytes);
  }
  static CUresult free_it(CUdeviceptr address) { return cuda("cuMemFree_v2", address); }
  /// Free under the limit, as programs are told.
  static uint64_t room() {
    size_t free_bytes = 0, total = 0;
    EXPECT_EQ(cuda("cuMemGetInfo_v2", &free_bytes, &total), CUDA_SUCCESS);
    EXPECT_EQ(total, kLimit);
    return free_bytes;
  }
  /// Charged, as NVML is made to say; it needs no context.
  static uint64_t charged(unsigned index = 0) {
    Opaque device = nullptr;
    nvmlMemory memory = {};
    EXPECT_EQ(call_in(nvml_library(), "nvmlDeviceGetHandleByIndex_v2", index, &device),
              NVML_SUCCESS);
    EXPECT_EQ(call_in(nvml_library(), "nvmlDeviceGetMemoryInfo", device, &memory), NVML_SUCCESS);
    return memory.used;
  }
  Opaque context_ = nullptr;
};

}  // namespace flatout::devlimit
