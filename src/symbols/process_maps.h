// The memory map of a process (/proc/PID/maps; kernel: Documentation/filesystems/proc.rst).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "base/result.h"

namespace flatout::symbols {

struct Mapping {
  uint64_t begin = 0, end = 0, offset = 0;
  uint64_t device = 0, inode = 0;
  bool readable = false, writable = false, executable = false;
  std::string path;  // "" for anonymous memory; "[stack]"; may end in " (deleted)"

  bool is_file() const { return inode != 0 && !path.empty() && path[0] == '/'; }
  std::string_view file_name() const {
    return std::string_view(path).substr(path.rfind('/') + 1);  // 0 where there is none
  }
  bool is_c_library() const {
    return file_name().starts_with("libc.so.") || file_name().starts_with("libc-2.");
  }
};

/// Sorted by address as the kernel gives them; lines that make no sense are left out. At most
/// `limit` mappings.
std::vector<Mapping> parse_maps(std::string_view text, size_t limit = 65536);

/// Those of a process. Errors: as fs::Root::read().
Result<std::vector<Mapping>> read_maps(const fs::Root& root, int32_t pid);

/// The mapping that covers `address`, or nullptr.
const Mapping* find_mapping(const std::vector<Mapping>& maps, uint64_t address);

}  // namespace flatout::symbols
