#include "advise/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "advise/oom_message.h"
#include "base/size_text.h"

namespace flatout::advise {

using model::Explanation;

namespace {

constexpr uint64_t kWentOn = 2000;  // lines after the last error: the job did not end of it
constexpr size_t kHolders = 5;
constexpr size_t kAlso = 6;

// What decides: causes before generic ones before symptoms, and among equals the first.
int rank_of(Role role) {
  switch (role) {
    case Role::kCause:
      return 0;
    case Role::kGeneric:
      return 1;
    case Role::kSymptom:
      return 2;
    case Role::kNotice:
      break;
  }
  return 3;
}

const LogEvent* best_of(const std::vector<LogEvent>& events) {
  const LogEvent* best = nullptr;
  for (const LogEvent& event : events) {
    if (best == nullptr) {
      best = &event;
      continue;
    }
    const int a = rank_of(event.rule->role), b = rank_of(best->rule->role);
    // Of one line the rule that stands earlier in the table.
    if (a < b || (a == b && event.line.number == best->line.number && event.rule < best->rule)) {
      best = &event;
    }
  }
  return best;
}

bool explains(const LogEvent* event) {
  return event != nullptr && rank_of(event->rule->role) <= rank_of(Role::kGeneric);
}

class Answer {
 public:
  Answer(const LogReading& log, const Machine& machine) : log_(log), machine_(machine) {
    out_.lines = log.lines;
    out_.bytes = log.bytes;
  }

  Explanation make() {
    if (const Episode* episode = decisive()) {
      const LogEvent* event = best_of(episode->events);
      const model::SeenLine* unknown =
          episode->unknown.empty() ? nullptr : &episode->unknown.front();
      // An exception that no rule knows comes before what merely follows from a failure.
      if (explains(event) || unknown == nullptr) {
        tell(*event, *episode);
      } else {
        tell_unknown(*episode);
      }
    } else if (!log_.suspects.empty() && !strong_notice()) {
      tell_suspects();
    } else if (!log_.notices.empty()) {
      tell_notice();
    } else if (!log_.suspects.empty()) {
      tell_suspects();
    } else {
      out_.text = fmt::format("No sign of a failure in {} lines.", log_.lines);
    }
    tell_also();
    return std::move(out_);
  }

 private:
  // The last episode that explains anything; what only follows from elsewhere comes last.
  const Episode* decisive() const {
    for (auto it = log_.episodes.rbegin(); it != log_.episodes.rend(); ++it) {
      if (explains(best_of(it->events)) || !it->unknown.empty()) return &*it;
    }
    return log_.episodes.empty() ? nullptr : &log_.episodes.front();
  }

  // A notice explains suspicious lines only where they are its own.
  bool strong_notice() const {
    return !log_.notices.empty() &&
           std::all_of(log_.suspects.begin(), log_.suspects.end(), [&](const model::SeenLine& s) {
             return std::any_of(log_.notices.begin(), log_.notices.end(),
                                [&](const LogEvent& n) { return n.line.number == s.number; });
           });
  }

  void take(const LogEvent& event) {
    const LogRule& rule = *event.rule;
    out_.kind = rule.kind;
    out_.finding = rule.finding;
    out_.sure = rule.sure;
    out_.text = rule.text;
    out_.advice = rule.advice;
    out_.seen.push_back(event.line);
  }

  void tell(const LogEvent& event, const Episode& episode) {
    take(event);
    if (event.rule->kind == "cuda_out_of_memory") refine_oom(event.line.text);
    if (!episode.unknown.empty() && episode.unknown.front().number < event.line.number) {
      // An error before it that no rule knows may be the true one.
      out_.sure *= 0.85;
      out_.seen.push_back(episode.unknown.front());
    }
    if (log_.lines > episode.last_line + kWentOn) {
      out_.sure *= 0.8;
      out_.text +=
          fmt::format(" The log goes on for {} lines after it.", log_.lines - episode.last_line);
    }
    look(event.rule->look);
  }

  void tell_notice() {
    take(log_.notices.front());
    look(log_.notices.front().rule->look);
  }

  void tell_unknown(const Episode& episode) {
    out_.kind = "unknown";
    out_.text = fmt::format("Not known: line {} raises {}, and no rule explains it.",
                            episode.unknown.front().number,
                            std::string_view(episode.unknown.front().text).substr(0, 200));
    out_.seen = episode.unknown;
    out_.advice.push_back(
        {"traceback", "The traceback above that line names the place in the program."});
  }

