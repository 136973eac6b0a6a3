#include "probe/cgroup_files.h"

#include <algorithm>

#include "base/text.h"
#include "probe/mount_table.h"

namespace flatout::probe {
namespace {

constexpr size_t kMaxLines = 4096;
constexpr size_t kMaxDepth = 64;

std::string join(std::string_view point, std::string_view path) {
  std::string out(point);
  while (!out.empty() && out.back() == '/') out.pop_back();
  if (path != "/") out += path;
  while (!out.empty() && out.front() == '/') out.erase(0, 1);
  return out;
}

bool climbs(std::string_view path) {
  for (const std::string_view part : split(path, '/')) {
    if (part == "..") return true;
  }
  return false;
}

// Where a group lies beneath a mount. The mount may show only a part of the hierarchy: then that
// part's path is taken off. What lies outside is not to be seen; the mounted root stands for it,
// which in a container is the container's own group.
std::string beneath(const CgroupMount& mount, std::string_view path) {
  std::string_view rest = path;
  if (mount.root != "/") {
    const bool inside = path.starts_with(mount.root) &&
                        (path.size() == mount.root.size() || path[mount.root.size()] == '/');
    rest = inside ? path.substr(mount.root.size()) : "/";
  }
  if (rest.empty() || rest.front() != '/' || climbs(rest)) rest = "/";
  return std::string(rest);
}

CgroupChain make_chain(const fs::Root& root, const CgroupMount& mount, std::string_view path) {
  CgroupChain chain;
  chain.v2 = mount.v2;
  std::string at = beneath(mount, path);
  // A group of the host's naming that does not exist here: we see it through another mount.
  if (at != "/" && !root.exists(join(mount.point, at))) at = "/";
  while (chain.levels.size() < kMaxDepth) {
    chain.levels.push_back({at, join(mount.point, at)});
    if (at == "/") break;
    at.erase(at.rfind('/'));
    if (at.empty()) at = "/";
  }
  return chain;
}

void keep_smallest(std::optional<uint64_t>& kept, std::optional<uint64_t> value) {
  if (value && (!kept || *value < *kept)) kept = value;
}

}  // namespace

std::vector<CgroupLine> parse_cgroup_lines(std::string_view text) {
  std::vector<CgroupLine> out;
  std::string_view line;
  while (next_line(text, line) && out.size() < kMaxLines) {
    const size_t first = line.find(':');
    if (first == std::string_view::npos) continue;
    const size_t second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    CgroupLine entry;
    const std::string_view names = line.substr(first + 1, second - first - 1);
    if (!names.empty()) {
      for (const std::string_view name : split(names, ',')) entry.controllers.push_back(name);
    }
    entry.path = line.substr(second + 1);
    if (entry.path.empty() || entry.path.front() != '/') continue;
    out.push_back(std::move(entry));
  }
  return out;
}

std::vector<CgroupMount> parse_cgroup_mounts(std::string_view mountinfo) {
  std::vector<CgroupMount> out;
  for (const Mount& mount : parse_mountinfo(mountinfo)) {
    if ((mount.type != "cgroup" && mount.type != "cgroup2") || mount.root.empty()) continue;
    CgroupMount& group = out.emplace_back();
    group.root = mount.root;
    group.point = mount.point;
    group.v2 = mount.type == "cgroup2";
    if (group.v2) continue;
    for (const std::string_view option : split(mount.super_options, ',')) {
      group.controllers.emplace_back(option);
    }
  }
  return out;
}

namespace {

Result<std::map<std::string, CgroupChain>> find_chains(const fs::Root& root,
                                                       const std::string& process) {
  FLATOUT_TRY(const std::string groups, root.read("proc/" + process + "/cgroup"));
  FLATOUT_TRY(const std::string mountinfo, root.read("proc/self/mountinfo", 4 << 20));
  const std::vector<CgroupMount> mounts = parse_cgroup_mounts(mountinfo);
  std::map<std::string, CgroupChain> out;
  const std::vector<CgroupLine> lines = parse_cgroup_lines(groups);
  // v2 first: where a controller is attached to v1 too (hybrid), v1 has it and overwrites.
  for (const bool v2 : {true, false}) {
    for (const CgroupLine& line : lines) {
      if (line.controllers.empty() != v2) continue;
      for (const CgroupMount& mount : mounts) {
        if (mount.v2 != v2) continue;
        if (v2) {
          const CgroupChain chain = make_chain(root, mount, line.path);
          for (const char* name : {"unified", "cpu", "cpuacct", "memory", "blkio", "pids"}) {
            out.try_emplace(name, chain);
          }
          continue;
        }
        for (const std::string_view name : line.controllers) {
          const auto& has = mount.controllers;
          if (std::find(has.begin(), has.end(), name) == has.end()) continue;
          CgroupChain& chain = out[std::string(name)];
          if (chain.levels.empty() || chain.v2) chain = make_chain(root, mount, line.path);
        }
      }
    }
  }
  return out;
}

}  // namespace

Result<std::map<std::string, CgroupChain>> find_cgroups(const fs::Root& root, int32_t pid) {
  return find_chains(root, std::to_string(pid));
}

Result<std::map<std::string, CgroupChain>> own_cgroups(const fs::Root& root) {
  return find_chains(root, "self");
}

std::optional<uint64_t> parse_limit(std::string_view text) {
  const auto value = parse_number<uint64_t>(text);
  // v1 writes "no limit" as LONG_MAX rounded down to a page.
  if (!value || *value >= uint64_t{1} << 60) return std::nullopt;
  return value;
}

std::optional<double> parse_cpu_max(std::string_view text) {
  const std::string_view quota = next_word(text);
  return cpu_quota(quota, text);
}

std::optional<double> cpu_quota(std::string_view quota, std::string_view period) {
  const auto part = parse_number<int64_t>(quota);
  const auto whole = parse_number<int64_t>(period);
  if (!part || !whole || *part <= 0 || *whole <= 0) return std::nullopt;
  return static_cast<double>(*part) / static_cast<double>(*whole);
}

IoCaps parse_io_max(std::string_view text) {
  IoCaps out;
  std::string_view line;
  while (next_line(text, line)) {
    next_word(line);  // device
    for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
      const size_t equal = word.find('=');
      if (equal == std::string_view::npos) continue;
      const std::string_view key = word.substr(0, equal);
      const auto value = parse_limit(word.substr(equal + 1));
      if (key == "rbps") keep_smallest(out.read_bytes, value);
      if (key == "wbps") keep_smallest(out.write_bytes, value);
      if (key == "riops") keep_smallest(out.read_ops, value);
      if (key == "wiops") keep_smallest(out.write_ops, value);
    }
  }
  return out;
}

