#include "recorder/facts.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/stats.h"
#include "base/text.h"
#include "probe/mount_table.h"
#include "recorder/redact.h"

namespace flatout::recorder {
namespace {

constexpr size_t kMaxMounts = 64;

std::string first_line(const fs::Root& root, std::string_view path) {
  const auto text = root.read(path, 4096);
  if (!text.ok()) return "";
  return std::string(trim(std::string_view(*text).substr(0, text->find('\n'))));
}

void tell(model::Sink& sink, std::string_view key, std::string_view value) {
  if (!value.empty()) sink.fact(key, value);
}

// The value of "key : value" in /proc/cpuinfo.
std::string cpu_field(std::string_view text, std::string_view key) {
  std::string_view line;
  while (next_line(text, line)) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos) return std::string(trim(line.substr(colon + 1)));
  }
  return "";
}

void tell_limits(const fs::Root& root, int32_t pid, model::Sink& sink) {
  const auto text = root.read(fmt::format("proc/{}/limits", pid), 8192);
  if (!text.ok()) return;
  std::string_view rest = *text, line;
  next_line(rest, line);
  while (next_line(rest, line)) {
    // "Max open files            1024                 524288               files"
    if (line.size() < 46 || !line.starts_with("Max ")) continue;
    std::string name(trim(line.substr(4, 22)));
    for (char& c : name) c = c == ' ' ? '_' : c;
    std::string_view values = line.substr(26);
    const std::string_view soft = next_word(values);
    sink.fact("limit." + name, soft);
  }
}

// Real file systems and tmpfs, with their options: a changed option explains a changed speed.
void tell_mounts(const fs::Root& root, int32_t pid, model::Sink& sink) {
  const auto text = root.read(fmt::format("proc/{}/mounts", pid), 256 << 10);
  if (!text.ok()) return;
  std::string_view rest = *text, line;
  size_t count = 0;
  while (next_line(rest, line) && count < kMaxMounts) {
    const std::string_view device = next_word(line), point = next_word(line);
    const std::string_view type = next_word(line), options = next_word(line);
    const bool storage =
        device.starts_with("/dev/") || probe::place_of_fs(type) != probe::FsPlace::kUnknown;
    if (!storage || point.starts_with("/sys") || point.starts_with("/run/")) continue;
    // Layers of an overlay are long and say nothing about speed.
    std::string shown;
    for (const std::string_view option : split(options, ',')) {
      if (option.size() > 60) continue;
      if (!shown.empty()) shown += ',';
      shown += option;
    }
    sink.fact("mount." + std::string(point), redact_text(fmt::format("{} {}", type, shown)));
    ++count;
  }
}

// HEAD of the git repository that `folder` lies in, read from its files.
void tell_git(const fs::Root& root, std::string folder, model::Sink& sink) {
  for (int up = 0; up < 16 && !folder.empty(); ++up) {
    const std::string git = folder + "/.git";
    std::string head = first_line(root, git + "/HEAD");
    if (!head.empty()) {
      std::string branch;
      if (head.starts_with("ref: ")) {
        branch = head.substr(5);
        head = first_line(root, fmt::format("{}/{}", git, branch));
        if (branch.starts_with("refs/heads/")) branch.erase(0, 11);
      }
      tell(sink, "git.commit", head);
      tell(sink, "git.branch", branch);
      return;
    }
    const size_t slash = folder.rfind('/');
    if (slash == std::string::npos) return;
    folder.erase(slash);
  }
}

}  // namespace

