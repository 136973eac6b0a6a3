// Takes snapshots: reads what the machine's files and NVML say now, and keeps what rates need.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fs.h"
#include "probe/cgroup_files.h"
#include "probe/kernel_files.h"
#include "probe/nvml_probe.h"
#include "screen/details.h"
#include "screen/disk_users.h"
#include "screen/jobs.h"
#include "screen/snapshot.h"
#include "screen/task_table.h"

namespace flatout::screen {

struct SamplerOptions {
  fs::Root root{"/"};
  std::string nvml = "libnvidia-ml.so.1";  // "": no GPUs are looked for
  TaskTable::Clock clock = &MonotonicClock::now;
  int32_t self_pid = 0;  // whose control group's limits are shown; 0: none
  Redactor redact;
};

/// What a snapshot shall have beyond the usual.
struct Wanted {
  bool threads = false;
  int32_t details_pid = 0;  // 0: of nobody
  bool native = false;      // with its native functions
  int32_t group_pid = 0;    // whose control group's memory is shown; 0: flatout's own
  /// Whether that is worth a look before its time: a group of memory is not.
  bool differs(const Wanted& other) const {
    return threads != other.threads || details_pid != other.details_pid || native != other.native;
  }
};

class Sampler {
 public:
  explicit Sampler(SamplerOptions options);
  std::shared_ptr<const Snapshot> look(const Wanted& wanted);

 private:
  struct Totals {
    std::optional<uint64_t> some_us, full_us;
  };
  void read_cores(Snapshot& out);
  void read_load(Snapshot& out);
  void read_memory(Snapshot& out);
  void read_group(int32_t pid, Snapshot& out);
  Waiting read_pressure(const char* kind, const Snapshot& out);
  void read_disks(Snapshot& out);
  void read_gpus(Snapshot& out);
  void give_gpu_memory(Snapshot& out) const;
  bool whole_disk(const probe::DiskStat& disk);

  SamplerOptions options_;
  fs::Root root_;
  TaskTable tasks_;
  Jobs jobs_;
  DiskUsers disk_users_;
  DetailsReader details_;
  std::optional<probe::NvmlThread> nvml_;
  struct LastGpu {
    Gpu gpu;
    TimePoint at{};  // when its driver answered last
  };
  std::map<uint32_t, LastGpu> gpus_;
  std::string buffer_, host_;
  TimePoint last_{};
  probe::KernelStat stat_;
  std::map<std::string, Totals> pressure_;
  struct DiskTotals {
    std::string name;
    bool whole = false;
    probe::DiskStat stat;
  };
  std::map<uint64_t, DiskTotals> disks_;  // by makedev
  std::map<std::string, probe::CgroupChain> groups_;
  int32_t groups_pid_ = 0;
  TimePoint next_groups_{};
};

}  // namespace flatout::screen
