#include "devmem/torch_error.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <new>
#include <typeinfo>

namespace flatout::devmem {
namespace {

// c10::SourceLocation (c10/util/Exception.h).
struct SourceLocation {
  const char* function;
  const char* file;
  uint32_t line;
};

// c10::OutOfMemoryError(SourceLocation, std::string), as the C++ ABI passes them: `this` first,
// both in memory.
using Construct = void(void* self, SourceLocation where, std::string text);
using Destroy = void(void* self);

// The exception's own size is not known here; it has been below 400 bytes.
constexpr size_t kRoom = 4096;

struct Full : std::bad_alloc {
  explicit Full(std::string words) : text(std::move(words)) {}
  const char* what() const noexcept override { return text.c_str(); }
  std::string text;
};

}  // namespace

void throw_as_torch(const std::string& text) {
  void* const c10 = ::dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  void* const runtime = ::dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
  const auto find = [](void* library, const char* name) {
    return library != nullptr ? ::dlsym(library, name) : nullptr;
  };
  const auto construct = reinterpret_cast<Construct*>(
      find(c10, "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char"
                "_traitsIcESaIcEEE"));
  auto* const type = static_cast<std::type_info*>(find(c10, "_ZTIN3c1016OutOfMemoryErrorE"));
  // The C++ run time that PyTorch works with, and not the one within this library, throws it.
  const auto make = reinterpret_cast<void* (*)(size_t)>(find(runtime, "__cxa_allocate_exception"));
  const auto raise = reinterpret_cast<void (*)(void*, std::type_info*, Destroy*)>(
      find(runtime, "__cxa_throw"));
  if (construct == nullptr || type == nullptr || make == nullptr || raise == nullptr)
    throw Full(text);
  void* const thrown = make(kRoom);
  construct(thrown, {"flatout_devmem_alloc", "libflatout_devmem.so", 0}, text);
  // Its destructor is inline there and may have no symbol; the few bytes of its strings are left.
  raise(thrown, type, nullptr);
  __builtin_unreachable();
}

}  // namespace flatout::devmem
