// The files of a data set and what of each lies in the page cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace flatout::cache {

struct CachedFile {
  std::string path;
  uint64_t bytes = 0, cached_bytes = 0;
  std::optional<uint64_t> dirty_bytes;
};

struct Skipped {
  std::string path, reason;
};

struct DataSet {
  std::vector<CachedFile> files;  // in the order of the paths given, folders sorted by name
  std::vector<Skipped> skipped;   // could not be looked at
  uint64_t bytes = 0, cached_bytes = 0, dirty_bytes = 0;
  std::vector<double> map;  // cached share of equal parts of all the bytes, in order
};

/// The regular files of `paths`: folders in full, without following links in them; a file that
/// is reached twice counts once. Errors: kNotFound, where a path is not there.
Result<std::vector<std::string>> list_files(const std::vector<std::string>& paths);

/// Reads no data. `parts`: of the map; 0: none.
DataSet look_at(const std::vector<std::string>& files, size_t parts);

}  // namespace flatout::cache
