// The whole machine: cores, memory, reclaim, pressure.
#include <memory>

#include "base/text.h"
#include "probe/kernel_files.h"
#include "probe/probes.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::probe {
namespace {

using model::SignalId;

// /proc/stat, loadavg and the clock of each core.
class HostProbe : public Probe {
 public:
  explicit HostProbe(const Scope& scope) : root_(scope.root) {}
  const char* name() const override { return "host"; }
  Nanos period() const override { return std::chrono::milliseconds(500); }

  void read(TimePoint now, model::Sink& sink) override {
    const Deliver host(sink, host_entity(sink), now);
    read_stat(now, sink, host);
    if (root_.read_into("proc/loadavg", buffer_, 256).ok()) {
      if (const auto load = parse_load_average(buffer_)) {
        host(SignalId::kHostPids, static_cast<double>(load->tasks));
      }
    }
    // Of our network namespace, which the job most often shares.
    if (root_.read_into("proc/net/netstat", buffer_).ok()) {
      host(SignalId::kNetDelayedAcks, parse_net_counter(buffer_, "TcpExt", "DelayedACKs"));
    }
    if (now >= next_slow_) {
      next_slow_ = now + std::chrono::seconds(10);
      if (root_.read_into("proc/sys/kernel/pid_max", buffer_, 256).ok()) {
        host(SignalId::kHostPidMax, parse_number<uint64_t>(buffer_));
      }
    }
    if (now >= next_clock_) {
      next_clock_ = now + std::chrono::seconds(2);
      read_clocks(now, sink);
    }
  }

 private:
  void read_stat(TimePoint now, model::Sink& sink, const Deliver& host) {
    const Status got = root_.read_into("proc/stat", buffer_);
    const auto stat = got.ok() ? parse_kernel_stat(buffer_) : std::nullopt;
    if (!stat) {
      no_stat_(sink, "host.cpu_busy_ns", got.ok() ? "/proc/stat is malformed" : got.error().message,
               "mount /proc");
      return;
    }
    const double tick = tick_ns();
    host(SignalId::kHostCpuBusy, static_cast<double>(stat->all.busy()) * tick);
    host(SignalId::kHostCpuIdle, static_cast<double>(stat->all.idle) * tick);
    host(SignalId::kHostCpuIowait, static_cast<double>(stat->all.iowait) * tick);
    host(SignalId::kHostCpuSteal, static_cast<double>(stat->all.steal) * tick);
    host(SignalId::kHostContextSwitches, stat->context_switches);
    host(SignalId::kHostForks, stat->forks);
    host(SignalId::kHostRunnable, stat->running);
    host(SignalId::kHostCores, static_cast<double>(stat->cpus.size()));
    cpus_.clear();
    for (const CpuTicks& cpu : stat->cpus) {
      cpus_.push_back(cpu.cpu);
      sink.reading(SignalId::kCpuBusy, cpu_entity(sink, cpu.cpu), now,
                   static_cast<double>(cpu.busy()) * tick);
    }
  }

  // cpufreq where there is a driver, else /proc/cpuinfo (a virtual machine's shows a constant).
  void read_clocks(TimePoint now, model::Sink& sink) {
    if (cpus_.size() > 256) return;  // one file per core: too dear on such a machine
    if (cpufreq_) {
      bool any = false;
      for (const int32_t cpu : cpus_) {
        const Status got = root_.read_into(
            "sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpufreq/scaling_cur_freq",
            buffer_, 256);
        const auto khz = got.ok() ? parse_number<double>(buffer_) : std::nullopt;
        if (!khz) continue;
        any = true;
        sink.reading(SignalId::kCpuFrequency, cpu_entity(sink, cpu), now, *khz * 1e3);
      }
      if (any) return;
      cpufreq_ = false;
      no_clock_(sink, "cpu.frequency_hz", "the kernel has no cpufreq driver here",
                "in a virtual machine only the hypervisor knows the clock");
    }
  }

  static model::EntityId cpu_entity(model::Sink& sink, int32_t cpu) {
    return sink.entity(model::EntityKind::kCpu, cpu, "", model::kNoEntity);
  }

  fs::Root root_;
  std::string buffer_;
  std::vector<int32_t> cpus_;
  TimePoint next_slow_{}, next_clock_{};
  bool cpufreq_ = true;
  MissingOnce no_stat_, no_clock_;
};

// meminfo, vmstat, buddyinfo.
class MemoryProbe : public Probe {
 public:
  explicit MemoryProbe(const Scope& scope) : root_(scope.root) {}
  const char* name() const override { return "memory"; }
  Nanos period() const override { return std::chrono::seconds(1); }

  void read(TimePoint now, model::Sink& sink) override {
    const Deliver host(sink, host_entity(sink), now);
    if (root_.read_into("proc/meminfo", buffer_).ok()) {
      read_meminfo(host);
    } else {
      no_meminfo_(sink, "mem.available_bytes", "/proc/meminfo cannot be read", "mount /proc");
    }
    if (root_.read_into("proc/vmstat", buffer_).ok()) {
      read_vmstat(host);
    } else {
      no_vmstat_(sink, "vm.major_faults", "/proc/vmstat cannot be read",
                 "page cache, swap and reclaim are not seen in this container");
    }
    if (now < next_buddy_) return;
    next_buddy_ = now + std::chrono::seconds(5);
    const Status buddy = root_.read_into("proc/buddyinfo", buffer_);
    if (buddy.ok()) {
      host(SignalId::kBuddyFree2M, parse_buddy_free(buffer_, page_bytes(), 2 << 20));
    } else {
      no_buddy_(sink, "buddy.free_2m_blocks", buddy.error().message, "run flatout as root");
    }
  }

