// Reads a data set into the page cache, and lets only it go again. Never writes to a file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/result.h"
#include "cache/data_set.h"

namespace flatout::cache {

/// How much can be read before the kernel has to evict something: free memory less a reserve, and
/// what the memory limits of all control groups that this process is in leave. nullopt where
/// neither can be read.
std::optional<uint64_t> room(const fs::Root& root);

struct WarmOptions {
  double bytes_per_s = 0;  // 0: as fast as the storage gives
  std::function<std::optional<uint64_t>()> room;
  std::function<void(uint64_t done, uint64_t total)> progress;
};
struct Warmed {
  uint64_t read_bytes = 0, cached_before = 0, total_bytes = 0;
  bool stopped = false;  // for want of room
  std::vector<Skipped> skipped;
};
/// In the order of `files`, what is not cached yet, with the lowest I/O priority.
Warmed warm(const std::vector<std::string>& files, const WarmOptions& options);

struct Dropped {
  uint64_t before_bytes = 0, after_bytes = 0;
  std::vector<CachedFile> stayed;  // those of which something is still cached
  // Asked to go as well, but only a file's owner may know what of it is cached.
  std::vector<std::string> uncounted;
  std::vector<Skipped> skipped;
};
/// posix_fadvise: dirty and mapped pages stay. `sync`: has the kernel write dirty pages first.
Dropped drop(const std::vector<std::string>& files, bool sync);

/// What of the whole machine's memory is page cache. nullopt where it cannot be read.
std::optional<uint64_t> machine_cache(const fs::Root& root);

/// The page cache of the whole machine (/proc/sys/vm/drop_caches). Errors: kDenied without root.
Status drop_all(const fs::Root& root);

}  // namespace flatout::cache
