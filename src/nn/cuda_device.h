// What the kernels ask of the device beyond arithmetic.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

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

/// Queues a kernel whose blocks wait for each other: all of them run at once, or the launch fails.
template <class... Arguments>
cudaError_t launch_together(void (*kernel)(Arguments...), unsigned blocks, unsigned threads,
                            size_t shared_bytes, void* stream, Arguments... arguments) {
  const auto* function = reinterpret_cast<const void*>(kernel);
  const cudaError_t error = cudaFuncSetAttribute(
      function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return error;
  void* pointers[] = {&arguments...};
  return cudaLaunchCooperativeKernel(function, dim3(blocks), dim3(threads), pointers, shared_bytes,
                                     static_cast<cudaStream_t>(stream));
}

}  // namespace flatout::nn::cuda
