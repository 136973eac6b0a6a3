// Parsers for the files about the whole machine beneath /proc (kernel:
// Documentation/filesystems/proc.rst, admin-guide/iostats.rst, accounting/psi.rst). Pure functions
// of the text; malformed text gives nullopt or is skipped.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace flatout::probe {

/// One "cpu" line of /proc/stat, in clock ticks. Guest time is part of user time.
struct CpuTicks {
  int32_t cpu = -1;  // -1: all cores
  uint64_t user = 0, system = 0, irq = 0, idle = 0, iowait = 0, steal = 0;
  uint64_t busy() const { return user + system + irq; }
};
struct KernelStat {
  CpuTicks all;
  std::vector<CpuTicks> cpus;
  std::optional<uint64_t> context_switches, forks, running;
};
std::optional<KernelStat> parse_kernel_stat(std::string_view text);

/// "0.20 0.18 0.12 1/80 11206".
struct LoadAverage {
  uint64_t running = 0, tasks = 0;
  int32_t newest_pid = 0;
};
std::optional<LoadAverage> parse_load_average(std::string_view text);

/// One line of /proc/diskstats.
struct DiskStat {
  uint32_t major = 0, minor = 0;
  std::string_view name;
  uint64_t reads = 0, read_sectors = 0, read_ms = 0;
  uint64_t writes = 0, write_sectors = 0, write_ms = 0;
  uint64_t in_flight = 0, busy_ms = 0;
  std::optional<uint64_t> flush_ms;         // from Linux 5.5
  static constexpr uint64_t kSector = 512;  // whatever the device's own sector size
};
std::vector<DiskStat> parse_disk_stats(std::string_view text);

/// A file of /proc/pressure or of a cgroup.
struct Pressure {
  std::optional<uint64_t> some_us, full_us;  // full is absent for the CPU before Linux 5.13
};
std::optional<Pressure> parse_pressure(std::string_view text);

/// A counter of /proc/net/netstat or snmp: one line of names follows another of values.
std::optional<uint64_t> parse_net_counter(std::string_view text, std::string_view protocol,
                                          std::string_view name);

/// Free physical memory in blocks of at least `block_bytes`, in units of such blocks.
std::optional<uint64_t> parse_buddy_free(std::string_view text, uint64_t page_bytes,
                                         uint64_t block_bytes);

/// Calls use(key, value) for each "key value" line (vmstat, memory.stat, cpu.stat ...).
template <class Use>
void each_pair(std::string_view text, Use use);

/// The value of a "key value" line.
std::optional<uint64_t> find_pair(std::string_view text, std::string_view key);

}  // namespace flatout::probe

#include "base/text.h"

template <class Use>
void flatout::probe::each_pair(std::string_view text, Use use) {
  std::string_view line;
  while (next_line(text, line)) {
    const std::string_view key = next_word(line);
    if (key.empty()) continue;
    if (const auto value = parse_number<uint64_t>(line)) use(key, *value);
  }
}
