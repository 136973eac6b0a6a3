#include "base/page_residency.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "base/page_size.h"

namespace flatout {
namespace {

constexpr long kCachestatCall = 451;          // every architecture since Linux 6.5
constexpr uint64_t kMincoreWindow = 1 << 30;  // 256 KiB of answers

struct CachestatRange {
  uint64_t offset, length;
};
struct Cachestat {
  uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

}  // namespace

QuietFile::QuietFile(QuietFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      bytes_(other.bytes_),
      device_(other.device_),
      inode_(other.inode_),
      may_know_(other.may_know_) {}

QuietFile::~QuietFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<QuietFile> QuietFile::open(const std::string& path) {
  // A pipe's or device's open() may block or have effects: look first.
  struct stat before {};
  if (::stat(path.c_str(), &before) != 0) {
    return fs::error_from_errno(errno, "cannot look at " + path);
  }
  if (!S_ISREG(before.st_mode)) return Error{Code::kUnsupported, path + " is no regular file", ""};
  QuietFile file;
  // Without O_NOATIME (owner only) the look itself could count as an access.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  file.fd_ = ::open(path.c_str(), flags | O_NOATIME);
  if (file.fd_ < 0 && errno == EPERM) file.fd_ = ::open(path.c_str(), flags);
  if (file.fd_ < 0) return fs::error_from_errno(errno, "cannot open " + path);
  struct stat st {};
  if (::fstat(file.fd_, &st) != 0 || !S_ISREG(st.st_mode)) {
    return Error{Code::kUnsupported, path + " is no regular file", ""};
  }
  file.bytes_ = static_cast<uint64_t>(st.st_size);
  file.device_ = st.st_dev;
  file.inode_ = st.st_ino;
  file.may_know_ =
      ::geteuid() == 0 || st.st_uid == ::geteuid() || ::access(path.c_str(), W_OK) == 0;
  return file;
}

std::optional<CachedBytes> cached_by_cachestat(const QuietFile& file, uint64_t offset,
                                               uint64_t length) {
  CachestatRange range{offset, length};
  Cachestat out{};
  if (::syscall(kCachestatCall, file.fd(), &range, &out, 0u) != 0) return std::nullopt;
  return CachedBytes{std::min(out.cached * page_bytes(), length),
                     std::min((out.dirty + out.writeback) * page_bytes(), length)};
}

std::optional<CachedBytes> cached_by_mincore(const QuietFile& file, uint64_t offset,
                                             uint64_t length) {
  uint64_t cached = 0;
  std::vector<unsigned char> pages;
  for (uint64_t done = 0; done < length; done += kMincoreWindow) {
    const uint64_t part = std::min(length - done, kMincoreWindow);
    void* at =
        ::mmap(nullptr, part, PROT_NONE, MAP_SHARED, file.fd(), static_cast<off_t>(offset + done));
    if (at == MAP_FAILED) return std::nullopt;
    pages.resize((part + page_bytes() - 1) / page_bytes());
    const bool fine = ::mincore(at, part, pages.data()) == 0;
    ::munmap(at, part);
    if (!fine) return std::nullopt;
    const auto resident =
        std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
    cached += std::min(static_cast<uint64_t>(resident) * page_bytes(), part);
  }
  return CachedBytes{cached, std::nullopt};
}

std::optional<CachedBytes> cached_bytes(const QuietFile& file, uint64_t offset, uint64_t length) {
  if (length == 0) return CachedBytes{0, 0};
  if (const auto got = cached_by_cachestat(file, offset, length)) return got;
  return cached_by_mincore(file, offset, length);
}

}  // namespace flatout
