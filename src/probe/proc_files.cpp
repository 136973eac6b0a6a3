#include "probe/proc_files.h"

#include <algorithm>

#include "base/text.h"

namespace flatout::probe {
namespace {

// "123 kB" or "123".
std::optional<uint64_t> parse_amount(std::string_view text) {
  const auto number = parse_number<uint64_t>(next_word(text));
  if (!number) return std::nullopt;
  const std::string_view unit = trim(text);
  if (unit.empty()) return number;
  if (unit != "kB" || *number > UINT64_MAX / 1024) return std::nullopt;
  return *number * 1024;
}

// Calls use(first, last) for each range of "0-3,7".
template <class Use>
bool each_range(std::string_view text, Use use) {
  text = trim(text);
  if (text.empty()) return true;
  for (const std::string_view part : split(text, ',')) {
    const size_t dash = part.find('-');
    const auto first = parse_number<int32_t>(part.substr(0, dash));
    const auto last =
        dash == std::string_view::npos ? first : parse_number<int32_t>(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last > 1 << 20) return false;
    use(*first, *last);
  }
  return true;
}

}  // namespace

std::optional<PidStat> parse_pid_stat(std::string_view text) {
  // The name stands in parentheses and may itself hold any of them: the last one ends it.
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
    return std::nullopt;
  }
  PidStat out;
  const auto pid = parse_number<int32_t>(text.substr(0, open));
  if (!pid) return std::nullopt;
  out.pid = *pid;
  out.comm = text.substr(open + 1, close - open - 1);
  std::string_view rest = text.substr(close + 1);
  const std::string_view state = next_word(rest);
  if (state.size() != 1) return std::nullopt;
  out.state = state[0];

  // Fields 4 to 52 of proc(5), by their number there. Unsigned ones may be written as negative
  // (children's times), and old kernels end early.
  int field = 4;
  for (std::string_view word = next_word(rest); !word.empty() && field <= 52;
       word = next_word(rest), ++field) {
    const auto number = parse_number<int64_t>(word);
    if (!number) {
      if (parse_number<uint64_t>(word)) continue;  // rsslim and addresses: above 2^63, not used
      return std::nullopt;
    }
    const int64_t value = *number;
    const uint64_t count = value < 0 ? 0 : static_cast<uint64_t>(value);
    switch (field) {
      case 4:
        out.ppid = static_cast<int32_t>(value);
        break;
      case 5:
        out.pgrp = static_cast<int32_t>(value);
        break;
      case 6:
        out.session = static_cast<int32_t>(value);
        break;
      case 9:
        out.flags = count;
        break;
      case 10:
        out.minor_faults = count;
        break;
      case 12:
        out.major_faults = count;
        break;
      case 14:
        out.user_ticks = count;
        break;
      case 15:
        out.system_ticks = count;
        break;
      case 16:
        out.children_user_ticks = count;
        break;
      case 17:
        out.children_system_ticks = count;
        break;
      case 18:
        out.priority = value;
        break;
      case 19:
        out.nice = value;
        break;
      case 20:
        out.threads = value;
        break;
      case 22:
        out.start_ticks = count;
        break;
      case 23:
        out.virtual_bytes = count;
        break;
      case 24:
        out.rss_pages = value;
        break;
      case 39:
        out.cpu = static_cast<int32_t>(value);
        break;
      case 42:
        out.block_io_ticks = count;
        break;
      case 52:
        out.exit_status = static_cast<int32_t>(value);
        break;
      default:
        break;
    }
  }
  if (field <= 22) return std::nullopt;  // cut off before the start time
  return out;
}

