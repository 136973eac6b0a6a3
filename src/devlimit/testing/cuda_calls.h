// Calls the driver as programs do: by name, through the library's handle.
#pragma once

#include <dlfcn.h>

#include "devlimit/cuda_abi.h"
#include "devlimit/testing/fake_card.h"

namespace flatout::devlimit {

inline void* cuda_library() {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library;
}
inline void* nvml_library() {
  static void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  return library;
}

/// The types of the arguments must be the function's own.
template <class... Arguments>
int call_in(void* library, const char* name, Arguments... arguments) {
  void* const function = ::dlsym(library, name);
  return function != nullptr ? reinterpret_cast<int (*)(Arguments...)>(function)(arguments...) : -1;
}
template <class... Arguments>
CUresult cuda(const char* name, Arguments... arguments) {
  return call_in(cuda_library(), name, arguments...);
}

inline uint64_t taken(int device = 0) { return fake::card().used[device]; }

inline CUmemAllocationProp on_device(int device = 0) {
  CUmemAllocationProp out = {};
  out.type = 1;
  out.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return out;
}
inline CUmemPoolProps pool_on(int type, int device = 0) {
  CUmemPoolProps out = {};
  out.allocType = 1;
  out.location = {type, device};
  return out;
}

}  // namespace flatout::devlimit
