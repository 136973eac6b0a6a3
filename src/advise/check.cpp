#include "advise/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "advise/found.h"
#include "base/contains.h"
#include "base/size_text.h"
#include "base/text.h"
#include "probe/proc_files.h"

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
// PyTorch without CUDA takes 280 MiB besides page cache before it has done anything.
constexpr uint64_t kLeastMemory = 256 * kMiB;
constexpr uint64_t kMuchSwapped = kGiB;
constexpr uint64_t kManyZombies = 100;
constexpr uint64_t kSmallShm =
    512 * kMiB;                       // Docker's own is 64 MiB; a batch of images has 20 to 150
constexpr uint64_t kFewFiles = 4096;  // PyTorch's workers take two descriptors a tensor
constexpr uint64_t kSpareProcesses = 512;  // what a job with workers and thread pools starts
constexpr uint64_t kLeastLocked = 64 * kMiB;
constexpr uint64_t kLittleDisk = 512 * kMiB, kLowDisk = 5 * kGiB;  // checkpoints of a job
constexpr double kShortJob = 86400;                                // seconds on each core
constexpr size_t kBiggest = 3;                                     // processes that are named
constexpr uint64_t kLeastReadAhead = 64 << 10;
constexpr uint64_t kManyFiles = 10'000, kSmallFile = kMiB;
constexpr double kIdleHugePages = 0.1;  // of memory, reserved and unused

std::string age_text(double seconds) {
  const auto text = [](double number, const char* unit) {
    const std::string rounded = fmt::format("{:.0f}", number);
    return fmt::format("{} {}{}", rounded, unit, rounded == "1" ? "" : "s");
  };
  if (seconds < 90) return text(seconds, "second");
  if (seconds < 3600) return text(seconds / 60, "minute");
  if (seconds < 48 * 3600.0) return text(seconds / 3600, "hour");
  return text(seconds / 86400, "day");
}

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

// Besides page cache.
uint64_t held_in_group(const Machine& m) {
  const uint64_t used = m.memory_in_group.value_or(0);
  return used - std::min(used, m.cache_in_group.value_or(0));
}

// " Most is held by pid 7 python train.py (20.1 GiB), ...".
std::string biggest_text(const Machine& m) {
  std::string out;
  for (size_t i = 0; i < m.tasks.size() && i < kBiggest; ++i) {
    const Task& task = m.tasks[i];
    out += fmt::format("{}pid {} {} ({})", i == 0 ? " Most is held by " : ", ", task.pid,
                       task.command, size_text(task.rss_bytes));
  }
  return out.empty() ? out : out + ".";
}

// Which group has the limit: the job's own, or one above it that others are in, too.
std::string group_text(const Machine& m) {
  return m.memory_group.empty() || m.memory_group == "/"
             ? "this control group"
             : fmt::format("the control group {}", escape_terminal(m.memory_group));
}

