#include "advise/machine.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include "advise/first_line.h"
#include "base/page_size.h"
#include "base/text.h"
#include "probe/cgroup_files.h"
#include "probe/cgroup_memory.h"
#include "probe/kernel_files.h"
#include "probe/leftover.h"
#include "probe/mount_table.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::advise {
namespace {

constexpr auto kWatch = std::chrono::milliseconds(200);
constexpr Nanos kContextTime = std::chrono::seconds(20);
constexpr size_t kMaxTasks = 40;
constexpr size_t kMaxShmFiles = 20'000;
constexpr uint64_t kMaxDataFiles = 200'000;
constexpr size_t kMaxDisks = 64;

class Reader {
 public:
  Reader(const fs::Root& root, const MachineOptions& options) : root_(root), options_(options) {}

  Machine read() {
    out_.root = ::geteuid() == 0;
    out_.proc_missing = !root_.exists("proc/self/status") && !root_.exists("proc/meminfo");
    read_cores();
    read_memory();
    read_groups();
    read_limits();
    read_gpus();
    read_tasks();
    read_shm();
    read_disks();
    for (const std::string& path : options_.data) read_data(path);
    if (root_.is_real()) read_work();
    const auto cards = root_.list("sys/class/infiniband");
    out_.infiniband = cards.ok() && !cards->empty();
    read_pythons();
    return std::move(out_);
  }

 private:
  std::string line(std::string_view path) const { return first_line(root_, path); }
  std::optional<uint64_t> number(std::string_view path) const {
    return parse_number<uint64_t>(line(path));
  }

  void read_cores() {
    const std::string online = line("sys/devices/system/cpu/online");
    out_.cores = probe::count_cpu_list(online).value_or(0);
    const auto status = root_.read("proc/self/status", 8192);
    std::string_view rest = status.ok() ? std::string_view(*status) : "", row;
    while (next_line(rest, row)) {
      if (row.starts_with("Cpus_allowed_list:")) out_.allowed_cpus = trim(row.substr(18));
      if (row.starts_with("Mems_allowed_list:")) out_.allowed_memory_nodes = trim(row.substr(18));
    }
    out_.allowed_cores = probe::count_cpu_list(out_.allowed_cpus).value_or(0);
    out_.numa_nodes = line("sys/devices/system/node/online");
    const auto cpus = probe::parse_cpu_list(online);
    for (const int32_t cpu : cpus.value_or(std::vector<int32_t>{})) {
      out_.governor =
          line("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpufreq/scaling_governor");
      out_.frequency_driver =
          line("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpufreq/scaling_driver");
      if (!out_.governor.empty()) break;
    }
    read_nodes();
    const auto info = root_.read("proc/cpuinfo", 64 << 10);
    rest = info.ok() ? std::string_view(*info) : "";
    while (next_line(rest, row)) {
      if (!row.starts_with("flags") && !row.starts_with("Features")) continue;
      std::string_view flags = row.substr(std::min(row.size(), row.find(':') + 1));
      for (std::string_view word = next_word(flags); !word.empty(); word = next_word(flags)) {
        out_.cpu_flags.emplace_back(word);
      }
      break;
    }
  }

  void read_nodes() {
    const auto nodes = probe::parse_cpu_list(out_.allowed_memory_nodes);
    const auto allowed = probe::parse_cpu_list(out_.allowed_cpus);
    if (!nodes || !allowed || nodes->empty()) return;
    bool near = false, known = false;
    for (const int32_t node : *nodes) {
      const std::string text =
          line("sys/devices/system/node/node" + std::to_string(node) + "/cpulist");
      const auto cores = probe::parse_cpu_list(text);
      known |= !text.empty();
      for (const int32_t core : cores.value_or(std::vector<int32_t>{})) {
        near |= std::find(allowed->begin(), allowed->end(), core) != allowed->end();
      }
    }
    out_.memory_near_cores = near || !known;
  }

