// Parsers for the files of one process beneath /proc/PID (kernel:
// Documentation/filesystems/proc.rst). Pure functions of the text; malformed text gives nullopt or
// leaves a field unset.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flatout::probe {

/// /proc/PID/stat and /proc/PID/task/TID/stat.
struct PidStat {
  int32_t pid = 0, ppid = 0, pgrp = 0, session = 0;
  char state = '?';
  std::string_view comm;  // points into the text; may hold any byte
  uint64_t flags = 0;
  uint64_t minor_faults = 0, major_faults = 0;
  uint64_t user_ticks = 0, system_ticks = 0;
  uint64_t children_user_ticks = 0, children_system_ticks = 0;
  int64_t priority = 0;
  int64_t nice = 0;
  int64_t threads = 0;
  uint64_t start_ticks = 0;
  uint64_t virtual_bytes = 0;
  int64_t rss_pages = 0;
  int32_t cpu = -1;
  uint64_t block_io_ticks = 0;
  int32_t exit_status = -1;  // as waitpid, only meaningful for a zombie

  bool zombie() const { return state == 'Z' || state == 'X' || state == 'x'; }
  bool kernel_thread() const { return (flags & 0x00200000) != 0; }  // PF_KTHREAD
};
std::optional<PidStat> parse_pid_stat(std::string_view text);

/// /proc/PID/status: only what no cheaper file has. Absent lines stay unset.
struct PidStatus {
  std::optional<int32_t> tgid, ppid;
  std::optional<uint32_t> uid;
  std::optional<uint64_t> rss_bytes, rss_anon_bytes, rss_shmem_bytes, swap_bytes;
  std::optional<uint64_t> voluntary_switches, involuntary_switches;
  std::optional<int32_t> allowed_cores;
};
PidStatus parse_pid_status(std::string_view text);

/// /proc/PID/io.
struct PidIo {
  uint64_t read_chars = 0, write_chars = 0, read_calls = 0, write_calls = 0;
  uint64_t read_bytes = 0, write_bytes = 0;
};
std::optional<PidIo> parse_pid_io(std::string_view text);

/// /proc/PID/task/TID/schedstat.
struct SchedStat {
  uint64_t on_cpu_ns = 0, run_delay_ns = 0;
};
bool parse_schedstat(std::string_view text, SchedStat& out);  // false: malformed

/// The soft limit of "Max open files" in /proc/PID/limits; nullopt if unlimited or absent.
std::optional<uint64_t> parse_fd_limit(std::string_view limits);
/// One row of /proc/PID/limits: "Max open files", "1024", "1048576", "files".
struct LimitRow {
  std::string_view name, soft, hard, unit;  // point into the text
};
std::vector<LimitRow> parse_limits(std::string_view limits);
/// Pss of /proc/PID/smaps_rollup.
std::optional<uint64_t> parse_pss_bytes(std::string_view smaps_rollup);
/// The last number of "NSpid:" in /proc/PID/status: as the process itself sees it (Linux 4.1).
std::optional<int32_t> parse_inner_pid(std::string_view status);
/// "pos:" of /proc/PID/fdinfo/N.
std::optional<int64_t> parse_fd_position(std::string_view fdinfo);

/// "0-3,7": the cores, at most `limit` of them. nullopt if malformed.
std::optional<std::vector<int32_t>> parse_cpu_list(std::string_view text, size_t limit = 8192);
/// How many cores a list names, without making it.
std::optional<int32_t> count_cpu_list(std::string_view text);

/// The words of /proc/PID/cmdline joined by blanks, at most `limit` bytes.
std::string join_command_line(std::string_view cmdline, size_t limit = 2048);

/// The value of "key: 123 kB" (in bytes) or "key: 123" on any line.
std::optional<uint64_t> find_field(std::string_view text, std::string_view key);

}  // namespace flatout::probe
