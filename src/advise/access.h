// What of this machine Flatout itself may see.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fs.h"

namespace flatout::advise {

struct Access {
  bool pressure = false;   // the kernel counts it
  bool schedstat = false;  // and how long threads run and wait for a core
  bool block_io = false;   // and how long they wait for storage
  bool calls = false;      // and says in which call a thread is blocked
  bool autogroup = false;  // sessions share the cores
  std::optional<int64_t> ptrace_scope, perf_paranoid;
  std::string sampling_error;  // why code that runs cannot be sampled; empty: it can
  // Of the first process of another user; unset where there is none.
  std::optional<bool> others_seen, others_io;
  std::string cgroup_version;  // "v1", "v2" or "hybrid"; empty where none can be seen
  std::vector<std::string> controllers, missing_controllers;  // of those that Flatout reads
};

Access read_access(const fs::Root& root);

}  // namespace flatout::advise