std::optional<uint64_t> parse_blkio_cap(std::string_view text) {
  std::optional<uint64_t> out;
  std::string_view line;
  while (next_line(text, line)) {
    if (next_word(line).find(':') == std::string_view::npos) continue;
    keep_smallest(out, parse_limit(line));
  }
  return out;
}

IoTotals parse_io_stat(std::string_view text) {
  IoTotals out;
  std::string_view line;
  while (next_line(text, line)) {
    next_word(line);
    for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
      if (word.starts_with("rbytes=")) {
        out.read_bytes += parse_number<uint64_t>(word.substr(7)).value_or(0);
      } else if (word.starts_with("wbytes=")) {
        out.write_bytes += parse_number<uint64_t>(word.substr(7)).value_or(0);
      }
    }
  }
  return out;
}

IoTotals parse_blkio_bytes(std::string_view text) {
  IoTotals out;
  std::string_view line;
  while (next_line(text, line)) {
    if (next_word(line).find(':') == std::string_view::npos) continue;  // "Total 123"
    const std::string_view kind = next_word(line);
    const uint64_t value = parse_number<uint64_t>(line).value_or(0);
    if (kind == "Read") out.read_bytes += value;
    if (kind == "Write") out.write_bytes += value;
  }
  return out;
}

}  // namespace flatout::probe
