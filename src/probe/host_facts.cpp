#include "probe/host_facts.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "probe/cgroup_files.h"
#include "probe/job_tree.h"
#include "probe/mount_table.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::probe {
namespace {

constexpr size_t kMaxDisks = 16;
constexpr size_t kMaxShmFiles = 20000;

class Teller {
 public:
  Teller(const fs::Root& root, int32_t pid, model::Sink& sink)
      : root_(root), pid_(pid), sink_(sink) {}

  void tell_all() {
    tell_memory();
    tell_scheduling();
    tell_groups();
    tell_container();
    tell_storage();
    tell_shm();
  }

 private:
  void tell(std::string_view key, std::string_view value) {
    if (!value.empty()) sink_.fact(key, value);
  }
  std::string line(std::string_view path) const {
    const auto text = root_.read(path, 4096);
    if (!text.ok()) return "";
    return std::string(trim(std::string_view(*text).substr(0, text->find('\n'))));
  }
  void tell_line(std::string_view key, std::string_view path) { tell(key, line(path)); }

  void tell_memory() {
    const auto meminfo = root_.read("proc/meminfo");
    if (meminfo.ok()) {
      if (const auto total = find_field(*meminfo, "MemTotal")) {
        tell("memory.total_bytes", std::to_string(*total));
      }
      if (const auto swap = find_field(*meminfo, "SwapTotal")) {
        tell("swap.total_bytes", std::to_string(*swap));
      }
      if (const auto huge = find_field(*meminfo, "HugePages_Total")) {
        tell("memory.hugepages", std::to_string(*huge));
      }
    }
    tell_line("kernel.thp_defrag", "sys/kernel/mm/transparent_hugepage/defrag");
    tell_line("kernel.thp_shmem", "sys/kernel/mm/transparent_hugepage/shmem_enabled");
    tell_line("kernel.overcommit_memory", "proc/sys/vm/overcommit_memory");
    tell_line("kernel.dirty_ratio", "proc/sys/vm/dirty_ratio");
    tell_line("kernel.dirty_background_ratio", "proc/sys/vm/dirty_background_ratio");
    tell_line("kernel.min_free_kbytes", "proc/sys/vm/min_free_kbytes");
    tell_line("kernel.zone_reclaim_mode", "proc/sys/vm/zone_reclaim_mode");
    tell_line("kernel.max_map_count", "proc/sys/vm/max_map_count");
    tell_line("kernel.pid_max", "proc/sys/kernel/pid_max");
    tell_line("kernel.threads_max", "proc/sys/kernel/threads-max");
    tell_line("kernel.file_max", "proc/sys/fs/file-max");
    tell_line("kernel.task_delayacct", "proc/sys/kernel/task_delayacct");
    tell_line("kernel.ptrace_scope", "proc/sys/kernel/yama/ptrace_scope");
    tell_line("numa.nodes", "sys/devices/system/node/online");
  }

  void tell_scheduling() {
    const auto stat = root_.read(proc_path(pid_, "stat"), 4096);
    if (stat.ok()) {
      if (const auto parsed = parse_pid_stat(*stat)) tell("job.nice", std::to_string(parsed->nice));
    }
    tell_line("job.autogroup", proc_path(pid_, "autogroup"));
    tell_line("job.oom_score_adj", proc_path(pid_, "oom_score_adj"));
    const auto status = root_.read(proc_path(pid_, "status"), 8192);
    if (!status.ok()) return;
    std::string_view rest = *status, row;
    while (next_line(rest, row)) {
      for (const auto& [prefix, key] :
           {std::pair{"Cpus_allowed_list:", "job.cpus_allowed"},
            std::pair{"Mems_allowed_list:", "job.mems_allowed"},
            std::pair{"Seccomp:", "job.seccomp"}, std::pair{"NoNewPrivs:", "job.no_new_privs"}}) {
        const std::string_view name = prefix;
        if (row.starts_with(name)) tell(key, trim(row.substr(name.size())));
      }
    }
  }