void tell_machine(const fs::Root& root, int32_t job_pid, model::Sink& sink) {
  utsname names{};
  if (::uname(&names) == 0) {
    sink.fact("host.name", names.nodename);
    sink.fact("host.arch", names.machine);
    sink.fact("kernel.release", names.release);
    sink.fact("kernel.version", names.version);
  }
  tell(sink, "host.boot_id", first_line(root, "proc/sys/kernel/random/boot_id"));
  if (const auto text = root.read("etc/os-release", 8192); text.ok()) {
    std::string_view rest = *text, line;
    while (next_line(rest, line)) {
      if (!line.starts_with("PRETTY_NAME=")) continue;
      line.remove_prefix(12);
      if (line.size() >= 2 && line.front() == '"') line = line.substr(1, line.size() - 2);
      tell(sink, "host.os", line);
    }
  }
  if (const auto text = root.read("proc/cpuinfo", 16 << 10); text.ok()) {
    tell(sink, "cpu.model", cpu_field(*text, "model name"));
    tell(sink, "cpu.microcode", cpu_field(*text, "microcode"));
  }
  tell(sink, "cpu.online", first_line(root, "sys/devices/system/cpu/online"));
  const std::string freq = "sys/devices/system/cpu/cpu0/cpufreq/";
  tell(sink, "cpu.governor", first_line(root, freq + "scaling_governor"));
  tell(sink, "cpu.max_khz", first_line(root, freq + "scaling_max_freq"));
  tell(sink, "cpu.turbo_off", first_line(root, "sys/devices/system/cpu/intel_pstate/no_turbo"));
  tell(sink, "cpu.smt", first_line(root, "sys/devices/system/cpu/smt/control"));
  tell(sink, "kernel.thp", first_line(root, "sys/kernel/mm/transparent_hugepage/enabled"));
  tell(sink, "kernel.numa_balancing", first_line(root, "proc/sys/kernel/numa_balancing"));
  tell(sink, "kernel.swappiness", first_line(root, "proc/sys/vm/swappiness"));
  tell(sink, "kernel.autogroup", first_line(root, "proc/sys/kernel/sched_autogroup_enabled"));
  tell(sink, "kernel.mitigations",
       first_line(root, "proc/cmdline").find("mitigations=off") != std::string::npos ? "off" : "");
  tell(sink, "driver.nvidia", first_line(root, "proc/driver/nvidia/version"));
  tell_limits(root, job_pid, sink);
  tell_mounts(root, job_pid, sink);
}

void tell_job(const fs::Root& root, const JobFacts& job, model::Sink& sink) {
  std::string command;
  for (const std::string& word : job.command) {
    if (!command.empty()) command += ' ';
    command += word;
  }
  sink.fact("command", redact_command(command));
  tell(sink, "cwd", job.cwd);
  for (const auto& [name, value] : recordable_environment(job.environment)) {
    sink.fact("env." + name, value);
  }
  if (!job.cwd.empty()) tell_git(root, job.cwd, sink);
}

void tell_clocks(const model::Run& run, model::Sink& sink) {
  const auto tell_median = [&](const std::string& key, model::SignalId signal, int64_t only) {
    std::vector<double> values;
    for (const model::Series* s : run.all(signal)) {
      if (only >= 0 && run.entities[s->entity].key != only) continue;
      for (const model::Reading& r : s->readings) values.push_back(r.value);
    }
    if (!values.empty()) sink.fact(key, fmt::format("{:.0f}", median(values)));
  };
  using model::SignalId;
  tell_median("clock.cpu_hz", SignalId::kCpuFrequency, -1);
  for (const model::Entity& gpu : run.entities) {
    if (gpu.kind != model::EntityKind::kGpu) continue;
    const std::string name = fmt::format("clock.gpu{}_", gpu.key);
    tell_median(name + "sm_hz", SignalId::kGpuClockSm, gpu.key);
    tell_median(name + "sm_max_hz", SignalId::kGpuClockSmMax, gpu.key);
    tell_median(name + "mem_hz", SignalId::kGpuClockMem, gpu.key);
    tell_median(name + "power_limit_w", SignalId::kGpuPowerLimit, gpu.key);
  }
}

void tell_rank(const RankPlace& place, model::Sink& sink) {
  if (!place.is_rank()) return;
  const auto count = [&](std::string_view key, int32_t value, int32_t least) {
    if (value >= least) sink.fact(key, std::to_string(value));
  };
  count("rank", place.rank, 0);
  count("rank.world_size", place.world, 1);
  count("rank.local", place.local, 0);
  count("rank.node", place.node, 0);
  tell(sink, "rank.launcher", place.launcher);
  tell(sink, "launch.id", redact_text(place.job));
}

}  // namespace flatout::recorder
