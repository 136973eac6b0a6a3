// Finds the control groups of a process, v1, v2 or both (kernel: admin-guide/cgroup-v1,
// admin-guide/cgroup-v2.rst), and parses their files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"

namespace flatout::probe {

/// One line of /proc/PID/cgroup.
struct CgroupLine {
  std::vector<std::string_view> controllers;  // empty for v2
  std::string_view path;
};
std::vector<CgroupLine> parse_cgroup_lines(std::string_view text);

/// A mounted cgroup hierarchy, from /proc/self/mountinfo.
struct CgroupMount {
  std::string root;   // the part of the hierarchy that is mounted
  std::string point;  // where
  bool v2 = false;
  std::vector<std::string> controllers;  // v1
};
std::vector<CgroupMount> parse_cgroup_mounts(std::string_view mountinfo);

/// A group as a directory that can be read.
struct CgroupDir {
  std::string path;  // as the kernel names it, beneath the mounted root: "/slice/job"
  std::string dir;   // where its files are, relative to the root ("sys/fs/cgroup/memory/slice/job")
};

/// Where the files of one controller are: the job's own group first, then its ancestors up to the
/// mounted root. Empty if the controller cannot be reached.
struct CgroupChain {
  bool v2 = false;
  std::vector<CgroupDir> levels;
};

/// The chains by controller: "cpu", "cpuacct", "memory", "blkio" (v2: "io"), "pids"; for v2 all of
/// them share one chain, which also has the name "unified".
Result<std::map<std::string, CgroupChain>> find_cgroups(const fs::Root& root, int32_t pid);
/// Of the process that asks.
Result<std::map<std::string, CgroupChain>> own_cgroups(const fs::Root& root);

/// "max" is no limit; so is v1's huge number. nullopt: no limit, or malformed.
std::optional<uint64_t> parse_limit(std::string_view text);
/// cpu.max of v2: "50000 100000". In cores; nullopt without a limit.
std::optional<double> parse_cpu_max(std::string_view text);
/// cpu.cfs_quota_us and cpu.cfs_period_us of v1.
std::optional<double> cpu_quota(std::string_view quota, std::string_view period);

/// Smallest caps of any device.
struct IoCaps {
  std::optional<uint64_t> read_bytes, write_bytes, read_ops, write_ops;  // per second
};
/// io.max of v2.
IoCaps parse_io_max(std::string_view text);
/// blkio.throttle.*_device of v1: "8:16 1048576" per line; the smallest.
std::optional<uint64_t> parse_blkio_cap(std::string_view text);

struct IoTotals {
  uint64_t read_bytes = 0, write_bytes = 0;
};
/// io.stat of v2, and blkio.throttle.io_service_bytes of v1; summed over devices.
IoTotals parse_io_stat(std::string_view text);
IoTotals parse_blkio_bytes(std::string_view text);

}  // namespace flatout::probe
