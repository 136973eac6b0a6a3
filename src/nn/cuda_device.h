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

/// Returns when `counter`, to which each of several blocks adds one, has reached `target`. What the
/// block wrote before __syncthreads() is then seen by the others' load_shared_by_all().
__device__ inline void meet_others(uint32_t* counter, uint32_t target) {
  __threadfence();
  atomicAdd(counter, 1);
  while (*static_cast<volatile uint32_t*>(counter) < target) {
  }
  __threadfence();
}

/// Past the multiprocessor's own cache, which other blocks' writes do not reach.
__device__ inline double2 load_shared_by_all(const double2* from) { return __ldcg(from); }

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
