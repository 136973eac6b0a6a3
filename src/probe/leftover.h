// Is a process outside the job a left-over of an old training run, and what does it keep?
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/fs.h"
#include "probe/proc_files.h"

namespace flatout::probe {

inline constexpr double kLeastLeftover = 4 << 20;  // resident bytes below which nobody cares
inline constexpr uint64_t kLeastShm = 1 << 20;

struct LeftoverQuestion {
  PidStat stat;
  std::string_view name;
  double cpu_share = 0;     // of a core, lately
  double memory_share = 0;  // of the machine
};

struct Leftover {
  bool orphan = false;  // alive, its parent gone, of the kind that trains
  bool holds_gpu = false;
  uint64_t shm_bytes = 0;  // shared memory that it has mapped or open
};

/// Reads the process's links, status and mappings; a few hundred microseconds.
Leftover inspect_leftover(const fs::Root& root, const LeftoverQuestion& question);

/// The program and, for an interpreter, its script or module; no further arguments.
std::string program_and_script(std::string_view cmdline);

}  // namespace flatout::probe
