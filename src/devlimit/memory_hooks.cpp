// Plain, pitched and managed memory, arrays and mipmaps, memory of other processes and other APIs.
#include "devlimit/array_bytes.h"
#include "devlimit/charged_call.h"
#include "devlimit/export.h"
#include "devlimit/pools.h"
#include "devlimit/real.h"

namespace flatout::devlimit {

extern "C" {
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address);
CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device);
}

extern "C" {

// The functions from before CUDA 3.2 have 32-bit addresses, which no card's memory fits today.
FLATOUT_EXPORT CUresult cuMemAlloc(unsigned*, unsigned) { return CUDA_ERROR_NOT_SUPPORTED; }
FLATOUT_EXPORT CUresult cuMemAllocPitch(unsigned*, unsigned*, unsigned, unsigned, unsigned) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
FLATOUT_EXPORT CUresult cuArrayCreate(Opaque*, const void*) { return CUDA_ERROR_NOT_SUPPORTED; }
FLATOUT_EXPORT CUresult cuArray3DCreate(Opaque*, const void*) { return CUDA_ERROR_NOT_SUPPORTED; }

FLATOUT_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  const Outermost outermost;
  const auto call = [&] { return FLATOUT_REAL(cuMemAlloc_v2, cuMemAlloc_v2, address, bytes); };
  if (!outermost) return call();
  return take(row_of_current(), bytes, Kind::kMemory, address, call);
}

FLATOUT_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuMemAllocManaged, cuMemAllocManaged, address, bytes, flags);
  };
  if (!outermost) return call();
  return take(row_of_current(), bytes, Kind::kMemory, address, call);
}

FLATOUT_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width,
                                           size_t height, unsigned element) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuMemAllocPitch_v2, cuMemAllocPitch_v2, address, pitch, width, height,
                        element);
  };
  const int row = outermost ? row_of_current() : -1;
  if (row < 0 || width == 0 || height == 0) return call();
  // The driver decides on the pitch; until it has, the coarsest alignment there is counts.
  constexpr uint64_t kCoarsest = 512;
  constexpr int kPitchAlignment = 51;  // CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT
  int alignment = 0;
  FLATOUT_REAL(cuDeviceGetAttribute, cuDeviceGetAttribute, &alignment, kPitchAlignment,
               ordinal_of(row));
  const uint64_t unit =
      static_cast<uint64_t>(alignment) > kCoarsest ? static_cast<uint64_t>(alignment) : kCoarsest;
  uint64_t guess = 0;
  if (__builtin_mul_overflow((width + unit - 1) / unit * unit, height, &guess) ||
      !charge(row, guess))
    return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    give_back(row, guess);
    return result;
  }
  const uint64_t bytes = *pitch * height;
  if (bytes > guess && !charge_taken(row, bytes - guess)) {
    FLATOUT_REAL(cuMemFree_v2, cuMemFree_v2, *address);
    give_back(row, guess);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (bytes < guess) give_back(row, guess - bytes);
  Opaque const context = current_context();
  const Locked lock;
  books().table.put({*address, Kind::kMemory, row, bytes, home_of(context)});
  return result;
}

FLATOUT_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  const Outermost outermost;
  const auto call = [&] { return FLATOUT_REAL(cuMemFree_v2, cuMemFree_v2, address); };
  if (!outermost) return call();
  CUresult result = CUDA_SUCCESS;
  if (free_pooled(address, call, result)) return result;
  return release(Kind::kMemory, address, call);
}

FLATOUT_EXPORT CUresult cuArrayCreate_v2(Opaque* array, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuArrayCreate_v2, cuArrayCreate_v2, array, descriptor);
  };
  if (!outermost || descriptor == nullptr) return call();
  const CUDA_ARRAY_DESCRIPTOR& d = *descriptor;
  return take(row_of_current(), array_bytes({d.Width, d.Height, 0, d.Format, d.NumChannels, 0}, 1),
              Kind::kArray, array, call);
}

FLATOUT_EXPORT CUresult cuArray3DCreate_v2(Opaque* array,
                                           const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuArray3DCreate_v2, cuArray3DCreate_v2, array, descriptor);
  };
  if (!outermost || descriptor == nullptr) return call();
  return take(row_of_current(), array_bytes(*descriptor, 1), Kind::kArray, array, call);
}

