#include "probe/kernel_files.h"

#include <algorithm>

namespace flatout::probe {
namespace {

constexpr size_t kMaxCpus = 8192;
constexpr size_t kMaxDisks = 4096;

uint64_t next_count(std::string_view& line) {
  return parse_number<uint64_t>(next_word(line)).value_or(0);
}

}  // namespace

std::optional<KernelStat> parse_kernel_stat(std::string_view text) {
  KernelStat out;
  bool have_all = false;
  std::string_view line;
  while (next_line(text, line)) {
    const std::string_view key = next_word(line);
    if (key.starts_with("cpu")) {
      CpuTicks ticks;
      if (key.size() > 3) {
        const auto cpu = parse_number<int32_t>(key.substr(3));
        if (!cpu || *cpu < 0 || out.cpus.size() >= kMaxCpus) continue;
        ticks.cpu = *cpu;
      }
      const uint64_t user = next_count(line), nice = next_count(line);
      ticks.user = user + nice;
      ticks.system = next_count(line);
      ticks.idle = next_count(line);
      ticks.iowait = next_count(line);
      const uint64_t hard = next_count(line), soft = next_count(line);
      ticks.irq = hard + soft;
      ticks.steal = next_count(line);
      if (ticks.cpu < 0) {
        out.all = ticks;
        have_all = true;
      } else {
        out.cpus.push_back(ticks);
      }
    } else if (key == "ctxt") {
      out.context_switches = parse_number<uint64_t>(line);
    } else if (key == "processes") {
      out.forks = parse_number<uint64_t>(line);
    } else if (key == "procs_running") {
      out.running = parse_number<uint64_t>(line);
    }
  }
  if (!have_all) return std::nullopt;
  return out;
}

std::optional<LoadAverage> parse_load_average(std::string_view text) {
  for (int i = 0; i < 3; ++i) next_word(text);
  const std::string_view tasks = next_word(text);
  const size_t slash = tasks.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const auto running = parse_number<uint64_t>(tasks.substr(0, slash));
  const auto all = parse_number<uint64_t>(tasks.substr(slash + 1));
  const auto newest = parse_number<int32_t>(next_word(text));
  if (!running || !all || !newest) return std::nullopt;
  return LoadAverage{*running, *all, *newest};
}

std::vector<DiskStat> parse_disk_stats(std::string_view text) {
  std::vector<DiskStat> out;
  std::string_view line;
  while (next_line(text, line) && out.size() < kMaxDisks) {
    DiskStat disk;
    const auto major = parse_number<uint32_t>(next_word(line));
    const auto minor = parse_number<uint32_t>(next_word(line));
    disk.name = next_word(line);
    if (!major || !minor || disk.name.empty()) continue;
    disk.major = *major;
    disk.minor = *minor;
    uint64_t fields[17] = {};
    size_t count = 0;
    for (std::string_view word = next_word(line); !word.empty() && count < std::size(fields);
         word = next_word(line)) {
      const auto value = parse_number<uint64_t>(word);
      if (!value) break;
      fields[count++] = *value;
    }
    if (count < 11) continue;  // a partition's short line of Linux 2.6, or malformed
    disk.reads = fields[0];
    disk.read_sectors = fields[2];
    disk.read_ms = fields[3];
    disk.writes = fields[4];
    disk.write_sectors = fields[6];
    disk.write_ms = fields[7];
    disk.in_flight = fields[8];
    disk.busy_ms = fields[9];
    if (count >= 17) disk.flush_ms = fields[16];
    out.push_back(disk);
  }
  return out;
}

std::optional<Pressure> parse_pressure(std::string_view text) {
  Pressure out;
  std::string_view line;
  while (next_line(text, line)) {
    const std::string_view kind = next_word(line);
    std::optional<uint64_t> total;
    for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
      if (word.starts_with("total=")) total = parse_number<uint64_t>(word.substr(6));
    }
    if (kind == "some") out.some_us = total;
    if (kind == "full") out.full_us = total;
  }
  if (!out.some_us && !out.full_us) return std::nullopt;
  return out;
}

std::optional<uint64_t> parse_net_counter(std::string_view text, std::string_view protocol,
                                          std::string_view name) {
  std::string_view names, values;
  while (next_line(text, names) && next_line(text, values)) {
    std::string_view kind = next_word(names);
    if (kind != next_word(values) || !kind.ends_with(':')) return std::nullopt;
    kind.remove_suffix(1);
    if (kind != protocol) continue;
    for (std::string_view n = next_word(names); !n.empty(); n = next_word(names)) {
      const std::string_view value = next_word(values);
      if (n == name) return parse_number<uint64_t>(value);
    }
    return std::nullopt;
  }
  return std::nullopt;
}

std::optional<uint64_t> parse_buddy_free(std::string_view text, uint64_t page_bytes,
                                         uint64_t block_bytes) {
  uint64_t blocks = 0;
  bool any = false;
  std::string_view line;
  while (next_line(text, line)) {
    // "Node 0, zone   Normal   4279   3511 ...": a count for each order.
    const size_t zone = line.find("zone");
    if (zone == std::string_view::npos) continue;
    line.remove_prefix(zone + 4);
    if (next_word(line).empty()) continue;
    uint64_t size = page_bytes;
    for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
      const auto count = parse_number<uint64_t>(word);
      if (!count || size > UINT64_MAX / 4) break;
      any = true;
      if (size >= block_bytes) blocks += *count * (size / block_bytes);
      size *= 2;
    }
  }
  if (!any) return std::nullopt;
  return blocks;
}

std::optional<uint64_t> find_pair(std::string_view text, std::string_view key) {
  std::optional<uint64_t> out;
  each_pair(text, [&](std::string_view name, uint64_t value) {
    if (name == key && !out) out = value;
  });
  return out;
}

}  // namespace flatout::probe
