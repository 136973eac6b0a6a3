#include "malloc/foreign.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "malloc/allocator.h"
#include "malloc/os.h"

extern "C" {
void __libc_free(void* p) __attribute__((weak));  // glibc's own, whoever is in front of it
}

namespace flatout::malloc {
namespace {

using Free = void (*)(void*);
using UsableSize = size_t (*)(void*);

struct Next {
  Free free;
  UsableSize usable_size;
  bool glibc;  // then we know how to tell its blocks
};

std::atomic<int> g_state{0};  // 0 not looked up, 1 being looked up, 2 known
constinit Next g_next{};
uintptr_t g_brk_start = UINTPTR_MAX;

// Field 47 of /proc/self/stat: where the memory that brk gives begins. The second field, the
// program's name in brackets, may hold anything.
uintptr_t read_brk_start() {
  char text[1024];
  ssize_t n = -1;
  const int fd = os_open("/proc/self/stat");
  if (fd >= 0) {
    n = os_read(fd, text, sizeof text - 1);
    os_close(fd);
  }
  if (n <= 0) return UINTPTR_MAX;
  text[n] = 0;
  const char* at = std::strrchr(text, ')');
  for (int field = 2; at != nullptr && field < 47; ++field) {
    at = std::strchr(at + 1, ' ');
  }
  if (at == nullptr) return UINTPTR_MAX;
  uintptr_t value = 0;
  for (++at; *at >= '0' && *at <= '9'; ++at) value = value * 10 + static_cast<uintptr_t>(*at - '0');
  return value == 0 ? UINTPTR_MAX : value;
}

// The end of the program's own image, which brk's memory follows: where the kernel (or an emulator
// that stands in for it) does not tell.
uintptr_t program_end() {
  uintptr_t end = UINTPTR_MAX;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        uintptr_t last = 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD) continue;
          last = std::max<uintptr_t>(last, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
        }
        if (last != 0) *static_cast<uintptr_t*>(out) = last;
        return 1;  // the first is the program
      },
      &end);
  return end;
}

// The next definition after ours. dlsym may allocate and free: that comes back here, and is told
// that there is none.
const Next* next_allocator() {
  int state = g_state.load(std::memory_order_acquire);
  if (state == 2) return &g_next;
  if (state == 1 || !g_state.compare_exchange_strong(state, 1)) return nullptr;
  g_next.free = reinterpret_cast<Free>(dlsym(RTLD_NEXT, "free"));
  g_next.usable_size = reinterpret_cast<UsableSize>(dlsym(RTLD_NEXT, "malloc_usable_size"));
  if (g_next.free == nullptr && __libc_free != nullptr) g_next.free = __libc_free;
  // Loaded by dlopen, the next after us may be nobody, or the library's own `free` is before us.
  g_next.glibc = __libc_free != nullptr && g_next.free == __libc_free;
  if (g_next.usable_size == nullptr) {
    g_next.usable_size = reinterpret_cast<UsableSize>(dlsym(RTLD_DEFAULT, "malloc_usable_size"));
    // Ours is not an answer.
    if (g_next.usable_size != nullptr) {
      Dl_info theirs{}, ours{};
      dladdr(reinterpret_cast<void*>(g_next.usable_size), &theirs);
      dladdr(reinterpret_cast<void*>(&free_foreign), &ours);
      if (theirs.dli_fbase == ours.dli_fbase) g_next.usable_size = nullptr;
    }
  }
  g_brk_start = read_brk_start();
  if (g_brk_start == UINTPTR_MAX) g_brk_start = program_end();
  g_state.store(2, std::memory_order_release);
  return &g_next;
}

// glibc's layout of a block (its malloc.c, "malloc_chunk"): before it lie the size of the previous
// block and its own, whose low bits say: 1 the previous is in use, 2 mapped by itself, 4 of another
// arena than the main one.
bool is_glibc_block(const void* p) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  if (at % (2 * sizeof(size_t)) != 0 || at < 65536 || !os_readable(at - 16)) return false;
  const auto* header = static_cast<const size_t*>(p) - 2;
  const size_t flags = header[1] & 7, size = header[1] & ~size_t{7};
  if (size < 32 || size % 16 != 0 || size > size_t{1} << 47) return false;
  if ((flags & 2) != 0) {
    const auto os_page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = at - 16 - header[0];
    return begin % os_page == 0 && (size + header[0]) % os_page == 0 && header[0] < size_t{1} << 47;
  }
  if ((flags & 4) != 0) {
    // A heap of another arena begins at a multiple of 64 MiB, with a pointer to its arena.
    const uintptr_t heap = at & ~((uintptr_t{64} << 20) - 1);
    if (at - heap < 32 || !os_readable(heap)) return false;
    const auto arena = *reinterpret_cast<const uintptr_t*>(heap);
    return arena != 0 && arena % 8 == 0 && os_readable(arena);
  }
  // The main arena grows by brk.
  return at >= g_brk_start && at + size - 16 <= reinterpret_cast<uintptr_t>(sbrk(0));
}

const Next* owner_of(const void* p) {
  const Next* next = next_allocator();
  if (next == nullptr || next->free == nullptr) return nullptr;
  return !next->glibc || is_glibc_block(p) ? next : nullptr;
}

}  // namespace

void free_foreign(void* p) {
  const Next* owner = owner_of(p);
  if (owner != nullptr) owner->free(p);
}

size_t usable_size_foreign(const void* p) {
  const Next* owner = owner_of(p);
  if (owner == nullptr || owner->usable_size == nullptr) return 0;
  return owner->usable_size(const_cast<void*>(p));
}

void* reallocate_foreign(void* p, size_t bytes, void* (*allocate)(size_t)) {
  const Next* owner = owner_of(p);
  if (owner == nullptr || owner->usable_size == nullptr) {
    errno = EINVAL;
    return nullptr;
  }
  if (bytes == 0) {
    owner->free(p);
    return nullptr;
  }
  void* to = allocate(bytes);
  if (to == nullptr) return nullptr;
  std::memcpy(to, p, std::min(bytes, owner->usable_size(p)));
  owner->free(p);
  return to;
}

}  // namespace flatout::malloc
