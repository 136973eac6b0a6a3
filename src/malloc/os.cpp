#include "malloc/os.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
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

constexpr size_t kPiece = size_t{2} << 20;      // looked at as one, as a huge page is
constexpr size_t kLookFrom = size_t{32} << 20;  // less is cleared sooner than looked at
constexpr size_t kLeastOsPage = size_t{4} << 10;

// Whether less than half of a piece has memory behind it. Where that is in the swap it has none
// here, so this is for choosing how to clear and no proof that there is nothing to clear.
bool is_sparse(char* piece) {
  unsigned char resident[kPiece / kLeastOsPage] = {};
  if (::mincore(piece, kPiece, resident) != 0) return false;
  const size_t pages = kPiece / static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  size_t there = 0;
  for (size_t i = 0; i < pages; ++i) there += resident[i] & 1;
  return there * 2 < pages;
}

// What was only read is there as the kernel's page of zeros, a huge one perhaps. Where it was used
// this mostly ends at once.
bool is_zero(const char* piece) {
  constexpr size_t kStep = 64;
  uint64_t any = 0;
  for (size_t at = 0; at < kPiece && any == 0; at += kStep) {
    uint64_t words[kStep / sizeof(uint64_t)];
    std::memcpy(words, piece + at, kStep);
    for (const uint64_t word : words) any |= word;
  }
  return any == 0;
}

enum class Piece { kSparse, kZero, kUsed };
Piece look_at(char* piece) {
  if (is_sparse(piece)) return Piece::kSparse;
  return is_zero(piece) ? Piece::kZero : Piece::kUsed;
}

// Whether the kernel refuses what is obviously too much, as it does unless somebody set it up to
// refuse nothing, or to keep books: then it counts what we commit itself.
bool heuristic_overcommit() {
  char mode = '0';
  const int fd = os_open("/proc/sys/vm/overcommit_memory");
  if (fd < 0) return true;
  const bool read = os_read(fd, &mode, 1) == 1;
  os_close(fd);
  return !read || mode == '0';
}

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

void os_clear(char* at, size_t bytes) {
  const ErrnoKeeper keep;
  char* const end = at + bytes;
  // Runs of pieces alike at one time: memset is a third faster on tens of MiB than on 2.
  while (bytes >= kLookFrom && static_cast<size_t>(end - at) >= kPiece) {
    const Piece piece = look_at(at);
    char* stop = at + kPiece;
    while (static_cast<size_t>(end - stop) >= kPiece && look_at(stop) == piece) stop += kPiece;
    const auto run = static_cast<size_t>(stop - at);
    const bool gone = piece == Piece::kSparse && ::madvise(at, run, MADV_DONTNEED) == 0;
    if (!gone && piece != Piece::kZero) std::memset(at, 0, run);
    at = stop;
  }
  std::memset(at, 0, static_cast<size_t>(end - at));
}

// As the kernel's own check (__vm_enough_memory): more than all memory and swap is refused.
bool os_may_give(size_t bytes) {
  const ErrnoKeeper keep;
  struct sysinfo info {};
  if (::sysinfo(&info) != 0) return true;
  const unsigned long all = info.totalram + info.totalswap;
  return bytes / info.mem_unit <= all || !heuristic_overcommit();
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

int os_open(const char* path) {
  const ErrnoKeeper keep;
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
}

ssize_t os_read(int fd, void* to, size_t bytes) {
  const ErrnoKeeper keep;
  return ::syscall(SYS_read, fd, to, bytes);
}

ssize_t os_write(int fd, const void* from, size_t bytes) {
  const ErrnoKeeper keep;
  return ::syscall(SYS_write, fd, from, bytes);
}

void os_close(int fd) {
  const ErrnoKeeper keep;
  ::syscall(SYS_close, fd);
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
  [[maybe_unused]] const ssize_t written = os_write(STDERR_FILENO, line, at);
}

}  // namespace flatout::malloc
