// The C library's allocation functions, as glibc has them, in front of allocator.h.
// This file is only in the shared object: tests link the allocator without it.
#include <dlfcn.h>
#include <malloc.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "malloc/allocator.h"
#include "malloc/export.h"
#include "malloc/fork.h"
#include "malloc/front.h"
#include "malloc/mappings.h"
#include "malloc/profile.h"
#include "malloc/start.h"

namespace fm = flatout::malloc;

namespace {

bool power_of_two(size_t n) { return n != 0 && (n & (n - 1)) == 0; }

size_t os_page() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

void* allocate_rounded_up(size_t alignment, size_t bytes) {
  if (alignment > SIZE_MAX / 2 + 1) {
    errno = EINVAL;
    return nullptr;
  }
  size_t power = 1;
  while (power < alignment) power *= 2;
  return front::allocate_aligned(power, bytes);
}

}  // namespace

extern "C" {

FLATOUT_EXPORT_HOT void* malloc(size_t bytes) { return front::allocate(bytes); }

FLATOUT_EXPORT_HOT void free(void* p) { front::deallocate(p); }

// What pthread_atfork() calls.
FLATOUT_EXPORT int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(),
                                     void* dso) {
  using Register = int (*)(void (*)(), void (*)(), void (*)(), void*);
  fm::watch_forks();
  const auto next = reinterpret_cast<Register>(::dlsym(RTLD_NEXT, "__register_atfork"));
  return next == nullptr ? ENOMEM : next(prepare, parent, child, dso);
}

// Stacks of the heap's record may lead through the library.
FLATOUT_EXPORT int dlclose(void* library) {
  using Close = int (*)(void*);
  if (fm::has_heap_path()) fm::remember_mappings();
  const auto next = reinterpret_cast<Close>(::dlsym(RTLD_NEXT, "dlclose"));
  return next == nullptr ? -1 : next(library);
}

FLATOUT_EXPORT void cfree(void* p) { front::deallocate(p); }

FLATOUT_EXPORT void* calloc(size_t count, size_t bytes) {
  return front::allocate_zeroed(count, bytes);
}

FLATOUT_EXPORT void* realloc(void* p, size_t bytes) { return front::reallocate(p, bytes); }

FLATOUT_EXPORT void* reallocarray(void* p, size_t count, size_t bytes) {
  size_t total;
  if (__builtin_mul_overflow(count, bytes, &total)) {
    errno = ENOMEM;
    return nullptr;
  }
  return front::reallocate(p, total);
}

// As glibc: an alignment that is no power of two becomes the next one.
FLATOUT_EXPORT void* memalign(size_t alignment, size_t bytes) {
  return allocate_rounded_up(alignment, bytes);
}

// As glibc up to 2.37. Later ones refuse such an alignment here: nobody can rely on either.
FLATOUT_EXPORT void* aligned_alloc(size_t alignment, size_t bytes) {
  return allocate_rounded_up(alignment, bytes);
}

FLATOUT_EXPORT int posix_memalign(void** out, size_t alignment, size_t bytes) {
  if (alignment % sizeof(void*) != 0 || !power_of_two(alignment)) return EINVAL;
  const int saved = errno;
  void* p = front::allocate_aligned(alignment, bytes);
  errno = saved;
  if (p == nullptr) return ENOMEM;
  *out = p;
  return 0;
}

FLATOUT_EXPORT void* valloc(size_t bytes) { return front::allocate_aligned(os_page(), bytes); }

FLATOUT_EXPORT void* pvalloc(size_t bytes) {
  const size_t page = os_page();
  if (bytes > SIZE_MAX - page) {
    errno = ENOMEM;
    return nullptr;
  }
  return front::allocate_aligned(page, std::max(page, (bytes + page - 1) / page * page));
}

FLATOUT_EXPORT size_t malloc_usable_size(void* p) { return front::usable_size(p); }

// C23.
FLATOUT_EXPORT void free_sized(void* p, size_t) { front::deallocate(p); }
FLATOUT_EXPORT void free_aligned_sized(void* p, size_t, size_t) { front::deallocate(p); }

FLATOUT_EXPORT int malloc_trim(size_t) { return front::purge() != 0 ? 1 : 0; }

// There is nothing here that mallopt's parameters could set: accepted, so that programs go on.
FLATOUT_EXPORT int mallopt(int, int) { return 1; }

FLATOUT_EXPORT struct mallinfo2 mallinfo2(void) {
  const fm::Totals t = fm::totals();
  struct mallinfo2 out {};
  out.arena = t.in_use_bytes + t.cached_bytes;
  out.uordblks = t.in_use_bytes;
  out.fordblks = t.cached_bytes;
  out.keepcost = t.cached_bytes;
  return out;
}

FLATOUT_EXPORT struct mallinfo mallinfo(void) {
  const struct mallinfo2 wide = mallinfo2();
  const auto narrow = [](size_t n) { return static_cast<int>(std::min<size_t>(n, INT32_MAX)); };
  struct mallinfo out {};
  out.arena = narrow(wide.arena);
  out.uordblks = narrow(wide.uordblks);
  out.fordblks = narrow(wide.fordblks);
  out.keepcost = narrow(wide.keepcost);
  return out;
}

FLATOUT_EXPORT void malloc_stats(void) { fm::print_stats(); }

FLATOUT_EXPORT int malloc_info(int options, FILE* stream) {
  if (options != 0) {
    errno = EINVAL;
    return -1;
  }
  const fm::Totals t = fm::totals();
  return fprintf(stream,
                 "<malloc version=\"flatout-1\">\n<system type=\"current\" size=\"%zu\"/>\n"
                 "<total type=\"rest\" count=\"0\" size=\"%zu\"/>\n</malloc>\n",
                 t.in_use_bytes + t.cached_bytes, t.cached_bytes) < 0
             ? -1
             : 0;
}

}  // extern "C"