PidStatus parse_pid_status(std::string_view text) {
  PidStatus out;
  std::string_view line;
  while (next_line(text, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string_view key = line.substr(0, colon);
    std::string_view value = line.substr(colon + 1);
    if (key == "Tgid") {
      out.tgid = parse_number<int32_t>(value);
    } else if (key == "PPid") {
      out.ppid = parse_number<int32_t>(value);
    } else if (key == "Uid") {
      next_word(value);  // the real one; the effective one decides
      out.uid = parse_number<uint32_t>(next_word(value));
    } else if (key == "VmRSS") {
      out.rss_bytes = parse_amount(value);
    } else if (key == "RssAnon") {
      out.rss_anon_bytes = parse_amount(value);
    } else if (key == "RssShmem") {
      out.rss_shmem_bytes = parse_amount(value);
    } else if (key == "VmSwap") {
      out.swap_bytes = parse_amount(value);
    } else if (key == "Cpus_allowed_list") {
      out.allowed_cores = count_cpu_list(value);
    } else if (key == "voluntary_ctxt_switches") {
      out.voluntary_switches = parse_number<uint64_t>(value);
    } else if (key == "nonvoluntary_ctxt_switches") {
      out.involuntary_switches = parse_number<uint64_t>(value);
    }
  }
  return out;
}

std::optional<PidIo> parse_pid_io(std::string_view text) {
  PidIo out;
  int found = 0;
  std::string_view line;
  while (next_line(text, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    const std::string_view key = line.substr(0, colon);
    const auto value = parse_number<uint64_t>(line.substr(colon + 1));
    uint64_t* field = key == "rchar"         ? &out.read_chars
                      : key == "wchar"       ? &out.write_chars
                      : key == "syscr"       ? &out.read_calls
                      : key == "syscw"       ? &out.write_calls
                      : key == "read_bytes"  ? &out.read_bytes
                      : key == "write_bytes" ? &out.write_bytes
                                             : nullptr;
    if (field == nullptr) continue;
    if (!value) return std::nullopt;
    *field = *value;
    ++found;
  }
  if (found < 6) return std::nullopt;
  return out;
}

bool parse_schedstat(std::string_view text, SchedStat& out) {
  const auto on_cpu = parse_number<uint64_t>(next_word(text));
  const auto delay = parse_number<uint64_t>(next_word(text));
  if (!on_cpu || !delay) return false;
  out = {*on_cpu, *delay};
  return true;
}

std::vector<LimitRow> parse_limits(std::string_view limits) {
  constexpr size_t kNameColumns = 25;  // fs/proc/base.c: "%-25s %-20s %-20s %-10s"
  std::vector<LimitRow> out;
  std::string_view line;
  while (next_line(limits, line)) {
    if (line.size() <= kNameColumns || line.starts_with("Limit ")) continue;
    LimitRow row;
    row.name = trim(line.substr(0, kNameColumns));
    line.remove_prefix(kNameColumns);
    row.soft = next_word(line);
    row.hard = next_word(line);
    row.unit = next_word(line);
    if (!row.hard.empty()) out.push_back(row);
  }
  return out;
}

std::optional<uint64_t> parse_fd_limit(std::string_view limits) {
  for (const LimitRow& row : parse_limits(limits)) {
    if (row.name == "Max open files") return parse_number<uint64_t>(row.soft);
  }
  return std::nullopt;
}

std::optional<uint64_t> parse_pss_bytes(std::string_view smaps_rollup) {
  return find_field(smaps_rollup, "Pss");
}

std::optional<int32_t> parse_inner_pid(std::string_view status) {
  std::string_view line;
  while (next_line(status, line)) {
    if (line.starts_with("NSpid:")) {
      return parse_number<int32_t>(line.substr(line.find_last_of("\t :") + 1));
    }
  }
  return std::nullopt;
}

std::optional<int64_t> parse_fd_position(std::string_view fdinfo) {
  std::string_view line;
  while (next_line(fdinfo, line)) {
    if (line.starts_with("pos:")) return parse_number<int64_t>(line.substr(4));
  }
  return std::nullopt;
}

std::optional<std::vector<int32_t>> parse_cpu_list(std::string_view text, size_t limit) {
  std::vector<int32_t> out;
  const bool fine = each_range(text, [&](int32_t first, int32_t last) {
    for (int32_t cpu = first; cpu <= last && out.size() < limit; ++cpu) out.push_back(cpu);
  });
  if (!fine) return std::nullopt;
  return out;
}

std::optional<int32_t> count_cpu_list(std::string_view text) {
  int64_t count = 0;
  const bool fine =
      each_range(text, [&](int32_t first, int32_t last) { count += int64_t{last} - first + 1; });
  if (!fine || count > INT32_MAX) return std::nullopt;
  return static_cast<int32_t>(count);
}

std::string join_command_line(std::string_view cmdline, size_t limit) {
  while (!cmdline.empty() && cmdline.back() == '\0') cmdline.remove_suffix(1);
  std::string out(cmdline.substr(0, limit));
  std::replace(out.begin(), out.end(), '\0', ' ');
  return out;
}

std::optional<uint64_t> find_field(std::string_view text, std::string_view key) {
  std::string_view line;
  while (next_line(text, line)) {
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ':') {
      return parse_amount(line.substr(key.size() + 1));
    }
  }
  return std::nullopt;
}

}  // namespace flatout::probe