  void read_memory() {
    const auto text = root_.read("proc/meminfo");
    if (text.ok()) {
      out_.memory_bytes = probe::find_field(*text, "MemTotal");
      out_.available_bytes = probe::find_field(*text, "MemAvailable");
      out_.swap_bytes = probe::find_field(*text, "SwapTotal");
      out_.free_swap_bytes = probe::find_field(*text, "SwapFree");
      out_.free_huge_pages = probe::find_field(*text, "HugePages_Free");
      out_.huge_page_bytes = probe::find_field(*text, "Hugepagesize");
    }
    const auto vmstat = root_.read("proc/vmstat");
    if (vmstat.ok()) out_.oom_kills = probe::find_pair(*vmstat, "oom_kill");
    out_.thp = line("sys/kernel/mm/transparent_hugepage/enabled");
  }

  void read_groups() {
    const auto chains = probe::own_cgroups(root_);
    if (!chains.ok()) return;
    const auto chain_of = [&](const char* controller) -> const probe::CgroupChain* {
      const auto it = chains->find(controller);
      return it == chains->end() ? nullptr : &it->second;
    };
    if (const auto* cpu = chain_of("cpu")) {
      for (const probe::CgroupDir& level : cpu->levels) {
        const auto quota = cpu->v2 ? probe::parse_cpu_max(line(level.dir + "/cpu.max"))
                                   : probe::cpu_quota(line(level.dir + "/cpu.cfs_quota_us"),
                                                      line(level.dir + "/cpu.cfs_period_us"));
        if (quota && (!out_.cpu_quota || *quota < *out_.cpu_quota)) out_.cpu_quota = quota;
      }
    }
    if (const auto* memory = chain_of("memory")) read_group_memory(*memory);
    if (const auto* pids = chain_of("pids")) read_group_pids(*pids);
  }

  void read_group_memory(const probe::CgroupChain& chain) {
    const auto group = probe::tightest_memory(root_, chain);
    if (!group || !group->limit) return;
    out_.memory_group = group->path;
    out_.memory_limit = group->limit;
    out_.memory_in_group = group->used;
    out_.cache_in_group = group->cache;
    const auto events =
        root_.read(group->dir + (chain.v2 ? "/memory.events" : "/memory.oom_control"));
    if (events.ok()) out_.group_oom_kills = probe::find_pair(*events, "oom_kill");
  }

  void read_group_pids(const probe::CgroupChain& chain) {
    std::optional<uint64_t> least_room;
    for (const probe::CgroupDir& level : chain.levels) {
      const auto limit = probe::parse_limit(line(level.dir + "/pids.max"));
      if (!limit) continue;
      const auto used = number(level.dir + "/pids.current");
      const uint64_t room = *limit - std::min(*limit, used.value_or(0));
      if (least_room && room >= *least_room) continue;
      least_room = room;
      out_.pids_limit = limit;
      out_.pids_in_group = used;
    }
  }

  void read_limits() {
    const auto text = root_.read("proc/self/limits", 16 << 10);
    if (!text.ok()) return;
    for (const auto& [name, limit] : {std::pair{"Max open files", &out_.open_files},
                                      std::pair{"Max processes", &out_.processes},
                                      std::pair{"Max locked memory", &out_.locked_memory},
                                      std::pair{"Max address space", &out_.address_space},
                                      std::pair{"Max cpu time", &out_.cpu_seconds},
                                      std::pair{"Max file size", &out_.file_size}}) {
      std::string_view rest = *text, row;
      while (next_line(rest, row)) {
        if (!row.starts_with(name)) continue;
        row.remove_prefix(std::string_view(name).size());
        limit->soft = parse_number<uint64_t>(next_word(row));
        limit->hard = parse_number<uint64_t>(next_word(row));
      }
    }
  }

