#include <fmt/format.h>

#include "advise/check.h"
#include "advise/found.h"
#include "probe/python_offsets.h"

namespace flatout::advise {
namespace {

class Report {
 public:
  explicit Report(const Machine& m) : m_(m), access_(m.access ? *m.access : kNone) {}

  model::CheckUp make() {
    tell_kernel();
    tell_stacks();
    tell_gpus();
    tell_groups();
    tell_others();
    out_.problems = std::move(found_.problems);
    out_.about_flatout = true;
    return std::move(out_);
  }

 private:
  void can(const char* what, bool yes, std::string_view id, std::string text, std::string hint) {
    out_.machine.emplace_back(what, yes ? "yes" : "no");
    if (!yes) found_.warns(id, std::move(text), std::move(hint));
  }
  void fact(const char* key, std::string value) {
    if (!value.empty()) out_.machine.emplace_back(key, std::move(value));
  }

  void tell_kernel() {
    can("pressure", access_.pressure, "self.pressure",
        "The kernel does not count pressure: stalls for CPU, memory and I/O are told less exactly.",
        "Linux 4.20 or later; where it is built in but off, boot with psi=1.");
    can("run_queue_delay", access_.schedstat, "self.schedstat",
        "The kernel does not count how long threads wait for a core (/proc/PID/schedstat): "
        "their CPU time is known to 10 ms only.",
        "Linux built with CONFIG_SCHED_INFO.");
    can("block_io_delay", access_.block_io, "self.delay_accounting",
        "The kernel does not count how long processes wait for storage.",
        "sysctl kernel.task_delayacct=1, as root; before the job starts.");
    can("sessions", access_.autogroup, "self.autogroup",
        "Sessions have no shares of the cores, which flatout top shows and changes (g).",
        "sysctl kernel.sched_autogroup_enabled=1, as root; Linux built with "
        "CONFIG_SCHED_AUTOGROUP.");
  }

  void tell_stacks() {
    const bool ptrace = m_.root || access_.ptrace_scope.value_or(0) <= 1;
    can("stacks_of_attached_jobs", ptrace, "self.ptrace",
        fmt::format("Stacks of a running job cannot be read (kernel.yama.ptrace_scope is {}).",
                    access_.ptrace_scope.value_or(0)),
        "Start the job with flatout run, run flatout as root, or sysctl "
        "kernel.yama.ptrace_scope=1.");
    can("blocked_calls", access_.calls, "self.syscall",
        "What blocked threads wait for cannot be seen (/proc/PID/syscall), nor their native "
        "stacks.",
        "Linux built with CONFIG_HAVE_ARCH_TRACEHOOK; a sandbox such as gVisor has no such file.");
    const bool known =
        m_.python_minor >= probe::kOldestPython && m_.python_minor <= probe::kNewestPython;
    can("python_stacks", known, "self.python",
        m_.python_minor == 0
            ? "No Python was found."
            : fmt::format("Stacks of Python 3.{} cannot be read.", m_.python_minor),
        fmt::format("CPython 3.{} to 3.{}, named by $VIRTUAL_ENV, $CONDA_PREFIX or $PATH.",
                    probe::kOldestPython, probe::kNewestPython));
    if (m_.python_minor > 0) fact("python", fmt::format("3.{}", m_.python_minor));
    fact("readable_pythons",
         fmt::format("3.{} to 3.{}", probe::kOldestPython, probe::kNewestPython));
    can("native_functions", access_.sampling_error.empty(), "self.perf",
        fmt::format("Native functions that run cannot be sampled, for flatout top (b) and run: "
                    "{}.",
                    access_.sampling_error),
        "sysctl kernel.perf_event_paranoid=2 as root, or CAP_PERFMON; in a container, a seccomp "
        "profile that allows perf_event_open.");
    if (access_.perf_paranoid) {
      fact("perf_event_paranoid", std::to_string(*access_.perf_paranoid));
    }
    if (access_.ptrace_scope) fact("ptrace_scope", std::to_string(*access_.ptrace_scope));
  }

  void tell_gpus() {
    can("gpus", !m_.gpus.empty(), "self.gpu",
        fmt::format("No GPU can be measured: {}.",
                    m_.gpu_error.empty() ? "none is there" : m_.gpu_error),
        "an NVIDIA GPU with its driver; a container is to be started with --gpus all.");
    fact("driver", m_.driver_version);
    if (m_.gpus.empty()) return;
    can("cuda_trace", !m_.cupti.empty(), "self.cupti",
        "What CUDA does cannot be recorded: there is no CUPTI of CUDA 12 or 13.",
        "pip install nvidia-cuda-cupti-cu12, as PyTorch's wheels bring it, or install CUDA's "
        "toolkit.");
    fact("cupti", m_.cupti);
  }

  void tell_groups() {
    const bool some = !access_.cgroup_version.empty();
    can("control_groups", some, "self.cgroup",
        "Control groups cannot be seen: neither can limits of CPU, memory and processes.",
        "Mount /sys/fs/cgroup.");
    if (!some) return;
    fact("cgroup",
         fmt::format("{}: {}", access_.cgroup_version, fmt::join(access_.controllers, " ")));
    can("controllers", access_.missing_controllers.empty(), "self.controllers",
        fmt::format("This control group is not counted by: {}.",
                    fmt::join(access_.missing_controllers, ", ")),
        "systemd: Delegate=yes or CPUAccounting=yes, MemoryAccounting=yes, IOAccounting=yes, "
        "TasksAccounting=yes of the unit; v1: mount the controller.");
  }

  void tell_others() {
    can("other_users_processes", access_.others_seen.value_or(true), "self.other_users",
        "Files and memory maps of other users' processes cannot be seen.", "Run flatout as root.");
    can("other_users_io", access_.others_io.value_or(true), "self.other_users_io",
        "What other users' processes read and write cannot be seen (/proc/PID/io): who uses a "
        "disk is told of your own only.",
        "Run flatout as root.");
  }

  static inline const Access kNone{};
  const Machine& m_;
  const Access& access_;
  model::CheckUp out_;
  Found found_;
};

}  // namespace

model::CheckUp check_self(const Machine& machine) { return Report(machine).make(); }

}  // namespace flatout::advise