  void tell_suspects() {
    out_.kind = "unknown";
    out_.text = "Not known: there are lines that look like an error, and no rule explains them.";
    out_.seen = log_.suspects;
  }

  void tell_also() {
    const auto add = [&](const LogEvent& event) {
      const std::string kind(event.rule->kind);
      if (kind == out_.kind || out_.also.size() >= kAlso ||
          std::find(out_.also.begin(), out_.also.end(), kind) != out_.also.end()) {
        return;
      }
      out_.also.push_back(kind);
    };
    for (const Episode& episode : log_.episodes) {
      for (const LogEvent& event : episode.events) add(event);
    }
    for (const LogEvent& event : log_.notices) add(event);
  }

  // The message has figures: who held the memory when it ran out.
  void refine_oom(std::string_view line) {
    const auto message = parse_oom_message(line);
    if (!message) return;
    if (message->wanted) {
      out_.text = fmt::format("PyTorch's allocator asked for {}", size_text(*message->wanted));
      if (message->total && message->free) {
        out_.text += fmt::format(" and {} of the device's {} were free", size_text(*message->free),
                                 size_text(*message->total));
      }
      out_.text += ".";
    }
    const uint64_t others = message->held_by_others().value_or(0);
    switch (cause_of(*message)) {
      case OomCause::kTaken:
        out_.finding = "gpu.memory_taken";
        out_.text += fmt::format(" Other processes held {}: without them it would have fitted.",
                                 size_text(others));
        out_.advice.insert(out_.advice.begin(),
                           {"stop_holder", "Stop what else is on the device, or take another."});
        for (const OomMessage::Other& other : message->others) {
          out_.holders.push_back({fmt::format("pid {} (as the log says)", other.pid), other.bytes});
        }
        break;
      case OomCause::kFragmented:
        out_.finding = "gpu.oom_fragmented";
        out_.sure = 0.85;
        out_.text += fmt::format(
            " PyTorch itself held {} that no tensor used, in pieces that are too small.",
            size_text(*message->unallocated));
        out_.advice.insert(
            out_.advice.begin(),
            {"expandable_segments", "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."});
        break;
      case OomCause::kTooBig:
        if (message->allocated && message->total) {
          out_.text +=
              fmt::format(" The job's own tensors took {}.", size_text(*message->allocated));
        }
        if (!message->total) out_.sure = 0.8;
        break;
    }
    suggest_batch();
  }

  void suggest_batch() {
    if (!log_.batch_size || *log_.batch_size < 2 || out_.finding != "gpu.oom_too_big") return;
    out_.advice.front().text = fmt::format(
        "Use a smaller batch: {} instead of the {} that the log names, and accumulate "
        "gradients over {} batches.",
        *log_.batch_size / 2, *log_.batch_size, 2);
  }

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

  void now(std::string text) { out_.now.push_back(std::move(text)); }

  void look_at_gpus() {
    if (machine_.gpus.empty()) {
      now(fmt::format("No GPU can be seen here now ({}), so who holds its memory cannot be said.",
                      machine_.gpu_error.empty() ? "none is there" : machine_.gpu_error));
      return;
    }
    bool much_held = false, all_free = true;
    for (const Gpu& gpu : machine_.gpus) {
      const auto& reading = gpu.reading;
      if (!reading.mem_total_bytes || !reading.mem_used_bytes) continue;
      const double share = static_cast<double>(*reading.mem_used_bytes) /
                           std::max(1.0, static_cast<double>(*reading.mem_total_bytes));
      much_held |= share >= 0.5;
      all_free &= share < 0.1;
      now(fmt::format("GPU {} now has {} of {} free.", reading.index,
                      size_text(*reading.mem_total_bytes - *reading.mem_used_bytes),
                      size_text(*reading.mem_total_bytes)));
      for (const probe::GpuProcess& p : reading.processes) {
        out_.holders.push_back(
            {fmt::format("{} on GPU {}", task_name(p.pid), reading.index), p.memory_bytes});
      }
    }
    if (out_.finding != "gpu.memory_taken") return;
    if (much_held && !out_.holders.empty()) out_.sure = std::max(out_.sure, 0.85);
    if (all_free) {
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
      if (out_.finding == "mem.killed") out_.sure = std::max(out_.sure, 0.85);
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

  const LogReading& log_;
  const Machine& machine_;
  Explanation out_;
};

}  // namespace

Explanation explain(const LogReading& log, const Machine& machine) {
  return Answer(log, machine).make();
}

}  // namespace flatout::advise
