// Which part of an open file lies in the page cache (cachestat from Linux 6.5, else mincore).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"

namespace flatout {

/// A file that was opened to look at its pages only.
class QuietFile {
 public:
  /// Opens a regular file read-only, never blocks on a pipe or device, and leaves its access time
  /// alone where the kernel allows that. Errors: kUnsupported for what is no regular file.
  static Result<QuietFile> open(const std::string& path);
  QuietFile(QuietFile&& other) noexcept;
  QuietFile& operator=(QuietFile&&) = delete;
  QuietFile(const QuietFile&) = delete;
  ~QuietFile();

  int fd() const { return fd_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t device() const { return device_; }
  uint64_t inode() const { return inode_; }
  /// The kernel pretends that all is resident to those who may not know (Linux 5.2).
  bool may_know() const { return may_know_; }

 private:
  QuietFile() = default;
  int fd_ = -1;
  uint64_t bytes_ = 0, device_ = 0, inode_ = 0;
  bool may_know_ = false;
};

struct CachedBytes {
  uint64_t cached = 0;
  std::optional<uint64_t> dirty;  // still to be written; mincore does not tell
};

/// Of [offset, offset + length), with `offset` at a page's begin. nullopt: refused, or not there.
std::optional<CachedBytes> cached_by_cachestat(const QuietFile& file, uint64_t offset,
                                               uint64_t length);
std::optional<CachedBytes> cached_by_mincore(const QuietFile& file, uint64_t offset,
                                             uint64_t length);
/// The first of the two that this kernel has.
std::optional<CachedBytes> cached_bytes(const QuietFile& file, uint64_t offset, uint64_t length);

}  // namespace flatout
