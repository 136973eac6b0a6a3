#include "advise/access.h"

#include <unistd.h>

#include <algorithm>

#include "advise/first_line.h"
#include "base/text.h"
#include "probe/cgroup_files.h"
#include "probe/host_facts.h"
#include "probe/native_stack.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::advise {
namespace {

constexpr int64_t kMostParanoid = 2;  // at which own processes may still be sampled

bool has(const std::vector<std::string_view>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

class Reader {
 public:
  explicit Reader(const fs::Root& root) : root_(root) {}

  Access read() {
    out_.pressure = !line("proc/pressure/cpu").empty();
    out_.schedstat = !line("proc/self/schedstat").empty();
    out_.calls = !line("proc/self/syscall").empty();
    out_.block_io = probe::accounts_block_io(root_);
    out_.autogroup = line("proc/sys/kernel/sched_autogroup_enabled") == "1";
    out_.ptrace_scope = parse_number<int64_t>(line("proc/sys/kernel/yama/ptrace_scope"));
    out_.perf_paranoid = parse_number<int64_t>(line("proc/sys/kernel/perf_event_paranoid"));
    out_.sampling_error = sampling_error();
    read_others();
    read_groups();
    return std::move(out_);
  }

 private:
  std::string line(std::string_view path) const { return first_line(root_, path); }

  // Here it is tried: a container may forbid what the kernel would allow.
  std::string sampling_error() const {
    if (root_.is_real()) {
      const auto sampler = probe::CpuSampler::open(::gettid(), 4096);
      return sampler.ok() ? "" : sampler.error().message;
    }
    if (!out_.perf_paranoid) return "the kernel has no perf events";
    return *out_.perf_paranoid > kMostParanoid ? "no permission" : "";
  }

  void read_others() {
    const auto own = probe::parse_pid_status(root_.read("proc/self/status").value_or("")).uid;
    const auto names = root_.list("proc");
    for (const std::string& name : names.value_or({})) {
      const auto pid = parse_number<int32_t>(name);
      if (!pid) continue;
      const auto status = root_.read(probe::proc_path(*pid, "status"));
      const auto uid = status.ok() ? probe::parse_pid_status(*status).uid : std::nullopt;
      if (!uid || uid == own) continue;
      out_.others_seen = root_.read(probe::proc_path(*pid, "maps"), 256).ok();
      out_.others_io = root_.read(probe::proc_path(*pid, "io"), 256).ok();
      return;
    }
  }

  void read_groups() {
    const auto chains = probe::own_cgroups(root_);
    if (!chains.ok() || chains->empty()) return;
    bool v1 = false, v2 = false;
    for (const auto& [name, controller] : {std::pair{"cpu", "cpu"}, std::pair{"memory", "memory"},
                                           std::pair{"io", "blkio"}, std::pair{"pids", "pids"}}) {
      const auto chain = chains->find(controller);
      const bool there = chain != chains->end() && can_read(chain->second, name);
      if (there) (chain->second.v2 ? v2 : v1) = true;
      (there ? out_.controllers : out_.missing_controllers).emplace_back(name);
    }
    out_.cgroup_version = v1 && v2 ? "hybrid" : v1 ? "v1" : "v2";
  }

  // v2 has one tree for all controllers, and each group says which of them it has.
  bool can_read(const probe::CgroupChain& chain, std::string_view controller) const {
    return std::any_of(chain.levels.begin(), chain.levels.end(), [&](const auto& level) {
      if (!chain.v2) return root_.exists(level.dir);
      return has(split(line(level.dir + "/cgroup.controllers"), ' '), controller);
    });
  }

  const fs::Root& root_;
  Access out_;
};

}  // namespace

Access read_access(const fs::Root& root) { return Reader(root).read(); }

}  // namespace flatout::advise
