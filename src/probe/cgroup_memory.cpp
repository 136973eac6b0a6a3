#include "probe/cgroup_memory.h"

#include <algorithm>

#include "base/text.h"
#include "probe/kernel_files.h"

namespace flatout::probe {
namespace {

std::optional<uint64_t> hierarchical_limit(const std::string& stat) {
  const auto value = find_pair(stat, "hierarchical_memory_limit");
  return value ? parse_limit(std::to_string(*value)) : std::nullopt;
}

GroupMemory read_level(const fs::Root& root, const CgroupDir& level, bool v2,
                       const std::string& stat) {
  const auto file = [&](const char* v2_name, const char* v1_name) {
    return root.read(level.dir + "/" + (v2 ? v2_name : v1_name), 256).value_or("");
  };
  GroupMemory out;
  out.path = level.path;
  out.dir = level.dir;
  out.limit = parse_limit(trim(file("memory.max", "memory.limit_in_bytes")));
  out.used = parse_number<uint64_t>(trim(file("memory.current", "memory.usage_in_bytes")));
  // Of the group and those beneath it.
  const auto cache = find_pair(stat, v2 ? "file" : "total_cache");
  const uint64_t kept = find_pair(stat, v2 ? "shmem" : "total_shmem").value_or(0);
  if (cache) out.cache = *cache - std::min(*cache, kept);
  return out;
}

}  // namespace

uint64_t GroupMemory::held() const {
  const uint64_t all = used.value_or(0);
  return all - std::min(all, cache.value_or(0));
}

uint64_t GroupMemory::room() const {
  const uint64_t most = limit.value_or(UINT64_MAX);
  return most - std::min(most, held());
}

std::optional<GroupMemory> tightest_memory(const fs::Root& root, const CgroupChain& chain) {
  std::optional<GroupMemory> tightest, own, outermost;
  std::optional<uint64_t> lowest, outer;
  for (const CgroupDir& level : chain.levels) {
    const std::string stat = root.read(level.dir + "/memory.stat", 64 << 10).value_or("");
    const GroupMemory group = read_level(root, level, chain.v2, stat);
    if (group.used || group.limit) {
      if (!own) own = group;
      outermost = group;
    }
    if (!chain.v2 && !outer) outer = hierarchical_limit(stat);  // the innermost knows all of them
    if (!group.limit) continue;
    if (!lowest || *group.limit < *lowest) lowest = group.limit;
    if (!tightest || group.room() < tightest->room()) tightest = group;
  }
  if (outer && (!lowest || *outer < *lowest)) {
    // Of it no more than the limit is known: at least what is used in here is used there.
    GroupMemory hidden = outermost.value_or(GroupMemory{});
    hidden.path = "";
    hidden.limit = outer;
    if (!tightest || hidden.room() < tightest->room()) tightest = hidden;
  }
  return tightest ? tightest : own;
}

}  // namespace flatout::probe
