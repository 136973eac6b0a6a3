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

// c10::Error(SourceLocation, std::string) and that of what derives from it, as the C++ ABI passes
// them: `this` first, both in memory.
using Construct = void(void* self, SourceLocation where, std::string text);

// The exception's own size is not known here; it has been below 400 bytes.
constexpr size_t kRoom = 4096;

void* find(const char* library, const char* name) {
  void* const loaded = ::dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return loaded != nullptr ? ::dlsym(loaded, name) : nullptr;
}

// c10::OutOfMemoryError is libc10's in PyTorch 2.13; in 2.11 it is defined wherever it is used.
void* find_of_torch(const char* name) {
  for (const char* library : {"libc10.so", "libc10_cuda.so", "libtorch_python.so"}) {
    if (void* const found = find(library, name)) return found;
  }
  return nullptr;
}

// Made of the last error's text; the string is gone again when this returns.
__attribute__((noinline)) void construct_error(Construct* construct, void* where) {
  construct(where, {"flatout_devmem_alloc", "libflatout_devmem.so", 0}, flatout_devmem_error());
}

// A c10::OutOfMemoryError in `where`, or false. It has no members of its own: a c10::Error becomes
// one by its table of virtual functions, whose first two entries are not functions.
bool construct_out_of_memory(void* where) {
  const auto base = reinterpret_cast<Construct*>(
      find("libc10.so",
           "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_string"
           "IcSt11char_traitsIcESaIcEEE"));
  void** const functions = static_cast<void**>(find_of_torch("_ZTVN3c1016OutOfMemoryErrorE"));
  if (base == nullptr || functions == nullptr) return false;
  construct_error(base, where);
  *static_cast<void**>(where) = functions + 2;
  return true;
}

/// c10::OutOfMemoryError, which Python sees as torch.OutOfMemoryError; where this process's PyTorch
/// does not show what that takes, a std::runtime_error with the same text.
[[noreturn]] void throw_out_of_memory() {
  constexpr const char* kRuntime = "libstdc++.so.6";
  auto* const type = static_cast<std::type_info*>(find_of_torch("_ZTIN3c1016OutOfMemoryErrorE"));
  const auto make = reinterpret_cast<void* (*)(size_t)>(find(kRuntime, "__cxa_allocate_exception"));
  const auto raise = reinterpret_cast<void (*)(void*, std::type_info*, void (*)(void*))>(
      find(kRuntime, "__cxa_throw"));
  if (type != nullptr && make != nullptr && raise != nullptr) {
    void* const thrown = make(kRoom);
    // Its destructor may have no symbol; the few bytes of its strings are left.
    if (construct_out_of_memory(thrown)) raise(thrown, type, nullptr);
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
