// Reading small files beneath a root, so that probes run on fake trees as on the real /.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flatout::fs {

/// A directory taken as "/": Root("/") is the machine, Root("tests/roots/x") a fake tree.
/// Paths given to it are relative ("proc/stat").
class Root {
 public:
  explicit Root(std::string path = "/");

  /// The whole file, at most `limit` bytes (the rest is cut off, not an error).
  /// Errors: kNotFound, kDenied, kGone (ESRCH), kIo.
  Result<std::string> read(std::string_view path, size_t limit = 1 << 20) const;
  /// As read(), into `out`, whose capacity is reused.
  Status read_into(std::string_view path, std::string& out, size_t limit = 1 << 20) const;
  /// Names in a directory without "." and "..", sorted.
  Result<std::vector<std::string>> list(std::string_view path) const;
  Result<std::string> read_link(std::string_view path) const;
  bool exists(std::string_view path) const;
  std::string full(std::string_view path) const;
  bool is_real() const { return path_ == "/"; }

 private:
  std::string path_;
};

/// Maps errno to an Error that names `what` ("cannot read /proc/1/io: Permission denied").
Error error_from_errno(int err, std::string_view what);

/// Writes `data` to `path` by a temporary name in the same directory and rename. For the owner
/// alone, unless `shared`: then with the modes of the file that is replaced, a new one with those
/// that the umask gives.
Status write_atomically(const std::string& path, std::string_view data, bool shared = false);

}  // namespace flatout::fs
