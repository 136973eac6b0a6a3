// Snapshot: what one look at the machine saw, as plain data. Rates are means since the look before.
// What could not be read is unset, never 0.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "model/step.h"
#include "probe/nvml.h"

namespace flatout::screen {

/// Shares of a core's time, 0 to 1; together with idle time they add up to 1.
struct Core {
  int32_t cpu = -1;  // -1: the mean of all
  double user = 0, system = 0, iowait = 0, steal = 0;
  double busy() const { return user + system + steal; }
};

/// Share of the time in which some task, or all of them, waited.
struct Waiting {
  std::optional<double> some, full;
};

struct Memory {
  uint64_t total = 0, free = 0, available = 0, buffers = 0, cached = 0, shmem = 0;
  uint64_t slab_reclaimable = 0, dirty = 0, writeback = 0;
  uint64_t swap_total = 0, swap_free = 0;
  uint64_t huge_pages = 0, huge_free = 0, huge_page_bytes = 0, transparent_huge = 0;
  // Of the control group that leaves `group_pid` the least room, at whatever level; without any
  // limit: of its own group.
  int32_t group_pid = 0;  // 0: of flatout itself
  std::optional<uint64_t> group_limit, group_used, group_cache;

  /// Page cache that can be given up: what free(1) calls buff/cache, less shared memory.
  uint64_t cache() const {
    const uint64_t all = buffers + cached + slab_reclaimable;
    return all > shmem ? all - shmem : 0;
  }
  uint64_t used() const {
    const uint64_t rest = free + cache();
    return total > rest ? total - rest : 0;
  }
};

struct Disk {
  std::string name;
  double busy = 0;  // share of the time with requests in flight
  double read_bytes_per_s = 0, write_bytes_per_s = 0, requests_per_s = 0;
  std::optional<double> latency_s;  // mean of the requests that ended; unset if none did
  uint64_t in_flight = 0;
};

struct Gpu {
  probe::GpuReading now;
  std::string name;
};

/// A training job: the topmost process that uses a framework, and its descendants.
struct Job {
  int32_t pid = 0;
  std::string framework;  // "PyTorch"; "other" where none is known
  std::string name;       // program and script; as the job wrote it
  uint32_t processes = 0, threads = 0;
  double cores = 0;  // CPU time per time
  uint64_t rss_bytes = 0, gpu_bytes = 0;
  std::optional<double> read_bytes_per_s;

  // Where flatout records it.
  std::string folder;  // "" where it does not
  std::optional<double> steps_per_s;
  std::array<double, model::kPartCount> breakdown{};
  std::string suspect;  // a finding's id, or "healthy"
  std::string where;    // "data.py:41"
};

/// A process, or a thread of one.
struct Task {
  static constexpr int16_t kNoDisk = -1;
  int32_t pid = 0, tid = 0, ppid = 0;  // of a process tid == pid
  uint32_t uid = 0, threads = 0;
  int32_t priority = 0, nice = 0, cpu = -1;
  char state = '?';
  bool kernel = false;
  int16_t disk = kNoDisk;  // index into the snapshot's disks: where its traffic goes to
  float cores = 0;         // CPU time per time
  float read_bytes_per_s = -1, write_bytes_per_s = -1;  // storage; < 0: not known
  uint64_t virtual_bytes = 0, rss_bytes = 0, gpu_bytes = 0;
  uint64_t cpu_ticks = 0, start_ticks = 0;
  std::array<char, 16> comm{};                 // ends with 0
  std::shared_ptr<const std::string> command;  // of a process, words joined by blanks; may be empty

  bool is_thread() const { return tid != pid; }
};

struct OpenFile {
  int32_t fd = 0;
  std::string path;
  std::optional<int64_t> position;
  std::optional<uint64_t> bytes;       // of a regular file
  std::optional<double> bytes_per_s;   // by which its position moved on
  bool reads = false, writes = false;  // what it was opened for
};

/// A Python function as readings of the process's stacks saw it. Shares are of the last interval's
/// time, summed over threads: 1 is one thread all of the time.
struct Function {
  std::string function, file;
  int line = 0;                   // of its definition
  double own_share = 0;           // innermost, in a thread that runs
  double waiting_share = 0;       // innermost, in a thread that waits
  double total_share = 0;         // anywhere on the stack
  double gil_share = 0;           // innermost, with the GIL held
  double own_s = 0, total_s = 0;  // thread seconds since the process was chosen
};

struct PythonProfile {
  std::string version;  // "3.11"
  std::string trouble;  // why nothing can be read, or ""
  uint64_t readings = 0;
  double gil_share = 0;             // of the last interval's readings: somebody held it
  std::vector<Function> functions;  // by total_share, then total_s
};

/// The native functions of the process's busiest threads, in the same units.
struct NativeProfile {
  std::string trouble;  // what cannot be read, or ""
  uint64_t readings = 0;
  uint32_t threads = 0, watched = 0;
  std::vector<Function> functions;  // by total_share, then total_s; no lines, no GIL
};

/// What is shown of the chosen process alone.
struct Details {
  int32_t pid = 0;
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  // redacted
  std::string environment_trouble;
  struct Limit {
    std::string name, soft, hard, unit;
  };
  std::vector<Limit> limits;
  std::vector<OpenFile> files;
  std::string files_trouble;
  std::string allowed_cores;  // "0-3,7"
  std::string autogroup;      // "/autogroup-17 nice 5"; "" where the kernel has none
  PythonProfile python;
  NativeProfile native;
};

struct Snapshot {
  TimePoint at;
  int64_t unix_ns = 0;
  double interval_s = 0;  // 0: the first look, rates are not known
  std::string host;
  double uptime_s = 0;
  std::array<double, 3> load{};
  uint64_t tasks = 0, task_threads = 0, runnable = 0, blocked = 0, zombies = 0;

  Core all;
  std::vector<Core> cores;
  Waiting cpu_waiting, io_waiting, memory_waiting;
  Memory memory;
  std::vector<Disk> disks;
  std::vector<Gpu> gpus;
  std::string gpu_trouble;
  std::vector<Job> jobs;
  std::vector<Task> task_list;  // processes by pid, each followed by its threads
  std::shared_ptr<const Details> details;

  /// The disk that a process's traffic goes to; nullptr where it is not known.
  const Disk* disk_of(const Task& task) const {
    const auto index = static_cast<size_t>(task.disk);
    return task.disk >= 0 && index < disks.size() ? &disks[index] : nullptr;
  }
};

}  // namespace flatout::screen
