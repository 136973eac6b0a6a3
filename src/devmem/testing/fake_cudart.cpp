// A stand-in for the CUDA runtime, for LD_PRELOAD in front of PyTorch's own, over the stand-in
// libcuda: devices, streams and events are that one's, kernels and copies do nothing but count as
// work on their stream. Only what PyTorch calls to make and free tensors is here.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstring>

namespace {

template <class... Arguments>
int call(const char* name, Arguments... arguments) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const function = ::dlsym(library, name);
  return function != nullptr ? reinterpret_cast<int (*)(Arguments...)>(function)(arguments...)
                             : 999;
}

thread_local int t_device = 0;

void enter(int device) {
  static void* contexts[2] = {};
  if (contexts[device] == nullptr) call("cuDevicePrimaryCtxRetain", &contexts[device], device);
  call("cuCtxSetCurrent", contexts[device]);
}
cudaError_t result(int code) { return static_cast<cudaError_t>(code); }
cudaError_t work(cudaStream_t stream) {
  enter(t_device);
  call("fakeLaunch", static_cast<void*>(stream));
  return cudaSuccess;
}
int nothing() { return 0; }

}  // namespace

extern "C" {

/// The version of the structures above, which PyTorch's must be, too.
int fakeRuntimeVersion() { return CUDART_VERSION; }

cudaError_t cudaGetDeviceCount(int* count) { return result(call("cuDeviceGetCount", count)); }
cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  t_device = device;
  enter(device);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int) {
  memset(out, 0, sizeof *out);
  strcpy(out->name, "stand-in");
  out->major = 9;
  out->multiProcessorCount = 2;
  out->maxThreadsPerMultiProcessor = 2048;
  out->maxThreadsPerBlock = 1024;
  out->warpSize = 32;
  out->totalGlobalMem = size_t{16} << 30;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  enter(t_device);
  return result(call("cuMemGetInfo_v2", free, total));
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the stand-in"; }
const char* cudaGetErrorName(cudaError_t) { return "stand-in"; }

cudaError_t cudaMalloc(void** at, size_t size) {
  enter(t_device);
  return result(call("cuMemAlloc_v2", reinterpret_cast<unsigned long*>(at), size));
}
cudaError_t cudaFree(void* at) {
  if (at == nullptr) return cudaSuccess;
  return result(call("cuMemFree_v2", reinterpret_cast<unsigned long>(at)));
}
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t stream) {
  return work(stream);
}
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t stream) { return work(stream); }
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return work(stream);
}
// What nvcc's calls of kernels are since CUDA 13.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void*) {
  *kernel = nullptr;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return work(stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
  return work(config->stream);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  enter(t_device);
  return result(call("cuStreamCreate", reinterpret_cast<void**>(stream), flags));
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  enter(t_device);
  return result(call("cuStreamSynchronize", static_cast<void*>(stream)));
}
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  enter(t_device);
  return result(call("cuEventCreate", reinterpret_cast<void**>(event), flags));
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  enter(t_device);
  return result(call("cuEventRecord", static_cast<void*>(event), static_cast<void*>(stream)));
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return result(call("cuEventQuery", static_cast<void*>(event)));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return result(call("cuEventSynchronize", static_cast<void*>(event)));
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return result(call("cuEventDestroy_v2", static_cast<void*>(event)));
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = reinterpret_cast<void*>(nothing);
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"
