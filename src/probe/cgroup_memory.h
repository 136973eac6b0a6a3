// How much memory the control groups of a process leave it: each level of the tree has a limit of
// its own, and the level with the least room decides, which need not be the one with the lowest
// limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/fs.h"
#include "probe/cgroup_files.h"

namespace flatout::probe {

struct GroupMemory {
  std::string path;               // of the group, as in CgroupDir
  std::string dir;                // where its files are, relative to the root
  std::optional<uint64_t> limit;  // unset: none
  std::optional<uint64_t> used;   // page cache included
  std::optional<uint64_t> cache;  // page cache less shared memory: goes where memory is wanted

  /// What is used besides page cache.
  uint64_t held() const;
  /// What is left of the limit for everything but page cache. 0 where none is.
  uint64_t room() const;
};

/// The level with the least room among those with a limit. Of v1 also a limit of an ancestor that
/// is not to be seen from here (hierarchical_memory_limit), whose usage is then unknown. Where no
/// level has a limit: the process's own group. nullopt: no level can be read.
std::optional<GroupMemory> tightest_memory(const fs::Root& root, const CgroupChain& chain);

}  // namespace flatout::probe
