// Raises PyTorch's own exception from below it. Compiled without exceptions: the C++ run time that
// PyTorch works with throws, and not the one within this library, whose unwinder must have no part
// in it; so no frame here may have anything to clean up.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <typeinfo>

#include "devmem/installed_alloc.h"

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

// The exception's own size is not known here; it has been below 400 bytes.
constexpr size_t kRoom = 4096;

void* find(const char* library, const char* name) {
  void* const loaded = ::dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return loaded != nullptr ? ::dlsym(loaded, name) : nullptr;
}

// Made of the last error's text; the string is gone again when this returns.
__attribute__((noinline)) void construct_error(Construct* construct, void* where) {
  construct(where, {"flatout_devmem_alloc", "libflatout_devmem.so", 0}, flatout_devmem_error());
}

/// c10::OutOfMemoryError, which Python sees as torch.OutOfMemoryError; where this process's libc10
/// does not show what that takes, a std::runtime_error with the same text.
[[noreturn]] void throw_out_of_memory() {
  constexpr const char* kRuntime = "libstdc++.so.6";
  const auto construct = reinterpret_cast<Construct*>(
      find("libc10.so",
           "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_string"
           "IcSt11char_traitsIcESaIcEEE"));
  auto* const type =
      static_cast<std::type_info*>(find("libc10.so", "_ZTIN3c1016OutOfMemoryErrorE"));
  const auto make = reinterpret_cast<void* (*)(size_t)>(find(kRuntime, "__cxa_allocate_exception"));
  const auto raise = reinterpret_cast<void (*)(void*, std::type_info*, void (*)(void*))>(
      find(kRuntime, "__cxa_throw"));
  if (construct != nullptr && type != nullptr && make != nullptr && raise != nullptr) {
    void* const thrown = make(kRoom);
    construct_error(construct, thrown);
    // Its destructor may have no symbol; the few bytes of its strings are left.
    raise(thrown, type, nullptr);
  }
  const auto plain =
      reinterpret_cast<void (*)(const char*)>(find(kRuntime, "_ZSt21__throw_runtime_errorPKc"));
  if (plain != nullptr) plain(flatout_devmem_error());
  std::fprintf(stderr, "flatout: error: devmem: %s\n", flatout_devmem_error());
  std::abort();
}

}  // namespace

extern "C" void* flatout_devmem_alloc_or_throw(size_t bytes, int device, void* stream) {
  void* const out =
      flatout::devmem::installed_alloc(bytes, device, stream, __builtin_return_address(0));
  if (out == nullptr && bytes > 0) throw_out_of_memory();
  return out;
}