  void tell_groups() {
    const auto chains = find_cgroups(root_, pid_);
    if (!chains.ok() || chains->empty()) return;
    bool v1 = false, v2 = false;
    for (const auto& [controller, chain] : *chains) (chain.v2 ? v2 : v1) = true;
    tell("cgroup.version", v1 && v2 ? "hybrid" : v1 ? "v1" : "v2");
    const auto own = [&](const char* controller) -> const CgroupChain* {
      const auto it = chains->find(controller);
      return it == chains->end() || it->second.levels.empty() ? nullptr : &it->second;
    };
    if (const CgroupChain* cpu = own("cpu")) {
      tell("cgroup.cpu_path", cpu->levels[0].path);
      double cores = std::numeric_limits<double>::infinity();
      for (const CgroupDir& level : cpu->levels) {
        const auto quota = cpu->v2 ? parse_cpu_max(line(level.dir + "/cpu.max"))
                                   : cpu_quota(line(level.dir + "/cpu.cfs_quota_us"),
                                               line(level.dir + "/cpu.cfs_period_us"));
        if (quota) cores = std::min(cores, *quota);
      }
      if (cores < std::numeric_limits<double>::infinity()) {
        tell("cgroup.cpu_limit_cores", format_number(cores));
      }
      const std::string weight = cpu->v2 ? "/cpu.weight" : "/cpu.shares";
      tell_line("cgroup.cpu_weight", cpu->levels[0].dir + weight);
    }
    if (const CgroupChain* memory = own("memory")) {
      tell("cgroup.memory_path", memory->levels[0].path);
      uint64_t limit = UINT64_MAX;
      for (const CgroupDir& level : memory->levels) {
        const char* file = memory->v2 ? "/memory.max" : "/memory.limit_in_bytes";
        if (const auto max = parse_limit(line(level.dir + file))) limit = std::min(limit, *max);
      }
      if (limit != UINT64_MAX) tell("cgroup.memory_limit_bytes", std::to_string(limit));
    }
  }

  void tell_container() {
    const auto groups = root_.read(proc_path(pid_, "cgroup"), 64 << 10);
    const std::string paths = groups.ok() ? *groups : "";
    const auto in_path = [&](std::string_view word) {
      return paths.find(word) != std::string::npos;
    };
    const std::string job_root = proc_path(pid_, "root");
    const auto has = [&](std::string_view file) {
      return root_.exists(job_root + "/" + std::string(file)) || root_.exists(file);
    };
    const char* kind = in_path("kubepods") || has("var/run/secrets/kubernetes.io") ? "kubernetes"
                       : in_path("/slurm")                                         ? "slurm"
                       : in_path("libpod") || has("run/.containerenv")             ? "podman"
                       : in_path("docker") || has(".dockerenv")                    ? "docker"
                       : has(".singularity.d")                                     ? "apptainer"
                       : in_path("/lxc")                                           ? "lxc"
                                                                                   : "none";
    tell("container.kind", kind);
    const auto own = root_.read_link("proc/self/ns/pid");
    const auto job = root_.read_link(proc_path(pid_, "ns/pid"));
    if (own.ok() && job.ok()) tell("container.same_as_flatout", *own == *job ? "yes" : "no");
  }

  void tell_storage() {
    const auto text = root_.read(proc_path(pid_, "mountinfo"), 4 << 20);
    std::vector<Mount> mounts;
    if (text.ok()) mounts = parse_mountinfo(*text);
    const auto cwd = root_.read_link(proc_path(pid_, "cwd"));
    if (cwd.ok()) tell_mount("cwd", mount_of(mounts, *cwd));
    tell_mount("shm", mount_of(mounts, "/dev/shm"));
    tell_mount("tmp", mount_of(mounts, "/tmp"));
    const auto disks = root_.list("sys/block");
    size_t count = 0;
    for (const std::string& disk : disks.ok() ? *disks : std::vector<std::string>{}) {
      if (disk.starts_with("loop") || disk.starts_with("ram") || disk.starts_with("sr")) continue;
      if (++count > kMaxDisks) break;
      const std::string dir = "sys/block/" + disk, key = "disk." + disk;
      tell_line(key + ".scheduler", dir + "/queue/scheduler");
      tell_line(key + ".read_ahead_kb", dir + "/queue/read_ahead_kb");
      tell_line(key + ".rotational", dir + "/queue/rotational");
      tell_line(key + ".nr_requests", dir + "/queue/nr_requests");
      tell_line(key + ".write_cache", dir + "/queue/write_cache");
      tell_line(key + ".model", dir + "/device/model");
      if (const auto sectors = parse_number<uint64_t>(line(dir + "/size"))) {
        tell(key + ".bytes", std::to_string(*sectors * 512));
      }
    }
  }

