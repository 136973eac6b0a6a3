#include "diagnose/fact_kinds.h"

#include <array>

namespace flatout::diagnose {

using model::Part;

namespace {

constexpr Parts kInput = bit(Part::kInputWait);
constexpr Parts kStorage = kInput | bit(Part::kCheckpoint) | bit(Part::kOther);
constexpr Parts kCompute =
    bit(Part::kForward) | bit(Part::kBackward) | bit(Part::kOptimizer) | bit(Part::kCompute);
constexpr Parts kDevice = kCompute | bit(Part::kH2d) | bit(Part::kSync) | bit(Part::kCommunication);
constexpr Parts kRanks = bit(Part::kCommunication) | bit(Part::kSync);
constexpr Parts kNothing = 0;

struct Row {
  std::string_view key;   // '*' stands for anything; the first row that fits counts
  std::string_view text;  // '*' stands for the same
  Parts bears_on;
};

// Most telling first. What compare() measures itself stands here by the same names.
constexpr auto kRows = std::to_array<Row>({
    {"others.cpu_cores", "cores that other processes use", kAllParts},
    {"neighbour", "busiest other process", kAllParts},
    {"cgroup.throttled", "stops by the CPU quota", kAllParts},
    {"memory.reclaim", "waits for memory to be reclaimed", kAllParts},
    {"gc", "garbage collection", kAllParts},
    {"storage.read_bytes_per_step", "reads from storage per step", kStorage},
    {"data.cached", "data in the page cache", kStorage},
    {"data.fs", "file system of the data", kStorage},
    {"cpu.frequency_hz", "CPU clock", kAllParts},
    {"gpu.clock_sm_hz", "GPU clock", kDevice},
    {"gpu.power_limit_w", "GPU power limit", kDevice},
    // the job
    {"code.hash.*", "code in *", kAllParts},
    {"code.file", "script", kAllParts},
    {"command", "command line", kAllParts},
    {"loader.dataset_size", "samples in the data set", kInput},
    {"loader.*", "loader's *", kInput},
    {"torch.num_threads", "PyTorch's threads", kAllParts},
    {"torch.interop_threads", "PyTorch's inter-op threads", kAllParts},
    {"gc.threshold", "thresholds of the garbage collector", kAllParts},
    {"python.tracer", "debugger or coverage", kAllParts},
    {"python.profiler", "profiler of Python", kAllParts},
    {"denormals", "numbers too small for normal arithmetic", kCompute},
    {"model.float64", "elements trained in float64", kCompute},
    {"model.half", "ms of products in half and in single precision", kCompute},
    {"torch.graph_nodes", "nodes of the autograd graph", kCompute},
    // limits
    {"cgroup.cpu_limit_cores", "CPU limit in cores", kAllParts},
    {"cgroup.cpu_weight", "CPU weight", kAllParts},
    {"allowed_cores", "cores that the job may use", kAllParts},
    {"job.cpus_allowed", "cores that the job may use", kAllParts},
    {"job.mems_allowed", "NUMA nodes that the job may use", kAllParts},
    {"job.nice", "nice value", kAllParts},
    {"job.seccomp", "seccomp", kAllParts},
    {"cgroup.mem_limit_bytes", "memory limit", kAllParts},
    {"cgroup.io_limit_read", "limit on reads per second", kStorage},
    {"limit.*", "limit on *", kAllParts},
    {"container.kind", "container", kAllParts},
    // versions
    {"torch.version", "PyTorch", kAllParts},
    {"torch.cuda_version", "CUDA of PyTorch", kDevice},
    {"cudnn.version", "cuDNN", kDevice},
    {"tensorflow.version", "TensorFlow", kAllParts},
    {"python.version", "Python", kAllParts},
    {"package.*", "package *", kAllParts},
    {"gpu.driver_version", "NVIDIA driver", kDevice},
    {"driver.nvidia", "NVIDIA driver", kDevice},
    {"gpu.cuda_version", "CUDA of the driver", kDevice},
    {"kernel.release", "kernel", kAllParts},
    {"host.os", "operating system", kAllParts},
    {"git.commit", "git commit", kAllParts},
    // the environment; what names a run, a rank or a session explains nothing
    {"env.*_JOB_ID", "", kNothing},
    {"env.*_STEP_ID", "", kNothing},
    {"env.*_RUN_ID", "", kNothing},
    {"env.*RANK", "", kNothing},
    {"env.MASTER_*", "", kNothing},
    {"env.TORCHELASTIC_*", "", kNothing},
    {"env.*", "environment: *", kAllParts},
    // the machine
    {"host.name", "machine", kAllParts},
    {"host.arch", "architecture", kAllParts},
    {"cpu.model", "CPU", kAllParts},
    {"cpu.microcode", "CPU microcode", kAllParts},
    {"cpu.online", "cores online", kAllParts},
    {"cpu.governor", "CPU frequency governor", kAllParts},
    {"cpu.max_khz", "highest CPU clock in kHz", kAllParts},
    {"cpu.turbo_off", "turbo off", kAllParts},
    {"cpu.smt", "simultaneous multithreading", kAllParts},
    {"gpu.count", "GPUs", kDevice},
    {"gpu.*.name", "GPU *", kDevice},
    {"cuda.device", "GPU", kDevice},
    {"memory.total_bytes", "memory of the machine", kAllParts},
    {"memory.hugepages", "huge pages", kAllParts},
    {"swap.total_bytes", "swap", kAllParts},
    {"numa.nodes", "NUMA nodes", kAllParts},
    {"rank.world_size", "ranks", kRanks},
    {"dist.world_size", "ranks", kRanks},
    {"dist.backend", "backend of torch.distributed", kRanks},
    {"cwd.fs", "file system of the working folder", kStorage},
    {"cwd.options", "mount options of the working folder", kStorage},
    {"cwd.disk", "disk of the working folder", kStorage},
    {"tmp.fs", "file system of /tmp", kStorage},
    {"shm.fs", "file system of /dev/shm", kInput},
    {"shm.options", "mount options of /dev/shm", kInput},
    {"mount.*", "mount of *", kStorage},
    {"disk.*.scheduler", "I/O scheduler of *", kStorage},
    {"disk.*.read_ahead_kb", "read-ahead of *", kStorage},
    {"disk.*.rotational", "rotation of *", kStorage},
    {"disk.*.nr_requests", "queue length of *", kStorage},
    {"disk.*.write_cache", "write cache of *", kStorage},
    {"disk.*.model", "disk *", kStorage},
    {"kernel.thp", "transparent huge pages", kAllParts},
    {"kernel.thp_defrag", "defragmentation for huge pages", kAllParts},
    {"kernel.thp_shmem", "huge pages in shared memory", kAllParts},
    {"kernel.numa_balancing", "NUMA balancing", kAllParts},
    {"kernel.swappiness", "swappiness", kAllParts},
    {"kernel.autogroup", "scheduling by session", kAllParts},
    {"kernel.mitigations", "CPU mitigations", kAllParts},
    {"kernel.dirty_ratio", "dirty_ratio", kStorage},
    {"kernel.dirty_background_ratio", "dirty_background_ratio", kStorage},
    {"kernel.zone_reclaim_mode", "zone_reclaim_mode", kAllParts},
    {"kernel.min_free_kbytes", "min_free_kbytes", kAllParts},
    {"kernel.overcommit_memory", "overcommit_memory", kAllParts},
});

/// What the '*' of `pattern` stands for ("" without one); nullopt where `key` does not fit.
std::optional<std::string_view> fit(std::string_view pattern, std::string_view key) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) {
    return pattern == key ? std::optional<std::string_view>("") : std::nullopt;
  }
  const std::string_view head = pattern.substr(0, star), tail = pattern.substr(star + 1);
  if (key.size() < head.size() + tail.size() || !key.starts_with(head) || !key.ends_with(tail)) {
    return std::nullopt;
  }
  return key.substr(star, key.size() - head.size() - tail.size());
}

}  // namespace

std::optional<FactKind> fact_kind(std::string_view key) {
  for (size_t rank = 0; rank < kRows.size(); ++rank) {
    const Row& row = kRows[rank];
    const auto name = fit(row.key, key);
    if (!name) continue;
    if (row.bears_on == kNothing) return std::nullopt;
    FactKind kind{rank, std::string(row.text), row.bears_on, ""};
    if (const size_t star = kind.text.find('*'); star != std::string::npos) {
      kind.text.replace(star, 1, *name);
      kind.group = row.key.substr(0, row.key.find('*'));
    }
    return kind;
  }
  return std::nullopt;
}

Parts parts_of_finding(std::string_view id) {
  if (id.starts_with("crash.") || id == "mem.killed") return kNothing;
  if (id == "input.h2d_sync") return bit(Part::kH2d) | bit(Part::kSync);
  if (id == "stall.checkpoint") return bit(Part::kCheckpoint) | bit(Part::kOther);
  if (id.starts_with("input.")) return kInput;
  if (id.starts_with("dist.")) return kRanks;
  if (id.starts_with("gpu.")) return kDevice;
  return kAllParts;
}

}  // namespace flatout::diagnose
