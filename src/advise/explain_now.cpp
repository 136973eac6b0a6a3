#include "advise/explain_now.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/size_text.h"

namespace flatout::advise {
namespace {

constexpr size_t kHolders = 5;

class Now {
 public:
  Now(const Machine& machine, model::Explanation& out) : machine_(machine), out_(out) {}

  void look(Look what) {
    switch (what) {
      case Look::kNothing:
        break;
      case Look::kGpuMemory:
        look_at_gpus();
        break;
      case Look::kDriver:
        look_at_driver();
        break;
      case Look::kHostMemory:
        look_at_memory();
        break;
      case Look::kShm:
        look_at_shm();
        break;
      case Look::kOpenFiles:
        now_limit("open files a process", machine_.open_files);
        break;
      case Look::kProcesses:
        look_at_processes();
        break;
      case Look::kLockedMemory:
        now_limit("bytes of locked memory", machine_.locked_memory);
        break;
      case Look::kCpu:
        look_at_cpu();
        break;
    }
  }

 private:
  void now(std::string text) { out_.now.push_back(std::move(text)); }

  void look_at_gpus() {
    if (machine_.gpus.empty()) {
      now(fmt::format("No GPU can be seen here now ({}), so who holds its memory cannot be said.",
                      machine_.gpu_error.empty() ? "none is there" : machine_.gpu_error));
      return;
    }
    bool known = false, much_held = false, all_free = true;
    const auto look = [&](const std::string& what, const std::optional<uint64_t>& used,
                          const std::optional<uint64_t>& total) {
      if (!used || !total || *used > *total) return;
      const double taken = static_cast<double>(*used) / std::max(1.0, static_cast<double>(*total));
      known = true;
      much_held |= taken >= 0.5;
      all_free &= taken < 0.1;
      now(fmt::format("{} now has {} of {} free.", what, size_text(*total - *used),
                      size_text(*total)));
    };
    for (const Gpu& gpu : machine_.gpus) {
      const auto& reading = gpu.reading;
      const std::string name = fmt::format("GPU {}", reading.index);
      // A job has one part of a divided GPU (MIG), whose memory is the one that it can run out of.
      for (const probe::MigInstance& part : reading.instances) {
        look(fmt::format("{}'s part {}.{} ({})", name, part.gpu_instance, part.compute_instance,
                         part.profile),
             part.mem_used_bytes, part.mem_total_bytes);
      }
      if (reading.instances.empty()) look(name, reading.mem_used_bytes, reading.mem_total_bytes);
      for (const probe::GpuProcess& p : reading.processes) {
        out_.holders.push_back(
            {fmt::format("{} on GPU {}", task_name(p.pid), reading.index), p.memory_bytes});
      }
    }
    if (out_.finding != "gpu.memory_taken") return;
    if (much_held && !out_.holders.empty()) out_.sure = std::max(out_.sure, 0.85);
    if (known && all_free) {
      now("The memory is free now: who held it then is gone, or it was the job itself.");
      out_.sure = std::min(out_.sure, 0.6);
    }
  }

  std::string task_name(int32_t pid) const {
    for (const Task& task : machine_.tasks) {
      if (task.pid == pid) return fmt::format("pid {} {}", pid, task.command);
    }
    return fmt::format("pid {} (of another container or user)", pid);
  }

  void look_at_driver() {
    if (!machine_.driver_version.empty()) {
      now(fmt::format("The driver here is {}, which supports CUDA up to {}.",
                      machine_.driver_version, machine_.cuda_version));
    } else if (!machine_.gpu_error.empty()) {
      now(fmt::format("Here now: {}.", machine_.gpu_error));
    }
    if (machine_.driver_version.empty() && !machine_.kernel_module_version.empty()) {
      now(fmt::format("The kernel module loaded is {}.", machine_.kernel_module_version));
    }
  }

  void look_at_memory() {
    if (machine_.memory_limit) {
      now(fmt::format("The control group here may use {}, and uses {}.",
                      size_text(*machine_.memory_limit),
                      size_text(machine_.memory_in_group.value_or(0))));
    }
    if (machine_.memory_bytes && machine_.available_bytes) {
      now(fmt::format("{} of this machine's {} are available now.",
                      size_text(*machine_.available_bytes), size_text(*machine_.memory_bytes)));
    }
    const uint64_t kills =
        std::max(machine_.group_oom_kills.value_or(0), machine_.oom_kills.value_or(0));
    if (kills > 0) {
      now(fmt::format("The kernel has killed {} process{} for memory here since it started.", kills,
                      kills == 1 ? "" : "es"));
      // Of whatever it was, some time ago.
      if (out_.finding == "mem.killed") out_.sure = std::max(out_.sure, 0.7);
    }
    for (const Task& task : machine_.tasks) {
      if (out_.holders.size() >= kHolders) break;
      out_.holders.push_back({fmt::format("pid {} {}", task.pid, task.command), task.rss_bytes});
    }
  }

  void look_at_shm() {
    if (machine_.shm) {
      now(fmt::format("/dev/shm here has {}, {} of it free.", size_text(machine_.shm->total_bytes),
                      size_text(machine_.shm->free_bytes)));
    }
    if (machine_.shm_dead_bytes > 0) {
      out_.holders.push_back(
          {fmt::format("{} files in /dev/shm of processes that are gone", machine_.shm_dead_files),
           machine_.shm_dead_bytes});
    }
    for (const Task& task : machine_.tasks) {
      if (task.shm_bytes < (64u << 20) || out_.holders.size() >= kHolders) continue;
      out_.holders.push_back({fmt::format("pid {} {}", task.pid, task.command), task.shm_bytes});
    }
  }

  void now_limit(std::string_view what, const Limit& limit) {
    if (!limit.soft && !limit.hard) return;
    const auto text = [](const std::optional<uint64_t>& value) {
      return value ? std::to_string(*value) : std::string("unlimited");
    };
    now(fmt::format("Allowed here: {} {}; up to {} on request.", text(limit.soft), what,
                    text(limit.hard)));
  }

  void look_at_processes() {
    if (machine_.pids_limit) {
      now(fmt::format("The control group here may have {} processes and threads, and has {}.",
                      *machine_.pids_limit, machine_.pids_in_group.value_or(0)));
    }
    now_limit("processes and threads of this user", machine_.processes);
    if (machine_.zombies > 0) {
      now(fmt::format("{} zombies are here, {} of them of {}.", machine_.zombies,
                      machine_.zombies_of_parent, machine_.zombies_parent));
    }
  }

  void look_at_cpu() {
    if (machine_.cpu_flags.empty()) return;
    std::string missing;
    for (const char* flag : {"avx", "avx2", "fma", "avx512f"}) {
      const auto& flags = machine_.cpu_flags;
      if (std::find(flags.begin(), flags.end(), flag) == flags.end()) {
        missing += missing.empty() ? flag : fmt::format(", {}", flag);
      }
    }
    now(missing.empty() ? "This machine's CPU has AVX, AVX2, FMA and AVX-512."
                        : fmt::format("This machine's CPU lacks {}.", missing));
  }

  const Machine& machine_;
  model::Explanation& out_;
};

}  // namespace

void look_at_machine(Look what, const Machine& machine, model::Explanation& answer) {
  Now(machine, answer).look(what);
}

}  // namespace flatout::advise
