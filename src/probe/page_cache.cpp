#include "probe/page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/fs.h"
#include "probe/reading.h"

namespace flatout::probe {
namespace {

constexpr uint64_t kWindow = 1 << 20;
constexpr uint64_t kWindows = 64;
constexpr long kCachestatCall = 451;  // every architecture since Linux 6.5

struct CachestatRange {
  uint64_t offset, length;
};
struct Cachestat {
  uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

int open_quietly(const std::string& path) {
  // Without O_NOATIME (owner only) the look itself could count as an access.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const int fd = ::open(path.c_str(), flags | O_NOATIME);
  return fd >= 0 || errno != EPERM ? fd : ::open(path.c_str(), flags);
}

// Bytes of [offset, offset + length) in the cache; negative: the call is not there or refused.
int64_t by_cachestat(int fd, uint64_t offset, uint64_t length) {
  CachestatRange range{offset, length};
  Cachestat out{};
  if (::syscall(kCachestatCall, fd, &range, &out, 0u) != 0) return -1;
  return static_cast<int64_t>(std::min(out.cached * page_bytes(), length));
}

int64_t by_mincore(int fd, uint64_t offset, uint64_t length) {
  void* at = ::mmap(nullptr, length, PROT_NONE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) return -1;
  std::vector<unsigned char> pages((length + page_bytes() - 1) / page_bytes());
  const bool fine = ::mincore(at, length, pages.data()) == 0;
  ::munmap(at, length);
  if (!fine) return -1;
  const auto resident =
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
  return static_cast<int64_t>(std::min(static_cast<uint64_t>(resident) * page_bytes(), length));
}

enum class Way { kAny, kCachestat, kMincore };

Result<Residency> measure(const std::string& path, Way way) {
  // A pipe's or device's open() may block or have effects: look first.
  struct stat before {};
  if (::stat(path.c_str(), &before) != 0) {
    return fs::error_from_errno(errno, "cannot look at " + path);
  }
  if (!S_ISREG(before.st_mode)) return Error{Code::kUnsupported, path + " is no regular file", ""};
  const File file(open_quietly(path));
  if (file.fd() < 0) return fs::error_from_errno(errno, "cannot open " + path);
  struct stat st {};
  if (::fstat(file.fd(), &st) != 0 || !S_ISREG(st.st_mode)) {
    return Error{Code::kUnsupported, path + " is no regular file", ""};
  }
  // The kernel pretends that everything is resident to those who may not know (Linux 5.2).
  const bool may_know =
      ::geteuid() == 0 || st.st_uid == ::geteuid() || ::access(path.c_str(), W_OK) == 0;
  if (!may_know) {
    return Error{Code::kDenied, "the kernel does not say what part of " + path + " is cached",
                 "run flatout as the owner of the file"};
  }
  Residency out;
  out.bytes = static_cast<uint64_t>(st.st_size);
  if (out.bytes == 0) return out;
  out.sampled = out.bytes > kWindow * kWindows;
  const uint64_t windows = out.sampled ? kWindows : 1;
  const uint64_t length = out.sampled ? kWindow : out.bytes;
  const uint64_t last_start = (out.bytes - length) & ~(page_bytes() - 1);
  uint64_t looked_at = 0, cached = 0;
  bool use_cachestat = way != Way::kMincore;
  for (uint64_t i = 0; i < windows; ++i) {
    const double place =
        windows == 1 ? 0 : static_cast<double>(i) / static_cast<double>(windows - 1);
    const uint64_t offset =
        static_cast<uint64_t>(place * static_cast<double>(last_start)) & ~(page_bytes() - 1);
    int64_t got = use_cachestat ? by_cachestat(file.fd(), offset, length) : -1;
    if (got < 0 && way != Way::kCachestat) {
      use_cachestat = false;
      got = by_mincore(file.fd(), offset, length);
    }
    if (got < 0) return fs::error_from_errno(errno, "cannot see the cached part of " + path);
    looked_at += length;
    cached += static_cast<uint64_t>(got);
  }
  out.cached_bytes = out.sampled ? static_cast<uint64_t>(static_cast<double>(out.bytes) *
                                                         static_cast<double>(cached) /
                                                         static_cast<double>(looked_at))
                                 : cached;
  return out;
}

}  // namespace

Result<Residency> cached_part(const std::string& path) { return measure(path, Way::kAny); }

namespace testing {
Result<Residency> cached_part_mincore(const std::string& path) {
  return measure(path, Way::kMincore);
}
Result<Residency> cached_part_cachestat(const std::string& path) {
  return measure(path, Way::kCachestat);
}
}  // namespace testing

}  // namespace flatout::probe
