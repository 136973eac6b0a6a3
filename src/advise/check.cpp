#include "advise/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "advise/size_text.h"
#include "base/text.h"

namespace flatout::advise {

using model::CheckUp;
using model::Problem;

namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;

// Thresholds, each with its reason.
constexpr double kQuotaSlack = 0.95;    // a quota of 15.9 of 16 cores throttles nothing
constexpr double kNearlyFull = 0.9;     // of memory or processes
constexpr double kLittleMemory = 0.05;  // available, of the machine's
constexpr uint64_t kMuchSwapped = kGiB;
constexpr uint64_t kManyZombies = 100;
constexpr uint64_t kSmallShm =
    512 * kMiB;                       // Docker's own is 64 MiB; a batch of images has 20 to 150
constexpr uint64_t kFewFiles = 4096;  // PyTorch's workers take two descriptors a tensor
constexpr uint64_t kSpareProcesses = 512;  // what a job with workers and thread pools starts
constexpr uint64_t kLeastLocked = 64 * kMiB;
constexpr double kGpuInUse = 0.1, kGpuTaken = 0.5;
constexpr uint64_t kLittleDisk = 512 * kMiB, kLowDisk = 5 * kGiB;
constexpr uint64_t kLeastReadAhead = 64 << 10;
constexpr uint64_t kManyFiles = 10'000, kSmallFile = kMiB;
constexpr double kIdleHugePages = 0.1;  // of memory, reserved and unused

// NVML's reasons for lower clocks that are no one's wish: hardware, heat, power brake.
constexpr uint64_t kSlowedDown = 0x8 | 0x20 | 0x40 | 0x80;

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string age_text(double seconds) {
  if (seconds < 3600) return fmt::format("{:.0f} minutes", seconds / 60);
  if (seconds < 48 * 3600.0) return fmt::format("{:.0f} hours", seconds / 3600);
  return fmt::format("{:.0f} days", seconds / 86400);
}

class Found {
 public:
  void fails(std::string_view id, std::string text, std::string hint) {
    problems.push_back({std::string(id), std::move(text), std::move(hint), true});
  }
  void warns(std::string_view id, std::string text, std::string hint) {
    problems.push_back({std::string(id), std::move(text), std::move(hint), false});
  }
  std::vector<Problem> problems;
};

void check_cpu(const Machine& m, Found& found) {
  const int32_t usable = m.allowed_cores > 0 ? m.allowed_cores : m.cores;
  if (m.cpu_quota && usable > 0 && *m.cpu_quota < kQuotaSlack * usable) {
    found.warns(
        "cpu.throttled",
        fmt::format("The CPU quota allows {} of the {} cores that a job sees: if it starts a "
                    "thread or worker for each, it is stopped again and again.",
                    format_number(*m.cpu_quota), usable),
        fmt::format("OMP_NUM_THREADS={0}, as many workers at most, or a higher quota.",
                    std::max(1, static_cast<int>(std::floor(*m.cpu_quota)))));
  }
  if (m.allowed_cores > 0 && m.allowed_cores < m.cores) {
    found.warns("cpu.affinity",
                fmt::format("Only {} of {} cores may be used ({}).", m.allowed_cores, m.cores,
                            m.allowed_cpus),
                "taskset, the cpuset of the container or the scheduler's request set that.");
  }
  // These drivers call their automatic governor powersave.
  const bool automatic = m.frequency_driver.starts_with("intel_pstate") ||
                         m.frequency_driver.starts_with("amd-pstate");
  if (m.governor == "powersave" && !automatic) {
    found.warns("cpu.governor",
                "The frequency governor is powersave: cores stay at their lowest clock.",
                "cpupower frequency-set -g schedutil (or performance), as root.");
  }
  if (!m.memory_near_cores) {
    found.warns("cpu.numa",
                fmt::format("Memory may come from node {} only, and no core that may be used is on "
                            "it: each access crosses the link between sockets.",
                            m.allowed_memory_nodes),
                "numactl --cpunodebind and --membind with the same node.");
  }
}

void check_memory(const Machine& m, Found& found) {
  if (m.memory_limit && m.memory_in_group &&
      share(*m.memory_in_group, *m.memory_limit) >= kNearlyFull &&
      m.page_cache_bytes.value_or(0) < *m.memory_limit / 4) {
    found.fails("mem.limit",
                fmt::format("{} of the {} that this control group may use are in use.",
                            size_text(*m.memory_in_group), size_text(*m.memory_limit)),
                "End what holds it, or raise the limit.");
  }
  if (m.memory_bytes && m.available_bytes &&
      share(*m.available_bytes, *m.memory_bytes) < kLittleMemory) {
    found.fails("mem.pressure",
                fmt::format("Only {} of {} of memory are available.", size_text(*m.available_bytes),
                            size_text(*m.memory_bytes)),
                "End what holds it; flatout check lists the biggest processes.");
  }
  if (m.swap_bytes && m.free_swap_bytes &&
      *m.swap_bytes - std::min(*m.swap_bytes, *m.free_swap_bytes) >= kMuchSwapped) {
    found.warns("mem.swap",
                fmt::format("{} are swapped out.", size_text(*m.swap_bytes - *m.free_swap_bytes)),
                "Memory was short before; what was swapped out is slow when it is used again.");
  }
  if (m.thp.find("[never]") != std::string::npos) {
    found.warns("mem.huge_pages",
                "Transparent huge pages are off: big buffers cost more page faults.",
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root.");
  }
  if (m.free_huge_pages && m.huge_page_bytes && m.memory_bytes &&
      share(*m.free_huge_pages * *m.huge_page_bytes, *m.memory_bytes) >= kIdleHugePages) {
    found.warns("mem.huge_pages_reserved",
                fmt::format("{} are reserved for huge pages that nobody uses.",
                            size_text(*m.free_huge_pages * *m.huge_page_bytes)),
                "sysctl vm.nr_hugepages=0 gives them back.");
  }
}

void check_left_over(const Machine& m, Found& found) {
  for (const Task& task : m.tasks) {
    if (!task.orphan) continue;
    std::string holds = size_text(task.rss_bytes) + " of memory";
    if (task.shm_bytes > 0)
      holds += fmt::format(", {} of shared memory", size_text(task.shm_bytes));
    if (task.holds_gpu) holds += ", a GPU";
    const std::string text =
        fmt::format("pid {} {} is left over from a run that ended: started {} ago, it holds {}.",
                    task.pid, task.command, age_text(task.age_s), holds);
    const std::string hint = fmt::format("If it is not wanted any more: kill {}.", task.pid);
    if (task.holds_gpu) {
      found.fails("leftover.process", text, hint);
    } else {
      found.warns("leftover.process", text, hint);
    }
  }
  const bool many = m.zombies >= kManyZombies;
  const bool most = m.pids_limit && share(m.zombies, *m.pids_limit) >= 0.5;
  if (many || most) {
    const std::string text =
        fmt::format("{} zombies use up process ids{}; {} of them are children of {}.", m.zombies,
                    m.pids_limit ? fmt::format(" (of {} allowed)", *m.pids_limit) : "",
                    m.zombies_of_parent, m.zombies_parent);
    const std::string hint = "They go when their parent waits for them or ends.";
    if (most) {
      found.fails("leftover.zombies", text, hint);
    } else {
      found.warns("leftover.zombies", text, hint);
    }
  }
  if (m.shm_dead_bytes >= kMiB) {
    found.warns("leftover.shm",
                fmt::format("{} in {} files of /dev/shm belong to processes that are gone.",
                            size_text(m.shm_dead_bytes), m.shm_dead_files),
                "Remove them: rm /dev/shm/torch_PID_* of those that do not live.");
  }
}

void check_limits(const Machine& m, Found& found) {
  if (m.shm && m.shm->total_bytes > 0) {
    if (m.shm->total_bytes < kSmallShm) {
      found.fails("mem.shm",
                  fmt::format("/dev/shm has {}: DataLoader workers and NCCL will not find room.",
                              size_text(m.shm->total_bytes)),
                  "docker run --shm-size=8g, or --ipc=host; else num_workers=0.");
    } else if (share(m.shm->free_bytes, m.shm->total_bytes) < 1 - kNearlyFull) {
      found.fails("mem.shm",
                  fmt::format("Only {} of the {} of /dev/shm are free.",
                              size_text(m.shm->free_bytes), size_text(m.shm->total_bytes)),
                  "ls -l /dev/shm shows what is there.");
    }
  }
  if (m.open_files.soft && *m.open_files.soft < kFewFiles) {
    found.warns("mem.fds",
                fmt::format("A process may open {} files: DataLoader workers can use them up.",
                            *m.open_files.soft),
                m.open_files.hard && *m.open_files.hard < kFewFiles
                    ? "Raise it in the container or in limits.conf (nofile)."
                    : "ulimit -n 65536");
  }
  if (m.pids_limit && m.pids_in_group &&
      (share(*m.pids_in_group, *m.pids_limit) >= kNearlyFull ||
       *m.pids_in_group + kSpareProcesses > *m.pids_limit)) {
    found.fails("limit.pids",
                fmt::format("This control group may have {} processes and threads, and has {}.",
                            *m.pids_limit, *m.pids_in_group),
                "End what is left over, or raise the limit (docker run --pids-limit).");
  }
  if (m.processes.soft && !m.root && m.threads + kSpareProcesses > *m.processes.soft) {
    found.fails("limit.processes",
                fmt::format("A user may have {} processes and threads (ulimit -u); {} run here.",
                            *m.processes.soft, m.threads),
                "ulimit -u, or limits.conf (nproc).");
  }
  if (m.infiniband && m.locked_memory.soft && *m.locked_memory.soft < kLeastLocked) {
    found.fails("limit.locked_memory",
                fmt::format("InfiniBand needs locked memory, and {} are allowed.",
                            size_text(*m.locked_memory.soft)),
                "ulimit -l unlimited; docker run --ulimit memlock=-1.");
  }
  if (m.address_space.soft && !m.gpus.empty()) {
    found.fails(
        "limit.address_space",
        fmt::format("The address space is limited to {} (ulimit -v): CUDA reserves more than "
                    "that.",
                    size_text(*m.address_space.soft)),
        "ulimit -v unlimited");
  }
}

// What to do about an error of the driver (CUresult in cuda.h).
std::string context_hint(int32_t code) {
  switch (code) {
    case 2:
      return "Its memory is taken: gpu.memory_taken says by whom.";
    case 46:
    case 101:
      return "In exclusive mode another process has it: nvidia-smi -q -d COMPUTE; nvidia-smi -c "
             "DEFAULT, as root.";
    case 802:
      return "The fabric manager does not run: systemctl status nvidia-fabricmanager.";
    case 803:
      return "The driver's kernel module and library differ: reboot.";
    default:
      return "Look in dmesg for NVRM and Xid.";
  }
}

void check_contexts(const Machine& m, Found& found) {
  if (m.context_failure) {
    found.fails("gpu.context",
                fmt::format("No CUDA context can be created: {}.", m.context_failure->message),
                m.context_failure->hint.empty() ? context_hint(0) : m.context_failure->hint);
  }
  for (const ContextTrial& trial : m.contexts) {
    if (trial.code == 0) continue;
    // By its id: CUDA may be shown fewer GPUs than there are.
    int64_t index = trial.device;
    for (const Gpu& gpu : m.gpus) {
      if (!trial.uuid.empty() && gpu.facts.uuid == trial.uuid) index = gpu.reading.index;
    }
    found.fails("gpu.context",
                fmt::format("On GPU {} no CUDA context can be created: {}.", index, trial.error),
                context_hint(trial.code));
  }
}

void check_frameworks(const Machine& m, Found& found) {
  // Where one has CUDA, another without is meant to be so.
  const bool none = std::all_of(m.frameworks.begin(), m.frameworks.end(),
                                [](const Framework& f) { return f.cuda.empty(); });
  // From CUDA 11 on a driver runs all minor versions of its major one.
  const auto major = [](std::string_view version) {
    return parse_number<int>(version.substr(0, version.find('.'))).value_or(0);
  };
  for (const Framework& f : m.frameworks) {
    if (none) {
      found.fails("gpu.cpu_only_build",
                  fmt::format("The installed {} {} is a build without CUDA.", f.name, f.version),
                  "Install the build for your CUDA version.");
    }
    if (major(m.cuda_version) > 0 && major(f.cuda) > major(m.cuda_version)) {
      found.fails("gpu.driver_too_old",
                  fmt::format("{} {} was built for CUDA {}, and the driver {} supports up to {}.",
                              f.name, f.version, f.cuda, m.driver_version, m.cuda_version),
                  "Update the driver, or install a build for the older CUDA.");
    }
  }
}

void check_gpus(const Machine& m, Found& found) {
  const bool mismatch = m.gpu_error.find("mismatch") != std::string::npos ||
                        (!m.driver_version.empty() && !m.kernel_module_version.empty() &&
                         m.driver_version != m.kernel_module_version);
  if (mismatch) {
    found.fails(
        "gpu.driver_mismatch",
        fmt::format("The NVIDIA kernel module is {}, its library {}.", m.kernel_module_version,
                    m.driver_version.empty() ? "of another version" : m.driver_version),
        "Reboot, or reload the nvidia modules.");
  } else if (!m.kernel_module_version.empty() && m.gpus.empty()) {
    found.fails(
        "gpu.unusable",
        fmt::format("The NVIDIA kernel module is loaded, but no GPU can be used: {}.", m.gpu_error),
        "In a container: start it with --gpus all. Else look in dmesg for NVRM.");
  }
  for (const Gpu& gpu : m.gpus) {
    const auto& r = gpu.reading;
    if (!r.error.empty()) {
      found.fails("gpu.lost", fmt::format("GPU {} does not answer: {}.", r.index, r.error),
                  "Reset it or reboot; look in dmesg for Xid.");
      continue;
    }
    if (r.mem_total_bytes && r.mem_used_bytes) {
      const double used = share(*r.mem_used_bytes, *r.mem_total_bytes);
      std::string holders;
      for (const probe::GpuProcess& p : r.processes) {
        std::string name;
        for (const Task& task : m.tasks) {
          if (task.pid == p.pid) name = " " + task.command;
        }
        holders += fmt::format("{}pid {}{}{}", holders.empty() ? "" : ", ", p.pid, name,
                               p.memory_bytes ? " " + size_text(*p.memory_bytes) : "");
      }
      const std::string text =
          fmt::format("{} of GPU {}'s {} are taken{}.", size_text(*r.mem_used_bytes), r.index,
                      size_text(*r.mem_total_bytes), holders.empty() ? "" : " by " + holders);
      if (used >= kGpuTaken) {
        found.fails("gpu.memory_taken", text, "Wait, stop it, or take another GPU.");
      } else if (used >= kGpuInUse) {
        found.warns("gpu.memory_taken", text, "A job that takes the whole card will not fit.");
      }
    }
    if (r.throttle_reasons && (*r.throttle_reasons & kSlowedDown) != 0) {
      found.warns("gpu.throttled",
                  fmt::format("GPU {} is slowed down by heat or power{}.", r.index,
                              r.temperature_c ? fmt::format(" ({:.0f} C)", *r.temperature_c) : ""),
                  "Look at its cooling and its power supply.");
    }
    if (r.ecc_errors && *r.ecc_errors > 0) {
      found.warns(
          "gpu.memory_errors",
          fmt::format("GPU {} has counted {} uncorrectable memory errors since it was reset.",
                      r.index, *r.ecc_errors),
          "Reset it; if they come again, replace it.");
    }
  }
  check_contexts(m, found);
  if (!m.gpus.empty()) check_frameworks(m, found);
}

void check_storage(const Machine& m, Found& found) {
  if (m.work) {
    const std::string text = fmt::format("Only {} are free where the job would write ({}).",
                                         size_text(m.work->free_bytes), "the working directory");
    if (m.work->free_bytes < kLittleDisk) {
      found.fails("disk.full", text, "Make room, or write checkpoints elsewhere.");
    } else if (m.work->free_bytes < kLowDisk) {
      found.warns("disk.full", text, "A few checkpoints fill it.");
    }
    if (m.work->total_inodes > 0 && m.work->free_inodes < 1000) {
      found.fails("disk.inodes",
                  fmt::format("Only {} more files can be made where the job would write.",
                              m.work->free_inodes),
                  "Remove small files, or write elsewhere.");
    }
  }
  for (const Disk& disk : m.disks) {
    if (disk.rotational && disk.scheduler == "none") {
      found.warns(
          "disk.scheduler",
          fmt::format("The hard disk {} has no I/O scheduler: it seeks for each request.",
                      disk.name),
          fmt::format("echo mq-deadline > /sys/block/{}/queue/scheduler, as root.", disk.name));
    }
    if (!disk.rotational && disk.scheduler == "bfq") {
      found.warns("disk.scheduler",
                  fmt::format("The I/O scheduler of the fast disk {} is bfq, which costs CPU time.",
                              disk.name),
                  fmt::format("echo none > /sys/block/{}/queue/scheduler, as root.", disk.name));
    }
    if (disk.read_ahead_bytes && *disk.read_ahead_bytes < kLeastReadAhead) {
      found.warns("disk.read_ahead",
                  fmt::format("Read-ahead of {} is {}: sequential reads wait for each piece.",
                              disk.name, size_text(*disk.read_ahead_bytes)),
                  fmt::format("blockdev --setra 256 /dev/{}, as root.", disk.name));
    }
  }
}

void check_data(const Machine& m, Found& found) {
  for (const DataPlace& data : m.data) {
    if (!data.local) {
      found.warns("data.network",
                  fmt::format("{} is on a network file system ({}{}{}).", data.path, data.fs_type,
                              data.source.empty() ? "" : " from ", data.source),
                  "Copy it to a local disk before training, or read it as shards.");
    }
    const uint64_t bytes = data.bytes.value_or(0);
    const bool small = data.files >= kManyFiles && bytes / data.files < kSmallFile;
    for (const Disk& disk : m.disks) {
      if (disk.name != data.disk || !disk.rotational || !small) continue;
      found.warns("data.small_files",
                  fmt::format("{} has {} files of {} each on the hard disk {}: it seeks for each.",
                              data.path, data.files, size_text(bytes / data.files), disk.name),
                  "Pack them into shards (tar, records), or move them to an SSD.");
    }
    uint64_t room = m.available_bytes.value_or(0);
    if (m.memory_limit) room = std::min(room, *m.memory_limit);
    if (room > 0 && bytes > room) {
      found.warns("data.cache",
                  fmt::format("{} has {}{}, and the page cache at most {}: it is read from storage "
                              "again every epoch.",
                              data.path, data.sampled ? "at least " : "", size_text(bytes),
                              size_text(room)),
                  "A smaller format, more memory, or a disk fast enough; flatout cache status.");
    }
  }
}

void add_facts(const Machine& m, CheckUp& out) {
  const auto fact = [&](const char* key, std::string value) {
    if (!value.empty()) out.machine.emplace_back(key, std::move(value));
  };
  const auto size = [](const std::optional<uint64_t>& value) {
    return value ? size_text(*value) : std::string();
  };
  fact("cores", fmt::format("{} of {}", m.allowed_cores, m.cores));
  if (m.cpu_quota) fact("cpu_quota_cores", format_number(*m.cpu_quota));
  fact("governor", m.governor);
  fact("numa_nodes", m.numa_nodes);
  fact("memory", size(m.memory_bytes));
  fact("memory_available", size(m.available_bytes));
  fact("memory_limit", size(m.memory_limit));
  if (m.swap_bytes.value_or(0) > 0) fact("swap", size(m.swap_bytes));
  fact("transparent_huge_pages", m.thp);
  if (m.shm) {
    fact("shm",
         fmt::format("{}, {} free", size_text(m.shm->total_bytes), size_text(m.shm->free_bytes)));
  }
  if (m.open_files.soft) fact("open_files", std::to_string(*m.open_files.soft));
  if (m.pids_limit) {
    fact("pids", fmt::format("{} of {}", m.pids_in_group.value_or(0), *m.pids_limit));
  }
  fact("zombies", std::to_string(m.zombies));
  fact("driver", m.driver_version);
  fact("cuda_of_driver", m.cuda_version);
  if (m.gpus.empty()) fact("gpus", m.gpu_error.empty() ? "none" : "none: " + m.gpu_error);
  for (const Gpu& gpu : m.gpus) {
    fact(fmt::format("gpu{}", gpu.reading.index).c_str(),
         fmt::format("{}, {} of {} free", gpu.facts.name,
                     size_text(gpu.reading.mem_total_bytes.value_or(0) -
                               std::min(gpu.reading.mem_total_bytes.value_or(0),
                                        gpu.reading.mem_used_bytes.value_or(0))),
                     size_text(gpu.reading.mem_total_bytes.value_or(0))));
  }
  for (const Framework& f : m.frameworks) {
    fact(f.package.c_str(),
         fmt::format("{}{}", f.version, f.cuda.empty() ? "" : ", CUDA " + f.cuda));
  }
  for (const Disk& disk : m.disks) {
    fact(("disk_" + disk.name).c_str(),
         fmt::format("{}, {}, read-ahead {}", disk.rotational ? "rotating" : "solid state",
                     disk.scheduler, size_text(disk.read_ahead_bytes.value_or(0))));
  }
  for (const DataPlace& data : m.data) {
    fact(("data " + data.path).c_str(),
         fmt::format("{}{} in {} files on {}", data.sampled ? "at least " : "",
                     size_text(data.bytes.value_or(0)), data.files, data.fs_type));
  }
}

}  // namespace

CheckUp check_up(const Machine& machine) {
  Found found;
  check_gpus(machine, found);
  check_left_over(machine, found);
  check_memory(machine, found);
  check_limits(machine, found);
  check_cpu(machine, found);
  check_storage(machine, found);
  check_data(machine, found);
  CheckUp out;
  out.problems = std::move(found.problems);
  std::stable_partition(out.problems.begin(), out.problems.end(),
                        [](const Problem& p) { return p.fails; });
  add_facts(machine, out);
  return out;
}

CheckUp check_self(const Machine& m) {
  Found found;
  CheckUp out;
  const auto can = [&](const char* what, bool yes, std::string_view id, std::string text,
                       std::string hint) {
    out.machine.emplace_back(what, yes ? "yes" : "no");
    if (!yes) found.warns(id, std::move(text), std::move(hint));
  };
  can("pressure", m.pressure, "self.pressure",
      "The kernel does not count pressure: stalls for CPU, memory and I/O are told less exactly.",
      "Linux 4.20 or later; where it is built in but off, boot with psi=1.");
  const bool stacks = m.root || m.ptrace_scope.value_or(0) <= 1;
  can("stacks_of_attached_jobs", stacks, "self.ptrace",
      "Stacks of a running job cannot be read (kernel.yama.ptrace_scope).",
      "Start the job with flatout run, run flatout as root, or sysctl kernel.yama.ptrace_scope=1.");
  can("gpus", !m.gpus.empty(), "self.gpu",
      fmt::format("No GPU can be measured: {}.",
                  m.gpu_error.empty() ? "none is there" : m.gpu_error),
      "Needs an NVIDIA GPU with its driver; in a container start it with --gpus all.");
  can("control_groups", m.control_groups, "self.cgroup",
      "Control groups cannot be seen: neither can limits of CPU, memory and processes.",
      "Mount /sys/fs/cgroup.");
  can("other_users_processes", m.root, "self.other_users",
      "Files and memory maps of other users' processes cannot be seen.", "Run flatout as root.");
  out.problems = std::move(found.problems);
  return out;
}

}  // namespace flatout::advise