void check_memory(const Machine& m, Found& found) {
  if (m.memory_limit) {
    const uint64_t held = held_in_group(m);
    const uint64_t left = *m.memory_limit - std::min(*m.memory_limit, held);
    if (share(held, *m.memory_limit) >= kNearlyFull) {
      found.fails(
          "mem.limit",
          fmt::format("{} of the {} that {} may use are in use, besides page cache.{}",
                      size_text(held), size_text(*m.memory_limit), group_text(m), biggest_text(m)),
          "End what holds it, or raise the limit.");
    } else if (left < kLeastMemory) {
      found.fails(
          "mem.limit",
          fmt::format("Only {} of the {} that {} may use are left: less than a framework takes to "
                      "be loaded.{}",
                      size_text(left), size_text(*m.memory_limit), group_text(m), biggest_text(m)),
          "Raise the limit.");
    }
  }
  if (m.memory_bytes && m.available_bytes &&
      (share(*m.available_bytes, *m.memory_bytes) < kLittleMemory ||
       *m.available_bytes < kLeastMemory)) {
    found.fails(
        "mem.pressure",
        fmt::format("Only {} of {} of memory are available.{}", size_text(*m.available_bytes),
                    size_text(*m.memory_bytes), biggest_text(m)),
        "End what is not wanted any more, or take another machine.");
  }
  if (m.swap_bytes && m.free_swap_bytes &&
      *m.swap_bytes - std::min(*m.swap_bytes, *m.free_swap_bytes) >= kMuchSwapped) {
    found.warns("mem.swap",
                fmt::format("{} are swapped out.", size_text(*m.swap_bytes - *m.free_swap_bytes)),
                "Memory was short before; what was swapped out is slow when it is used again.");
  }
  if (contains(m.thp, "[never]")) {
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
    if (task.gpu_bytes) {
      holds += fmt::format(", {} of GPU memory", size_text(*task.gpu_bytes));
    } else if (task.holds_gpu) {
      holds += ", a GPU";
    }
    // Somebody may want it, as a server: only that its parent is gone can be known.
    const std::string text = fmt::format(
        "pid {} {} runs on without the one that started it, and may be left over from a run that "
        "ended: started {} ago, it holds {}.",
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

void check_shm(const Machine& m, Found& found) {
  constexpr const char* kHint = "mount -t tmpfs tmpfs /dev/shm, as root; else num_workers=0.";
  switch (m.shm_folder) {
    case ShmFolder::kThere:
      break;
    case ShmFolder::kMissing:
      found.fails("mem.shm", "There is no /dev/shm: DataLoader workers and NCCL need it.", kHint);
      break;
    case ShmFolder::kDenied:
      found.fails("mem.shm", "/dev/shm may not be written to: DataLoader workers and NCCL need to.",
                  kHint);
      break;
    case ShmFolder::kNotMounted:
      found.warns("mem.shm",
                  "Nothing is mounted at /dev/shm: what DataLoader workers and NCCL share goes "
                  "wherever /dev lies.",
                  kHint);
      break;
  }
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
}

void check_limits(const Machine& m, Found& found) {
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
  if (m.processes.soft && !m.root && m.own_threads + kSpareProcesses > *m.processes.soft) {
    found.fails(
        "limit.processes",
        fmt::format("A user may have {} processes and threads (ulimit -u), and you have {}.",
                    *m.processes.soft, m.own_threads),
        "ulimit -u, or limits.conf (nproc).");
  }
  const int32_t cores = std::max(1, m.allowed_cores);
  const auto cpu_seconds = static_cast<double>(m.cpu_seconds.soft.value_or(0));
  if (m.cpu_seconds.soft && cpu_seconds / cores < kShortJob) {
    found.fails("limit.cpu_time",
                fmt::format("A process is ended after {} of CPU time (ulimit -t); one that keeps "
                            "{} cores busy has used that after {}.",
                            age_text(cpu_seconds), cores, age_text(cpu_seconds / cores)),
                "ulimit -t unlimited; a login node's limit: start the job by the scheduler.");
  }
  if (m.file_size.soft && *m.file_size.soft < kLowDisk) {
    const std::string text = fmt::format(
        "A process is ended where it writes beyond {} of a file (ulimit -f), as a "
        "checkpoint may be.",
        size_text(*m.file_size.soft));
    if (*m.file_size.soft < kLittleDisk) {
      found.fails("limit.file_size", text, "ulimit -f unlimited");
    } else {
      found.warns("limit.file_size", text, "ulimit -f unlimited");
    }
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

void check_work_folder(const Machine& m, Found& found) {
  constexpr const char* kHint = "A job that writes where it is started stops at its first file.";
  switch (m.work_folder) {
    case WorkFolder::kWritable:
      break;
    case WorkFolder::kReadOnly:
      found.warns("disk.not_writable", "The working directory is on a read-only file system.",
                  kHint);
      break;
    case WorkFolder::kDenied:
      found.warns("disk.not_writable", "You may not write to the working directory.", kHint);
      break;
    case WorkFolder::kGone:
      found.fails(
          "disk.not_writable", "The working directory has been removed.",
          "cd to one that is there: what asks for its name fails, and no file can be made.");
      break;
  }
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
    if (!disk.rotational && !disk.emulated && disk.scheduler == "bfq") {
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

void check_place(const DataPlace& data, Found& found) {
  const std::string of =
      fmt::format("({}{}{})", data.fs_type, data.source.empty() ? "" : " from ", data.source);
  switch (data.place) {
    case probe::FsPlace::kNetwork:
      found.warns("data.network", fmt::format("{} is on a network file system {}.", data.path, of),
                  "Copy it to a local disk before training, or read it as shards.");
      break;
    case probe::FsPlace::kHost:
      found.warns("data.shared_folder",
                  fmt::format("{} is a folder of the host, lent to this virtual machine {}: each "
                              "file that is opened asks the host.",
                              data.path, of),
                  "Copy it to a disk of the virtual machine, or read it as shards.");
      break;
    case probe::FsPlace::kProgram:
      found.warns("data.fuse",
                  fmt::format("{} comes through a program in user space {}: each call goes there "
                              "and back.",
                              data.path, of),
                  "Copy it to a disk that the kernel mounts itself, or read it as shards.");
      break;
    case probe::FsPlace::kDisk:
    case probe::FsPlace::kMemory:
    case probe::FsPlace::kLayers:
    case probe::FsPlace::kUnknown:
      break;
  }
}

void check_data(const Machine& m, Found& found) {
  for (const DataPlace& data : m.data) {
    check_place(data, found);
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
    if (m.memory_limit)
      room = std::min(room, *m.memory_limit - std::min(*m.memory_limit, held_in_group(m)));
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
  const auto library = [](const Framework& f, std::string_view package, std::string_view name) {
    for (const Library& l : f.libraries) {
      if (l.package.starts_with(package)) return std::string(name) + l.installed;
    }
    return std::string();
  };
  fact("cores", m.allowed_cores > 0 ? fmt::format("{} of {}", m.allowed_cores, m.cores)
                                    : std::to_string(m.cores));
  if (m.cpu_quota) fact("cpu_quota_cores", format_number(*m.cpu_quota));
  fact("governor", m.governor);
  if (const auto nodes = probe::count_cpu_list(m.numa_nodes)) {
    fact("numa_nodes", fmt::format("{} ({})", *nodes, m.numa_nodes));
  }
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
  if (!m.proc_missing) fact("zombies", std::to_string(m.zombies));
  fact("driver", m.driver_version);
  fact("cuda_of_driver", m.cuda_version);
  if (m.gpus.empty()) fact("gpus", m.gpu_error.empty() ? "none" : "none: " + m.gpu_error);
  for (const Gpu& gpu : m.gpus) {
    const std::string key = fmt::format("gpu{}", gpu.reading.index);
    const bool known = gpu.reading.mem_total_bytes && gpu.reading.mem_used_bytes;
    fact(key.c_str(), known
                          ? fmt::format("{} of {}, {}", gpu.facts.name,
                                        size_text(*gpu.reading.mem_total_bytes), free_text(m, gpu))
                          : gpu.facts.name + ", which does not tell its memory");
    fact((key + "_held_by").c_str(), holders_text(m, gpu));
    for (const probe::MigInstance& part : gpu.reading.instances) {
      const std::string holders = holders_text(m, gpu, &part);
      fact(fmt::format("{}_mig_{}.{}", key, part.gpu_instance, part.compute_instance).c_str(),
           fmt::format("{}, {} of {} taken{}", part.profile,
                       part.mem_used_bytes ? size_text(*part.mem_used_bytes) : "?",
                       part.mem_total_bytes ? size_text(*part.mem_total_bytes) : "?",
                       holders.empty() ? "" : " by " + holders));
    }
  }
  for (const Framework& f : m.frameworks) {
    fact(f.package.c_str(),
         fmt::format("{}{}{}{}", f.version, f.cuda.empty() ? "" : ", CUDA " + f.cuda,
                     library(f, "nvidia-cudnn", ", cuDNN "), library(f, "nvidia-nccl", ", NCCL ")));
  }
  for (const Disk& disk : m.disks) {
    fact(("disk_" + disk.name).c_str(),
         fmt::format("{}, {}, read-ahead {}",
                     disk.emulated     ? "virtual"
                     : disk.rotational ? "rotating"
                                       : "solid state",
                     disk.scheduler, size_text(disk.read_ahead_bytes.value_or(0))));
  }
  for (const DataPlace& data : m.data) {
    fact(("data " + data.path).c_str(),
         fmt::format("{}{} in {} files on {}{}", data.sampled ? "at least " : "",
                     size_text(data.bytes.value_or(0)), data.files, data.fs_type,
                     data.place == probe::FsPlace::kLayers ? ", layers of a container" : ""));
  }
}

}  // namespace

CheckUp check_up(const Machine& machine) {
  Found found;
  if (machine.proc_missing) {
    found.fails("check.proc",
                "/proc is not mounted: limits, memory and processes could not be looked at, and "
                "frameworks miss it, too.",
                "mount -t proc proc /proc, as root.");
  }
  check_gpus(machine, found);
  check_left_over(machine, found);
  check_memory(machine, found);
  check_shm(machine, found);
  check_limits(machine, found);
  check_cpu(machine, found);
  check_work_folder(machine, found);
  check_storage(machine, found);
  check_data(machine, found);
  CheckUp out;
  out.problems = std::move(found.problems);
  std::stable_partition(out.problems.begin(), out.problems.end(),
                        [](const Problem& p) { return p.fails; });
  add_facts(machine, out);
  return out;
}

}  // namespace flatout::advise