 private:
  void read_meminfo(const Deliver& host) {
    struct Row {
      std::string_view key;
      SignalId signal;
    };
    static constexpr Row kRows[] = {
        {"MemTotal", SignalId::kMemTotal},
        {"MemAvailable", SignalId::kMemAvailable},
        {"MemFree", SignalId::kMemFree},
        {"Cached", SignalId::kMemCached},
        {"Dirty", SignalId::kMemDirty},
        {"Writeback", SignalId::kMemWriteback},
        {"SReclaimable", SignalId::kMemSlabReclaimable},
        {"SUnreclaim", SignalId::kMemSlabUnreclaimable},
        {"Shmem", SignalId::kMemShmem},
        {"HugePages_Free", SignalId::kMemHugeFree},
        {"SwapTotal", SignalId::kSwapTotal},
        {"SwapFree", SignalId::kSwapFree},
    };
    for (const Row& row : kRows) host(row.signal, find_field(buffer_, row.key));
  }

  void read_vmstat(const Deliver& host) {
    // Several lines add up to one signal where the kernel counts by zone; refaults have had their
    // present names since Linux 5.9.
    struct Row {
      std::string_view prefix;
      bool whole;  // the prefix is the whole key
      SignalId signal;
      double sum = 0;
      bool found = false;
    };
    Row rows[] = {
        {"pswpin", true, SignalId::kVmSwapIn},
        {"pswpout", true, SignalId::kVmSwapOut},
        {"pgmajfault", true, SignalId::kVmMajorFaults},
        {"pgfault", true, SignalId::kVmFaults},
        {"workingset_refault_file", true, SignalId::kVmRefaultFile},
        {"workingset_refault", true, SignalId::kVmRefaultFile},
        {"workingset_refault_anon", true, SignalId::kVmRefaultAnon},
        {"pgscan_direct", true, SignalId::kVmDirectScan},
        {"pgscan_kswapd", true, SignalId::kVmKswapdScan},
        {"allocstall_", false, SignalId::kVmAllocStall},
        {"allocstall", true, SignalId::kVmAllocStall},
        {"compact_stall", true, SignalId::kVmCompactStall},
        {"compact_fail", true, SignalId::kVmCompactFail},
        {"oom_kill", true, SignalId::kVmOomKill},
        {"thp_fault_alloc", true, SignalId::kVmThpFaultAlloc},
        {"thp_fault_fallback", true, SignalId::kVmThpFaultFallback},
        {"drop_pagecache", true, SignalId::kVmDropCaches},
    };
    each_pair(buffer_, [&](std::string_view key, uint64_t value) {
      for (Row& row : rows) {
        if (row.whole ? key == row.prefix : key.starts_with(row.prefix)) {
          row.sum += static_cast<double>(value);
          row.found = true;
        }
      }
    });
    for (const Row& row : rows) {
      if (row.found) host(row.signal, row.sum);
    }
  }

  fs::Root root_;
  std::string buffer_;
  TimePoint next_buddy_{};
  MissingOnce no_meminfo_, no_vmstat_, no_buddy_;
};

// /proc/pressure: absent before Linux 4.20, with psi=0, or where the kernel needs psi=1.
class PressureProbe : public Probe {
 public:
  explicit PressureProbe(const Scope& scope) : root_(scope.root) {}
  const char* name() const override { return "pressure"; }
  Nanos period() const override {
    return absent_ ? Nanos(std::chrono::minutes(10)) : Nanos(std::chrono::seconds(1));
  }

  void read(TimePoint now, model::Sink& sink) override {
    const Deliver host(sink, host_entity(sink), now);
    absent_ = true;
    read_one("cpu", SignalId::kPsiCpuSome, std::nullopt, host);
    read_one("io", SignalId::kPsiIoSome, SignalId::kPsiIoFull, host);
    read_one("memory", SignalId::kPsiMemorySome, SignalId::kPsiMemoryFull, host);
    if (absent_) {
      missing_(sink, "psi", "the kernel does not account pressure (no /proc/pressure)",
               "boot with psi=1");
    }
  }

 private:
  void read_one(std::string_view kind, SignalId some, std::optional<SignalId> full,
                const Deliver& host) {
    // With psi=0 the files exist, but opening them fails (EOPNOTSUPP).
    if (!root_.read_into("proc/pressure/" + std::string(kind), buffer_, 1024).ok()) return;
    const auto pressure = parse_pressure(buffer_);
    if (!pressure) return;
    absent_ = false;
    host(some, pressure->some_us, 1e3);
    if (full) host(*full, pressure->full_us, 1e3);
  }

  fs::Root root_;
  std::string buffer_;
  bool absent_ = false;
  MissingOnce missing_;
};

}  // namespace

std::unique_ptr<Probe> make_host_probe(const Scope& s) { return std::make_unique<HostProbe>(s); }
std::unique_ptr<Probe> make_memory_probe(const Scope& s) {
  return std::make_unique<MemoryProbe>(s);
}
std::unique_ptr<Probe> make_pressure_probe(const Scope& s) {
  return std::make_unique<PressureProbe>(s);
}

}  // namespace flatout::probe
