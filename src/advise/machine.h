// What a training job finds on this machine at this moment: limits, memory, who holds it, GPUs.
// Read once, without a pause longer than 0.2 s. What cannot be read stays unset.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "advise/gpu_context.h"
#include "base/fs.h"
#include "probe/nvml.h"

namespace flatout::advise {

struct Task {
  int32_t pid = 0, parent = 0;
  std::string name;     // as the kernel has it
  std::string command;  // the program and, for an interpreter, its script
  uint64_t rss_bytes = 0;
  double age_s = 0;
  // Of a left-over: alive, its parent gone, of the kind that trains.
  bool orphan = false;
  bool holds_gpu = false;
  uint64_t shm_bytes = 0;
};

struct Gpu {
  probe::GpuFacts facts;
  probe::GpuReading reading;
};

struct Space {
  uint64_t total_bytes = 0, free_bytes = 0;
  uint64_t total_inodes = 0, free_inodes = 0;  // 0: the file system does not count them
};

struct Limit {
  std::optional<uint64_t> soft, hard;  // unset: unlimited
};

struct Disk {
  std::string name, scheduler;
  bool rotational = false;
  std::optional<uint64_t> read_ahead_bytes;
};

/// A folder with data, as far as its storage goes.
struct DataPlace {
  std::string path, fs_type, source, disk;
  bool local = true;
  std::optional<uint64_t> bytes;  // of its files; at least that much where `sampled`
  uint64_t files = 0;
  bool sampled = false;
  std::optional<Space> space;
};

/// A framework as it is installed in the Python that would run.
struct Framework {
  std::string name, version;
  std::string package;  // that Python imports: "torch"
  std::string cuda;     // that it was built for: "12.8", or "12" alone; empty for a build without
};

struct Machine {
  int32_t cores = 0;          // online
  int32_t allowed_cores = 0;  // that this process may run on
  std::optional<double> cpu_quota;
  std::string numa_nodes, allowed_memory_nodes, allowed_cpus;
  bool memory_near_cores = true;  // a node that memory may come from has a core that may be used
  std::string governor, frequency_driver;  // of the first core that has them
  std::vector<std::string> cpu_flags;

  std::optional<uint64_t> memory_bytes, available_bytes, page_cache_bytes, swap_bytes,
      free_swap_bytes, huge_pages, free_huge_pages, huge_page_bytes;
  bool control_groups = false;                            // can be seen
  std::optional<uint64_t> memory_limit, memory_in_group;  // of the tightest control group
  std::optional<uint64_t> group_oom_kills, oom_kills;     // of the group; since boot
  std::optional<uint64_t> swappiness, max_map_count;
  std::string thp;

  std::optional<uint64_t> pids_limit, pids_in_group;  // of the tightest group
  uint64_t threads = 0;                               // of all processes that are visible
  uint64_t zombies = 0;
  std::string zombies_parent;  // who has most of them: "pid 12 python"
  uint64_t zombies_of_parent = 0;
  std::vector<Task> tasks;  // those that hold much or are left over, biggest first

  Limit open_files, processes, locked_memory, address_space;
  std::optional<Space> shm;
  uint64_t shm_dead_bytes = 0, shm_dead_files = 0;  // of processes that are gone

  std::vector<Gpu> gpus;
  std::string gpu_error;                 // why no GPU can be seen
  std::vector<ContextTrial> contexts;    // those that were tried
  std::optional<Error> context_failure;  // why not all of them
  std::string driver_version, cuda_version, kernel_module_version;

  std::vector<Disk> disks;
  std::vector<DataPlace> data;
  std::optional<Space> work;  // of the working directory
  bool infiniband = false;
  std::vector<Framework> frameworks;
  std::optional<double> ptrace_scope;
  std::optional<int64_t> perf_paranoid;
  bool pressure = false;  // the kernel counts pressure
  bool root = false;
};

struct MachineOptions {
  std::string nvml = "libnvidia-ml.so.1", cuda = "libcuda.so.1";
  bool try_contexts = false;      // create a CUDA context on each GPU, where NVML shows one
  std::vector<std::string> data;  // folders to look at
  std::vector<std::string> python_prefixes;  // where a framework may be installed; first wins
  bool watch_cpu = true;                     // look twice, 0.2 s apart, at who uses the CPU
};

Machine read_machine(const fs::Root& root, const MachineOptions& options);

/// Where the Python that a shell would start keeps its packages: $VIRTUAL_ENV, $CONDA_PREFIX,
/// $PATH.
std::vector<std::string> python_prefixes();

/// "pid 4711 python train.py", as far as it can be seen.
std::string holder_name(const fs::Root& root, int32_t pid);

}  // namespace flatout::advise
