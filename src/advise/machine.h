// What a training job finds on this machine at this moment: limits, memory, who holds it, GPUs.
// Read once, without a pause longer than 0.2 s. What cannot be read stays unset.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "advise/access.h"
#include "advise/gpu_context.h"
#include "advise/python_packages.h"
#include "base/fs.h"
#include "probe/mount_table.h"
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
  std::optional<uint64_t> gpu_bytes = {};  // of all GPUs' memory, where NVML says so
};

struct Gpu {
  probe::GpuFacts facts;
  probe::GpuReading reading;
};

struct Space {
  uint64_t total_bytes = 0, free_bytes = 0;
  uint64_t total_inodes = 0, free_inodes = 0;  // 0: the file system does not count them
};

enum class WorkFolder : uint8_t { kWritable, kReadOnly, kDenied, kGone };

enum class ShmFolder : uint8_t {
  kThere,
  kMissing,
  kDenied,      // may not be written to
  kNotMounted,  // a folder of another file system
};

struct Limit {
  std::optional<uint64_t> soft, hard;  // unset: unlimited
};

struct Disk {
  std::string name, scheduler;
  bool rotational = false;
  std::optional<uint64_t> read_ahead_bytes;
  bool emulated = false;  // of a virtual machine, whose kernel takes any for a rotating one
};

/// A folder with data, as far as its storage goes.
struct DataPlace {
  std::string path, fs_type, source, disk;
  probe::FsPlace place = probe::FsPlace::kUnknown;
  std::optional<uint64_t> bytes;  // of its files; at least that much where `sampled`
  uint64_t files = 0;
  bool sampled = false;
};

struct Machine {
  int32_t cores = 0;          // online
  int32_t allowed_cores = 0;  // that this process may run on
  std::optional<double> cpu_quota;
  std::string numa_nodes, allowed_memory_nodes, allowed_cpus;
  bool memory_near_cores = true;  // a node that memory may come from has a core that may be used
  std::string governor, frequency_driver;  // of the first core that has them
  std::vector<std::string> cpu_flags;

  std::optional<uint64_t> memory_bytes, available_bytes, swap_bytes, free_swap_bytes,
      free_huge_pages, huge_page_bytes;
  // Of the control group that leaves the least room, at whatever level of the tree;
  // `cache_in_group`: page cache, which goes where memory is wanted.
  std::string memory_group;  // its path
  std::optional<uint64_t> memory_limit, memory_in_group, cache_in_group;
  std::optional<uint64_t> group_oom_kills, oom_kills;  // of the group; since boot
  std::string thp;

  std::optional<uint64_t> pids_limit, pids_in_group;  // as for memory
  uint64_t own_threads = 0;                           // of this user's processes that are visible
  uint64_t zombies = 0;
  std::string zombies_parent;  // who has most of them: "pid 12 python"
  uint64_t zombies_of_parent = 0;
  std::vector<Task> tasks;  // those that hold much or are left over, biggest first

  Limit open_files, processes, locked_memory, address_space, cpu_seconds, file_size;
  std::optional<Space> shm;
  ShmFolder shm_folder = ShmFolder::kThere;
  uint64_t shm_dead_bytes = 0, shm_dead_files = 0;  // of processes that are gone

  std::vector<Gpu> gpus;
  std::string gpu_error;                 // why no GPU can be seen
  std::vector<ContextTrial> contexts;    // those that were tried
  std::optional<Error> context_failure;  // why not all of them
  std::string driver_version, cuda_version, kernel_module_version;

  std::vector<Disk> disks;
  std::vector<DataPlace> data;
  std::optional<Space> work;  // of the working directory
  WorkFolder work_folder = WorkFolder::kWritable;
  bool proc_missing = false;  // nothing of what is in /proc is known
  bool infiniband = false;
  std::vector<Framework> frameworks;
  int python_minor = 0;  // of the Python 3 that a shell would start; 0: none was found
  bool root = false;
  std::optional<Access> access;  // where it was asked for
  std::string cupti;             // its file, where access was asked for
};

struct MachineOptions {
  std::string nvml = "libnvidia-ml.so.1", cuda = "libcuda.so.1";
  bool try_contexts = false;      // create a CUDA context on each GPU, where NVML shows one
  std::vector<std::string> data;  // folders to look at
  std::vector<Python> pythons;    // the first that has a framework is the one that would run
  bool watch_cpu = true;          // look twice, 0.2 s apart, at who uses the CPU
  bool access = false;            // what Flatout itself may see
};

Machine read_machine(const fs::Root& root, const MachineOptions& options);

/// "pid 4711 python train.py", as far as it can be seen.
std::string holder_name(const fs::Root& root, int32_t pid);

}  // namespace flatout::advise
