// The CUDA run time as far as nn/cuda_batch_norm.cu and its test call it, without a card: memory is
// the host's. FLATOUT_TEST_DEVICE: multiprocessors and bytes of shared memory of each, "2,40000".
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  int multiprocessors = 2, shared = 40000;
  if (const char* device = std::getenv("FLATOUT_TEST_DEVICE")) {
    if (std::sscanf(device, "%d,%d", &multiprocessors, &shared) != 2) std::abort();
  }
  *value = attribute == cudaDevAttrMultiProcessorCount ? multiprocessors : shared;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaSuccess; }

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*pointer, 0xA5, bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t) { return "no error"; }

}  // extern "C"