FLATOUT_EXPORT CUresult cuArrayDestroy(Opaque array) {
  const Outermost outermost;
  const auto call = [&] { return FLATOUT_REAL(cuArrayDestroy, cuArrayDestroy, array); };
  return outermost ? release(Kind::kArray, key(array), call) : call();
}

FLATOUT_EXPORT CUresult cuMipmappedArrayCreate(Opaque* array,
                                               const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                                               unsigned levels) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuMipmappedArrayCreate, cuMipmappedArrayCreate, array, descriptor, levels);
  };
  if (!outermost || descriptor == nullptr) return call();
  return take(row_of_current(), array_bytes(*descriptor, levels), Kind::kArray, array, call);
}

FLATOUT_EXPORT CUresult cuMipmappedArrayDestroy(Opaque array) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, array);
  };
  return outermost ? release(Kind::kArray, key(array), call) : call();
}

FLATOUT_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  const Outermost outermost;
  const auto call = [&] { return FLATOUT_REAL(cuIpcCloseMemHandle, cuIpcCloseMemHandle, address); };
  return outermost ? release(Kind::kMemory, address, call) : call();
}

}  // extern "C"

namespace {

// Opened twice in a context, memory comes at one address. It is there once, until it has been
// closed as often as it was opened.
bool opened_again(CUdeviceptr address) {
  Entry* const entry = books().table.find(Kind::kMemory, address);
  if (entry == nullptr) return false;
  ++entry->again;
  return true;
}

// The memory is there already, in another process; its size shows only once it is open.
template <class Close>
CUresult charge_opened(CUresult result, const CUdeviceptr* address, Close close) {
  if (result != CUDA_SUCCESS) return result;
  const int row = row_of_current();
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (row < 0 || FLATOUT_REAL(cuMemGetAddressRange_v2, cuMemGetAddressRange_v2, &base, &bytes,
                              *address) != CUDA_SUCCESS)
    return result;
  {
    const Locked lock;
    if (opened_again(*address)) return result;
  }
  if (!charge_taken(row, bytes)) {
    close();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Opaque const context = current_context();
  const Locked lock;
  if (opened_again(*address)) {  // another thread opened it meanwhile
    give_back(row, bytes);
  } else {
    books().table.put({*address, Kind::kMemory, row, bytes, home_of(context)});
  }
  return result;
}

}  // namespace

extern "C" {

FLATOUT_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle,
                                           unsigned flags) {
  const Outermost outermost;
  const CUresult result =
      FLATOUT_REAL(cuIpcOpenMemHandle, cuIpcOpenMemHandle, address, handle, flags);
  const auto close = [&] { FLATOUT_REAL(cuIpcCloseMemHandle, cuIpcCloseMemHandle, *address); };
  return outermost ? charge_opened(result, address, close) : result;
}

FLATOUT_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle,
                                              unsigned flags) {
  const Outermost outermost;
  const CUresult result =
      FLATOUT_REAL(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle_v2, address, handle, flags);
  const auto close = [&] { FLATOUT_REAL(cuIpcCloseMemHandle, cuIpcCloseMemHandle, *address); };
  return outermost ? charge_opened(result, address, close) : result;
}

FLATOUT_EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr* address, Opaque pool, void* data) {
  const Outermost outermost;
  const CUresult result =
      FLATOUT_REAL(cuMemPoolImportPointer, cuMemPoolImportPointer, address, pool, data);
  const auto close = [&] { FLATOUT_REAL(cuMemFree_v2, cuMemFree_v2, *address); };
  return outermost ? charge_opened(result, address, close) : result;
}

FLATOUT_EXPORT CUresult cuImportExternalMemory(Opaque* memory,
                                               const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* what) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuImportExternalMemory, cuImportExternalMemory, memory, what);
  };
  if (!outermost || what == nullptr) return call();
  return take(row_of_current(), what->size, Kind::kExternal, memory, call);
}

FLATOUT_EXPORT CUresult cuDestroyExternalMemory(Opaque memory) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuDestroyExternalMemory, cuDestroyExternalMemory, memory);
  };
  return outermost ? release(Kind::kExternal, key(memory), call) : call();
}

}  // extern "C"
}  // namespace flatout::devlimit
