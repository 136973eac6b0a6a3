// Which part of a file lies in the page cache (cachestat from Linux 6.5, else mincore).
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace flatout::probe {

struct Residency {
  uint64_t bytes = 0;         // of the file
  uint64_t cached_bytes = 0;  // estimated from windows if sampled
  bool sampled = false;
};

/// Opens `path` read-only, never blocks on a pipe or device (only regular files are taken), reads
/// no data. A big file is judged by 64 windows of 1 MiB, evenly spread.
/// Errors: kDenied where the kernel hides residency (neither owner nor writable), kUnsupported for
/// what is not a regular file.
Result<Residency> cached_part(const std::string& path);

namespace testing {
/// The two ways, to compare them.
Result<Residency> cached_part_mincore(const std::string& path);
Result<Residency> cached_part_cachestat(const std::string& path);
}  // namespace testing

}  // namespace flatout::probe
