#include "devmem/cuda_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <mutex>

namespace flatout::devmem {
namespace {

Result<CudaApi> open_library() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Error{Code::kNotFound, "there is no NVIDIA driver: libcuda.so.1 cannot be loaded",
                 "in a container, start it with the driver in it (--gpus all)"};
  CudaApi api;
  const char* lacks = nullptr;
// NOLINTBEGIN(bugprone-macro-parentheses): names and types
#define FLATOUT_CUDA_FUNCTION(member, symbol, arguments)                                 \
  api.member = reinterpret_cast<cuda::CUresult(*) arguments>(::dlsym(library, #symbol)); \
  if (api.member == nullptr) lacks = #symbol;
  FLATOUT_CUDA_FUNCTIONS
#undef FLATOUT_CUDA_FUNCTION
  // NOLINTEND(bugprone-macro-parentheses)
  api.context_synchronize =
      reinterpret_cast<cuda::CUresult (*)()>(::dlsym(library, "cuCtxSynchronize"));
  if (lacks != nullptr)
    return Error{Code::kUnsupported, fmt::format("the NVIDIA driver has no {}", lacks),
                 "install one of CUDA 11.2 or later"};
  if (const cuda::CUresult result = api.init(0); result != cuda::CUDA_SUCCESS)
    return Error{Code::kNotFound, fmt::format("cuInit gives {}", api.name_of(result)),
                 "flatout check says what is wrong with the card or the driver"};
  return api;
}

}  // namespace

Result<const CudaApi*> CudaApi::load() {
  // What failed is tried again: a card may appear, and a test may put a driver there.
  static std::mutex mutex;
  static const CudaApi* loaded = nullptr;
  const std::lock_guard lock(mutex);
  if (loaded == nullptr) {
    FLATOUT_TRY(const CudaApi api, open_library());
    loaded = new CudaApi(api);  // for as long as the process lives
  }
  return loaded;
}

std::string CudaApi::name_of(cuda::CUresult result) const {
  const char* name = nullptr;
  if (error_name(result, &name) == cuda::CUDA_SUCCESS && name != nullptr) return name;
  return fmt::format("error {}", result);
}

}  // namespace flatout::devmem
