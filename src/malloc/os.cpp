#include "malloc/os.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace flatout::malloc {
namespace {

class ErrnoKeeper {
 public:
  ErrnoKeeper() : saved_(errno) {}
  ~ErrnoKeeper() { errno = saved_; }
  ErrnoKeeper(const ErrnoKeeper&) = delete;
  ErrnoKeeper& operator=(const ErrnoKeeper&) = delete;

 private:
  int saved_;
};

}  // namespace

void* os_reserve(size_t bytes, size_t alignment) {
  const ErrnoKeeper keep;
  const size_t total = bytes + alignment;
  void* got = ::mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(got);
  const size_t skip = (alignment - reinterpret_cast<uintptr_t>(begin) % alignment) % alignment;
  if (skip != 0) ::munmap(begin, skip);
  if (alignment != skip) ::munmap(begin + skip + bytes, alignment - skip);
  return begin + skip;
}

void* os_map(size_t bytes) {
  const ErrnoKeeper keep;
  void* got = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return got == MAP_FAILED ? nullptr : got;
}

bool os_commit(void* at, size_t bytes) {
  const ErrnoKeeper keep;
  return ::mprotect(at, bytes, PROT_READ | PROT_WRITE) == 0;
}

bool os_release(void* at, size_t bytes) {
  const ErrnoKeeper keep;
  return ::madvise(at, bytes, MADV_DONTNEED) == 0;
}

void os_advise_huge(void* at, size_t bytes) {
  const ErrnoKeeper keep;
  ::madvise(at, bytes, MADV_HUGEPAGE);
}

bool os_move(void* from, void* to, size_t bytes) {
  const ErrnoKeeper keep;
#ifdef MREMAP_DONTUNMAP  // Linux 5.7: without it there would be a hole that others could map into
  if (::mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) == to) {
    return true;
  }
  // Up to Linux 6.16 what lies in two mappings is not moved, but the destination is gone by then.
  static_cast<void>(::mmap(to, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0));
  return false;
#else
  (void)from, (void)to, (void)bytes;
  return false;
#endif
}

bool os_protect(void* at, size_t bytes, bool accessible) {
  const ErrnoKeeper keep;
  return ::mprotect(at, bytes, accessible ? PROT_READ | PROT_WRITE : PROT_NONE) == 0;
}

bool os_readable(uintptr_t at) {
  const ErrnoKeeper keep;
  const auto os_page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  unsigned char resident;
  return ::mincore(reinterpret_cast<void*>(at & ~(os_page - 1)), 1, &resident) == 0;
}

uint64_t os_now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

size_t os_address_limit() {
  const ErrnoKeeper keep;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  return limit.rlim_cur;
}

void os_message(const char* text, const void* pointer) {
  const ErrnoKeeper keep;
  char line[160] = "flatout: warning: malloc: ";
  size_t at = std::strlen(line);
  for (; *text != 0 && at < 120; ++text) line[at++] = *text;
  line[at++] = ' ';
  line[at++] = '0';
  line[at++] = 'x';
  for (int shift = 60; shift >= 0; shift -= 4) {
    line[at++] = "0123456789abcdef"[reinterpret_cast<uintptr_t>(pointer) >> shift & 15];
  }
  line[at++] = '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, at);
}

}  // namespace flatout::malloc
