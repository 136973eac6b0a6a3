// What the kernels ask of the device beyond arithmetic.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace flatout::nn::cuda {

__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}

/// Two numbers on their way between blocks: halves of them, each beside a number that says which
/// exchange they are of. A store of eight bytes is seen whole or not at all, so who reads the right
/// number has read the half, too, and neither side needs a fence. Source: NCCL's protocol LL.
struct Letter {
  uint4 words[2];  // {low half, number, high half, number} of x; of y
};

__device__ inline void send(Letter* to, double2 value, uint32_t number) {
  const double both[2] = {value.x, value.y};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(
                     __cvta_generic_to_global(&to->words[i])),
                 "r"(__double2loint(both[i])), "r"(number), "r"(__double2hiint(both[i]))
                 : "memory");
  }
}

/// Waits for it. Not 0: that is what a letter's number is before it is sent.
__device__ inline double2 receive(const Letter* from, uint32_t number) {
  double both[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t low, first, high, second;
    do {
      asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(low), "=r"(first), "=r"(high), "=r"(second)
                   : "l"(__cvta_generic_to_global(&from->words[i]))
                   : "memory");
    } while (first != number || second != number);
    both[i] = __hiloint2double(static_cast<int>(high), static_cast<int>(low));
  }
  return {both[0], both[1]};
}

/// To device memory in one instruction: the compiler may split an assignment of 16 bytes into four.
__device__ inline void store_at_once(uint4* to, const uint4& raw) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w)
               : "memory");
}
__device__ inline void store_at_once(uint2* to, const uint2& raw) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(raw.x),
               "r"(raw.y)
               : "memory");
}
__device__ inline void store_at_once(uint32_t* to, uint32_t raw) { *to = raw; }
__device__ inline void store_at_once(uint16_t* to, uint16_t raw) { *to = raw; }

/// What a kernel is launched with.
struct Launch {
  unsigned blocks = 0;
  unsigned threads = 0;
  size_t shared_bytes = 0;
  size_t most_shared_bytes = 0;  // of any launch of this kernel on this device
  bool together = false;  // all blocks run at once, for they wait for each other; or it fails
  void* stream = nullptr;
};

/// Lets the kernel have so much of a multiprocessor's shared memory on the current device. The same
/// for every launch: threads, and graphs being captured, do not change it for each other.
template <auto kernel>
cudaError_t allow_shared(size_t bytes) {
  static std::atomic<uint64_t> allowed{0};  // a bit for each device
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if ((allowed.load(std::memory_order_relaxed) & bit) != 0) return cudaSuccess;
  const auto* function = reinterpret_cast<const void*>(kernel);
  error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
  if (error == cudaSuccess) allowed.fetch_or(bit, std::memory_order_relaxed);
  return error;
}

/// Queues a kernel on a stream of the current device.
template <auto kernel, class... Arguments>
cudaError_t queue(const Launch& launch, Arguments... arguments) {
  static_assert(std::is_same_v<decltype(kernel), void (*)(Arguments...)>);
  const cudaError_t error = allow_shared<kernel>(launch.most_shared_bytes);
  if (error != cudaSuccess) return error;
  void* pointers[] = {&arguments...};
  const auto* function = reinterpret_cast<const void*>(kernel);
  auto* stream = static_cast<cudaStream_t>(launch.stream);
  if (launch.together) {
    return cudaLaunchCooperativeKernel(function, dim3(launch.blocks), dim3(launch.threads),
                                       pointers, launch.shared_bytes, stream);
  }
  return cudaLaunchKernel(function, dim3(launch.blocks), dim3(launch.threads), pointers,
                          launch.shared_bytes, stream);
}

}  // namespace flatout::nn::cuda