  void read_gpus() {
    // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue ..."
    std::string module = line("proc/driver/nvidia/version");
    std::string_view words = module;
    for (std::string_view word = next_word(words); !word.empty(); word = next_word(words)) {
      if (word[0] >= '0' && word[0] <= '9' && word.find('.') != std::string_view::npos) {
        out_.kernel_module_version = word;
        break;
      }
    }
    const auto nvml = probe::Nvml::open(options_.nvml);
    if (!nvml.ok()) {
      out_.gpu_error = nvml.error().message;
      return;
    }
    out_.driver_version = (*nvml)->driver_version();
    out_.cuda_version = (*nvml)->cuda_version();
    for (uint32_t i = 0; i < (*nvml)->count(); ++i) {
      out_.gpus.push_back({(*nvml)->facts(i), (*nvml)->read(i, false)});
    }
    if (!options_.try_contexts) return;
    auto trials = try_contexts(options_.cuda, kContextTime);
    if (trials.ok()) {
      out_.contexts = std::move(trials).value();
    } else {
      out_.context_failure = trials.error();
    }
  }

  std::map<int32_t, uint64_t> cpu_ticks() const {
    std::map<int32_t, uint64_t> out;
    const auto names = root_.list("proc");
    std::string text;
    for (const std::string& name : names.ok() ? *names : std::vector<std::string>{}) {
      const auto pid = parse_number<int32_t>(name);
      if (!pid || !root_.read_into(probe::proc_path(*pid, "stat"), text, 4096).ok()) continue;
      if (const auto stat = probe::parse_pid_stat(text)) {
        out[*pid] = stat->user_ticks + stat->system_ticks;
      }
    }
    return out;
  }

  void read_tasks() {
    const std::map<int32_t, uint64_t> before = cpu_ticks();
    if (options_.watch_cpu) std::this_thread::sleep_for(kWatch);
    const std::string up = line("proc/uptime");  // and how long the cores were idle
    const double uptime = parse_number<double>(up.substr(0, up.find(' '))).value_or(0);
    const auto own = uid_of("self");
    std::map<int32_t, uint64_t> zombies_of;
    const auto self = static_cast<int32_t>(::getpid());
    std::string text;
    for (const auto& [pid, ticks] : before) {
      if (!root_.read_into(probe::proc_path(pid, "stat"), text, 4096).ok()) continue;
      const auto stat = probe::parse_pid_stat(text);
      if (!stat || stat->kernel_thread()) continue;
      if (stat->zombie()) {
        ++out_.zombies;
        ++zombies_of[stat->ppid];
        continue;
      }
      if (own && uid_of(std::to_string(pid)) == own) {
        out_.own_threads += static_cast<uint64_t>(std::max<int64_t>(stat->threads, 0));
      }
      if (root_.is_real() && pid == self) continue;
      add_task(*stat, stat->user_ticks + stat->system_ticks - ticks, uptime);
    }
    for (const auto& [parent, count] : zombies_of) {
      if (count <= out_.zombies_of_parent) continue;
      out_.zombies_of_parent = count;
      out_.zombies_parent = holder_name(root_, parent);
    }
    std::stable_sort(out_.tasks.begin(), out_.tasks.end(),
                     [](const Task& a, const Task& b) { return a.rss_bytes > b.rss_bytes; });
    if (out_.tasks.size() > kMaxTasks) out_.tasks.resize(kMaxTasks);
  }

  std::optional<uint32_t> uid_of(const std::string& process) const {
    const auto status = root_.read("proc/" + process + "/status", 8192);
    return status.ok() ? probe::parse_pid_status(*status).uid : std::nullopt;
  }

