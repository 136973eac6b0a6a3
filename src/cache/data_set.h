// The files of a data set and what of each lies in the page cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace flatout::cache {

struct CachedFile {
  std::string path;
  uint64_t bytes = 0, cached_bytes = 0;
  std::optional<uint64_t> dirty_bytes;
  bool in_memory = false;  // on tmpfs or the like: its pages are the file
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

struct Listed {
  std::vector<std::string> files;
  std::vector<Skipped> skipped;  // what could not be opened, or leads nowhere
  bool lacks_named = false;      // one of them is of `paths` itself
};

/// The regular files of `paths`: folders in full, and where links in them lead, as data sets of
/// links to a store have it; a file or folder that is reached twice counts once. Pipes and devices
/// are skipped, told only of `paths` themselves.
Listed list_files(const std::vector<std::string>& paths);

/// Reads no data. `parts`: of the map; 0: none.
DataSet look_at(const std::vector<std::string>& files, size_t parts);

}  // namespace flatout::cache
