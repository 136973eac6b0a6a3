// operator new and delete, all of them, without the C++ run time: what a failed new has to throw is
// looked up in whatever C++ library the process has, when it happens.
#include <dlfcn.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "malloc/export.h"
#include "malloc/front.h"
#include "malloc/os.h"

namespace fm = flatout::malloc;

namespace {

using Handler = void (*)();

// By their mangled names: std::get_new_handler(), std::__throw_bad_alloc().
void* find_symbol(const char* name) {
  if (void* found = dlsym(RTLD_DEFAULT, name)) return found;
  for (const char* library : {"libstdc++.so.6", "libc++.so.1"}) {
    // Loaded by dlopen into a scope of its own, for instance by an extension module of Python's.
    if (void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD)) {
      void* found = dlsym(handle, name);
      dlclose(handle);
      if (found != nullptr) return found;
    }
  }
  return nullptr;
}

// True: the program's new-handler ran (and did not throw), try again.
bool handled() {
  static void* getter = find_symbol("_ZSt15get_new_handlerv");
  if (getter == nullptr) return false;
  const Handler handler = reinterpret_cast<Handler (*)()>(getter)();
  if (handler == nullptr) return false;
  handler();
  return true;
}

[[noreturn]] void throw_bad_alloc() {
  if (void* thrower = find_symbol("_ZSt17__throw_bad_allocv")) {
    reinterpret_cast<void (*)()>(thrower)();
  }
  fm::os_message("operator new without memory, and no C++ library to throw with:", nullptr);
  std::abort();
}

// As malloc's promise, but new of less than 16 bytes is aligned for them only, too.
inline void* new_or_throw(size_t bytes) {
  void* p = front::allocate(bytes);
  while (__builtin_expect(p == nullptr, 0)) {
    if (!handled()) throw_bad_alloc();
    p = front::allocate(bytes);
  }
  return p;
}

inline void* new_or_null(size_t bytes) {
  void* p = front::allocate(bytes);
  while (__builtin_expect(p == nullptr, 0)) {
    if (!handled()) return nullptr;
    p = front::allocate(bytes);
  }
  return p;
}

void* aligned_or_null(size_t bytes, std::align_val_t alignment) {
  const auto a = static_cast<size_t>(alignment);
  void* p = front::allocate_aligned(a, bytes);
  while (p == nullptr && handled()) p = front::allocate_aligned(a, bytes);
  return p;
}

void* aligned_or_throw(size_t bytes, std::align_val_t alignment) {
  void* p = aligned_or_null(bytes, alignment);
  if (p == nullptr) throw_bad_alloc();
  return p;
}

}  // namespace

FLATOUT_EXPORT_HOT void* operator new(size_t n) { return new_or_throw(n); }
FLATOUT_EXPORT void* operator new[](size_t n) { return new_or_throw(n); }
FLATOUT_EXPORT void* operator new(size_t n, const std::nothrow_t&) noexcept {
  return new_or_null(n);
}
FLATOUT_EXPORT void* operator new[](size_t n, const std::nothrow_t&) noexcept {
  return new_or_null(n);
}
FLATOUT_EXPORT void* operator new(size_t n, std::align_val_t a) { return aligned_or_throw(n, a); }
FLATOUT_EXPORT void* operator new[](size_t n, std::align_val_t a) { return aligned_or_throw(n, a); }
FLATOUT_EXPORT void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return aligned_or_null(n, a);
}
FLATOUT_EXPORT void* operator new[](size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return aligned_or_null(n, a);
}

FLATOUT_EXPORT_HOT void operator delete(void* p) noexcept { front::deallocate(p); }
FLATOUT_EXPORT void operator delete[](void* p) noexcept { front::deallocate(p); }
FLATOUT_EXPORT void operator delete(void* p, const std::nothrow_t&) noexcept {
  front::deallocate(p);
}
FLATOUT_EXPORT void operator delete[](void* p, const std::nothrow_t&) noexcept {
  front::deallocate(p);
}
FLATOUT_EXPORT_HOT void operator delete(void* p, size_t) noexcept { front::deallocate(p); }
FLATOUT_EXPORT void operator delete[](void* p, size_t) noexcept { front::deallocate(p); }
FLATOUT_EXPORT void operator delete(void* p, std::align_val_t) noexcept { front::deallocate(p); }
FLATOUT_EXPORT void operator delete[](void* p, std::align_val_t) noexcept { front::deallocate(p); }
FLATOUT_EXPORT void operator delete(void* p, size_t, std::align_val_t) noexcept {
  front::deallocate(p);
}
FLATOUT_EXPORT void operator delete[](void* p, size_t, std::align_val_t) noexcept {
  front::deallocate(p);
}
FLATOUT_EXPORT void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  front::deallocate(p);
}
FLATOUT_EXPORT void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  front::deallocate(p);
}