  void add_task(const probe::PidStat& stat, uint64_t ticks, double uptime) {
    Task task;
    bool on_gpu = false;
    for (const Gpu& gpu : out_.gpus) {
      for (const probe::GpuProcess& p : gpu.reading.processes) {
        if (p.pid != stat.pid) continue;
        on_gpu = true;
        if (p.memory_bytes) task.gpu_bytes = task.gpu_bytes.value_or(0) + *p.memory_bytes;
      }
    }
    task.pid = stat.pid;
    task.parent = stat.ppid;
    task.name = stat.comm;
    task.rss_bytes = static_cast<uint64_t>(std::max<int64_t>(stat.rss_pages, 0)) * page_bytes();
    task.age_s = uptime - static_cast<double>(stat.start_ticks) * probe::tick_ns() * 1e-9;
    probe::LeftoverQuestion question;
    question.stat = stat;
    question.name = task.name;
    question.cpu_share = options_.watch_cpu
                             ? static_cast<double>(ticks) * probe::tick_ns() /
                                   static_cast<double>(std::chrono::nanoseconds(kWatch).count())
                             : 0;
    const double total = static_cast<double>(out_.memory_bytes.value_or(0));
    question.memory_share = total > 0 ? static_cast<double>(task.rss_bytes) / total : 0;
    const probe::Leftover left = probe::inspect_leftover(root_, question);
    task.orphan = left.orphan && (left.holds_gpu || on_gpu || left.shm_bytes >= probe::kLeastShm ||
                                  static_cast<double>(task.rss_bytes) >= probe::kLeastLeftover);
    task.holds_gpu = left.holds_gpu || on_gpu;
    task.shm_bytes = left.shm_bytes;
    if (!task.orphan && !task.holds_gpu && question.memory_share < 0.02) return;
    const auto cmdline = root_.read(probe::proc_path(stat.pid, "cmdline"), 4096);
    task.command = cmdline.ok() ? probe::program_and_script(*cmdline) : "";
    if (task.command.empty()) task.command = task.name;
    out_.tasks.push_back(std::move(task));
  }

  std::optional<Space> space_of(const std::string& path) const {
    struct statvfs fs {};
    if (::statvfs(path.c_str(), &fs) != 0 || fs.f_blocks == 0) return std::nullopt;
    return Space{fs.f_blocks * fs.f_frsize, fs.f_bavail * fs.f_frsize, fs.f_files, fs.f_favail};
  }

  void read_work() {
    std::error_code error;
    if (std::filesystem::current_path(error).empty() &&
        error == std::errc::no_such_file_or_directory) {
      out_.work_folder = WorkFolder::kGone;
      return;
    }
    out_.work = space_of(".");
    if (may_write(".")) return;
    out_.work_folder = errno == EROFS ? WorkFolder::kReadOnly : WorkFolder::kDenied;
  }

  // Sets errno where not.
  static bool may_write(const char* folder) {
    return ::faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) == 0;
  }

  static ShmFolder shm_folder() {
    struct stat shm {
    }, above{};
    if (::stat("/dev/shm", &shm) != 0 || !S_ISDIR(shm.st_mode)) return ShmFolder::kMissing;
    if (!may_write("/dev/shm")) return ShmFolder::kDenied;
    const bool mounted = ::stat("/dev", &above) != 0 || above.st_dev != shm.st_dev;
    return mounted ? ShmFolder::kThere : ShmFolder::kNotMounted;
  }

  // Shared memory of PyTorch, NCCL and Python's multiprocessing that nobody will remove: the
  // process that its name tells is gone. Names without a number are nobody's business.
  void read_shm() {
    if (root_.is_real()) out_.shm_folder = shm_folder();
    if (!root_.exists("dev/shm")) return;
    if (root_.is_real() && out_.shm_folder == ShmFolder::kThere) out_.shm = space_of("/dev/shm");
    const auto names = root_.list("dev/shm");
    if (!names.ok()) return;
    for (size_t i = 0; i < names->size() && i < kMaxShmFiles; ++i) {
      const std::string_view name = (*names)[i];
      if (!name.starts_with("torch_")) continue;
      const auto pid = parse_number<int32_t>(name.substr(6, name.find('_', 6) - 6));
      struct stat st {};
      if (!pid || root_.exists(probe::proc_path(*pid, "stat")) ||
          ::lstat(root_.full("dev/shm/" + (*names)[i]).c_str(), &st) != 0 || !S_ISREG(st.st_mode)) {
        continue;
      }
      ++out_.shm_dead_files;
      out_.shm_dead_bytes += static_cast<uint64_t>(st.st_blocks) * 512;
    }
  }

