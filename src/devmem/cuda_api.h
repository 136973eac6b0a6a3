// The functions of libcuda that CudaDriver calls, found by dlopen: Flatout builds and runs without
// CUDA.
#pragma once

#include "base/result.h"
#include "wire/cuda_abi.h"

namespace flatout::devmem {

// FLATOUT_CUDA_FUNCTION(member, symbol, types of the arguments). All there since CUDA 11.2.
#define FLATOUT_CUDA_FUNCTIONS                                                                     \
  FLATOUT_CUDA_FUNCTION(init, cuInit, (unsigned))                                                  \
  FLATOUT_CUDA_FUNCTION(device_count, cuDeviceGetCount, (int*))                                    \
  FLATOUT_CUDA_FUNCTION(device, cuDeviceGet, (cuda::CUdevice*, int))                               \
  FLATOUT_CUDA_FUNCTION(attribute, cuDeviceGetAttribute, (int*, int, cuda::CUdevice))              \
  FLATOUT_CUDA_FUNCTION(total, cuDeviceTotalMem_v2, (size_t*, cuda::CUdevice))                     \
  FLATOUT_CUDA_FUNCTION(can_access, cuDeviceCanAccessPeer, (int*, cuda::CUdevice, cuda::CUdevice)) \
  FLATOUT_CUDA_FUNCTION(retain_context, cuDevicePrimaryCtxRetain, (cuda::Opaque*, cuda::CUdevice)) \
  FLATOUT_CUDA_FUNCTION(release_context, cuDevicePrimaryCtxRelease_v2, (cuda::CUdevice))           \
  FLATOUT_CUDA_FUNCTION(push_context, cuCtxPushCurrent_v2, (cuda::Opaque))                         \
  FLATOUT_CUDA_FUNCTION(pop_context, cuCtxPopCurrent_v2, (cuda::Opaque*))                          \
  FLATOUT_CUDA_FUNCTION(memory_info, cuMemGetInfo_v2, (size_t*, size_t*))                          \
  FLATOUT_CUDA_FUNCTION(allocate, cuMemAlloc_v2, (cuda::CUdeviceptr*, size_t))                     \
  FLATOUT_CUDA_FUNCTION(free, cuMemFree_v2, (cuda::CUdeviceptr))                                   \
  FLATOUT_CUDA_FUNCTION(allocate_async, cuMemAllocAsync,                                           \
                        (cuda::CUdeviceptr*, size_t, cuda::Opaque))                                \
  FLATOUT_CUDA_FUNCTION(free_async, cuMemFreeAsync, (cuda::CUdeviceptr, cuda::Opaque))             \
  FLATOUT_CUDA_FUNCTION(granularity, cuMemGetAllocationGranularity,                                \
                        (size_t*, const cuda::CUmemAllocationProp*, int))                          \
  FLATOUT_CUDA_FUNCTION(                                                                           \
      reserve, cuMemAddressReserve,                                                                \
      (cuda::CUdeviceptr*, size_t, size_t, cuda::CUdeviceptr, unsigned long long))                 \
  FLATOUT_CUDA_FUNCTION(unreserve, cuMemAddressFree, (cuda::CUdeviceptr, size_t))                  \
  FLATOUT_CUDA_FUNCTION(create, cuMemCreate,                                                       \
                        (cuda::CUmemGenericAllocationHandle*, size_t,                              \
                         const cuda::CUmemAllocationProp*, unsigned long long))                    \
  FLATOUT_CUDA_FUNCTION(release, cuMemRelease, (cuda::CUmemGenericAllocationHandle))               \
  FLATOUT_CUDA_FUNCTION(                                                                           \
      map, cuMemMap,                                                                               \
      (cuda::CUdeviceptr, size_t, size_t, cuda::CUmemGenericAllocationHandle, unsigned long long)) \
  FLATOUT_CUDA_FUNCTION(set_access, cuMemSetAccess,                                                \
                        (cuda::CUdeviceptr, size_t, const cuda::CUmemAccessDesc*, size_t))         \
  FLATOUT_CUDA_FUNCTION(unmap, cuMemUnmap, (cuda::CUdeviceptr, size_t))                            \
  FLATOUT_CUDA_FUNCTION(stream_synchronize, cuStreamSynchronize, (cuda::Opaque))                   \
  FLATOUT_CUDA_FUNCTION(is_capturing, cuStreamIsCapturing, (cuda::Opaque, int*))                   \
  FLATOUT_CUDA_FUNCTION(event_create, cuEventCreate, (cuda::Opaque*, unsigned))                    \
  FLATOUT_CUDA_FUNCTION(event_record, cuEventRecord, (cuda::Opaque, cuda::Opaque))                 \
  FLATOUT_CUDA_FUNCTION(event_query, cuEventQuery, (cuda::Opaque))                                 \
  FLATOUT_CUDA_FUNCTION(event_synchronize, cuEventSynchronize, (cuda::Opaque))                     \
  FLATOUT_CUDA_FUNCTION(event_destroy, cuEventDestroy_v2, (cuda::Opaque))                          \
  FLATOUT_CUDA_FUNCTION(error_name, cuGetErrorName, (cuda::CUresult, const char**))

struct CudaApi {
// NOLINTBEGIN(bugprone-macro-parentheses): names and types
#define FLATOUT_CUDA_FUNCTION(member, symbol, arguments) \
  cuda::CUresult(*member) arguments = nullptr;
  FLATOUT_CUDA_FUNCTIONS
#undef FLATOUT_CUDA_FUNCTION
  // NOLINTEND(bugprone-macro-parentheses)
  cuda::CUresult (*context_synchronize)() = nullptr;  // cuCtxSynchronize; null in stand-ins

  /// The process's libcuda.so.1, initialised; it stays loaded. Errors: kNotFound without a driver
  /// or a card; kUnsupported where the driver is too old; kIo with the driver's own name for it.
  static Result<const CudaApi*> load();

  /// "CUDA_ERROR_NOT_READY", or the number.
  std::string name_of(cuda::CUresult result) const;
};

}  // namespace flatout::devmem