  void tell_mount(const std::string& key, const Mount* mount) {
    if (mount == nullptr) return;
    tell(key + ".mount", mount->point);
    tell(key + ".fs", mount->type);
    tell(key + ".options", mount->options + "," + mount->super_options);
    tell(key + ".local", is_local_fs(mount->type) ? "yes" : "no");
    const std::string disk = disk_of(root_, *mount);
    if (!disk.empty()) tell(key + ".disk", disk);
  }

  // PyTorch names its shared memory after the process that made it: of those whose process is
  // gone, nobody will remove the file.
  void tell_shm() {
    const std::string dir = "dev/shm";
    const auto names = root_.list(dir);
    if (!names.ok()) return;
    uint64_t bytes = 0, dead_bytes = 0;
    size_t files = 0;
    for (const std::string& name : *names) {
      if (++files > kMaxShmFiles) break;
      struct stat st {};
      if (::lstat(root_.full(fmt::format("{}/{}", dir, name)).c_str(), &st) != 0 ||
          !S_ISREG(st.st_mode))
        continue;
      const uint64_t size = static_cast<uint64_t>(st.st_blocks) * 512;
      bytes += size;
      if (name.starts_with("torch_")) {
        const std::string_view rest = std::string_view(name).substr(6);
        const auto pid = parse_number<int32_t>(rest.substr(0, rest.find('_')));
        if (pid && !root_.exists(proc_path(*pid, "stat"))) dead_bytes += size;
      }
    }
    tell("shm.files", std::to_string(files));
    tell("shm.bytes", std::to_string(bytes));
    tell("shm.bytes_of_dead", std::to_string(dead_bytes));
  }

  const fs::Root& root_;
  int32_t pid_;
  model::Sink& sink_;
};

class HostFactsProbe : public Probe {
 public:
  explicit HostFactsProbe(const Scope& scope) : root_(scope.root), job_(scope.job) {}
  const char* name() const override { return "host_facts"; }
  Nanos period() const override { return std::chrono::hours(24 * 365); }
  void read(TimePoint, model::Sink& sink) override {
    if (told_ || job_ == nullptr) return;
    told_ = true;
    tell_host_facts(root_, job_->main_pid(), sink);
  }

 private:
  fs::Root root_;
  const JobTree* job_;
  bool told_ = false;
};

}  // namespace

bool accounts_block_io(const fs::Root& root) {
  const auto accounting = root.read("proc/sys/kernel/task_delayacct", 256);
  if (accounting.ok()) return trim(*accounting) == "1";
  const auto release = root.read("proc/sys/kernel/osrelease", 256);
  if (!release.ok()) return false;
  const std::string_view version = *release;
  const size_t dot = version.find('.');
  const int major = parse_number<int>(version.substr(0, dot)).value_or(0);
  const std::string_view rest = version.substr(std::min(version.size(), dot + 1));
  const int minor =
      parse_number<int>(rest.substr(0, rest.find_first_not_of("0123456789"))).value_or(0);
  return major > 0 && (major < 5 || (major == 5 && minor < 14));
}

void tell_host_facts(const fs::Root& root, int32_t job_pid, model::Sink& sink) {
  Teller(root, job_pid, sink).tell_all();
}

std::unique_ptr<Probe> make_host_facts_probe(const Scope& scope) {
  return std::make_unique<HostFactsProbe>(scope);
}

}  // namespace flatout::probe