  void read_disks() {
    const auto names = root_.list("sys/block");
    for (const std::string& name : names.ok() ? *names : std::vector<std::string>{}) {
      if (name.starts_with("loop") || name.starts_with("ram") || name.starts_with("zram") ||
          name.starts_with("sr"))
        continue;
      if (out_.disks.size() >= kMaxDisks) break;
      const std::string queue = "sys/block/" + name + "/queue";
      Disk disk;
      disk.name = name;
      const std::string schedulers = line(queue + "/scheduler");  // "none [mq-deadline] bfq"
      const size_t open = schedulers.find('['), close = schedulers.find(']');
      disk.scheduler = open != std::string::npos && close != std::string::npos && open < close
                           ? schedulers.substr(open + 1, close - open - 1)
                           : schedulers;
      disk.emulated = name.starts_with("vd") || name.starts_with("xvd");
      disk.rotational = !disk.emulated && line(queue + "/rotational") == "1";
      if (const auto kb = number(queue + "/read_ahead_kb")) disk.read_ahead_bytes = *kb * 1024;
      out_.disks.push_back(std::move(disk));
    }
  }

  void read_pythons() {
    for (const Python& python : options_.pythons) {
      if (out_.python_minor == 0) out_.python_minor = python.minor;
      if (out_.frameworks.empty()) {
        out_.frameworks = advise::read_frameworks(root_, python, !out_.gpus.empty());
      }
    }
    if (!options_.access) return;
    out_.access = read_access(root_);
    out_.cupti = find_cupti(root_, options_.pythons);
  }

  void read_data(const std::string& path) {
    DataPlace place;
    place.path = "/" + path;
    std::error_code error;
    const std::filesystem::path full = std::filesystem::canonical(root_.full(path), error);
    if (error) return;
    const auto text = root_.read("proc/self/mountinfo", 4 << 20);
    std::vector<probe::Mount> mounts;
    if (text.ok()) mounts = probe::parse_mountinfo(*text);
    const std::string inside = root_.is_real() ? full.string() : place.path;
    if (const probe::Mount* mount = probe::mount_of(mounts, inside)) {
      place.fs_type = mount->type;
      place.source = mount->source;
      place.place = probe::place_of(*mount);
      place.disk = probe::disk_of(root_, *mount);
    }
    measure(full, place);
    out_.data.push_back(std::move(place));
  }

  static void measure(const std::filesystem::path& path, DataPlace& place) {
    namespace stdfs = std::filesystem;
    std::error_code error;
    place.bytes = 0;
    if (stdfs::is_regular_file(path, error)) {
      place.bytes = stdfs::file_size(path, error);
      place.files = 1;
      return;
    }
    stdfs::recursive_directory_iterator it(path, stdfs::directory_options::skip_permission_denied,
                                           error);
    for (; !error && it != stdfs::recursive_directory_iterator(); it.increment(error)) {
      std::error_code ignored;
      if (!it->is_regular_file(ignored)) continue;
      if (++place.files > kMaxDataFiles) {
        place.sampled = true;
        return;
      }
      const uintmax_t size = it->file_size(ignored);
      if (!ignored) *place.bytes += size;
    }
  }

  const fs::Root& root_;
  const MachineOptions& options_;
  Machine out_;
};

}  // namespace

Machine read_machine(const fs::Root& root, const MachineOptions& options) {
  return Reader(root, options).read();
}

std::string holder_name(const fs::Root& root, int32_t pid) {
  const auto cmdline = root.read(probe::proc_path(pid, "cmdline"), 4096);
  std::string name = cmdline.ok() ? probe::program_and_script(*cmdline) : "";
  if (name.empty()) {
    const auto stat = root.read(probe::proc_path(pid, "stat"), 4096);
    const auto parsed = stat.ok() ? probe::parse_pid_stat(*stat) : std::nullopt;
    if (parsed) name = parsed->comm;
  }
  return "pid " + std::to_string(pid) + (name.empty() ? "" : " " + name);
}

}  // namespace flatout::advise
