// What ended the job: an exception, a signal, memory, shared memory or descriptors that ran out.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "base/contains.h"
#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/findings.h"
#include "diagnose/last_stacks.h"
#include "diagnose/raised.h"
#include "diagnose/room.h"

namespace flatout::diagnose {

using model::Finding;
using model::Run;
using model::Series;
using model::SignalId;

namespace {

// Processes of the job whose exit codes are told.
constexpr size_t kChildrenSaid = 4;

struct Killed {
  int signal = 0;
  const model::Process* process = nullptr;
};

/// Nobody sends these on purpose: the process itself did what it must not, or gave up.
bool is_fault(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE ||
         signal == SIGABRT;
}

/// Others send these, or the kernel does: they strike wherever the process happens to be.
bool is_sent(int signal) {
  return signal == SIGKILL || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT ||
         signal == SIGALRM || signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGXCPU;
}

/// The process of the job that a signal ended first; not one that others sent on to end it.
std::optional<Killed> first_killed(const Run& run) {
  std::optional<Killed> found;
  for (const model::Process& p : run.processes) {
    if (!p.in_job || !p.ended || p.wait_status < 0 || !WIFSIGNALED(p.wait_status)) continue;
    const int signal = WTERMSIG(p.wait_status);
    if (signal == SIGINT || signal == SIGPIPE) continue;
    if (signal == SIGTERM && !p.main) continue;  // how parents end their workers
    if (!found || p.end < found->process->end) found = Killed{signal, &p};
  }
  if (!found && run.finished && run.wait_status >= 0 && WIFSIGNALED(run.wait_status)) {
    const int signal = WTERMSIG(run.wait_status);
    if (signal != SIGINT && signal != SIGPIPE) found = Killed{signal, run.main_process()};
  }
  return found;
}

double growth(const Run& run, SignalId id) {
  double most = 0;
  for (const Series* s : run.all(id)) {
    if (s->readings.size() >= 2) {
      most = std::max(most, s->readings.back().value - s->readings.front().value);
    }
  }
  return most;
}

/// Whoever raises these gave up waiting for another, or found it gone.
bool gave_up(std::string_view type) {
  static constexpr std::string_view kTypes[] = {"Empty",
                                                "Full",
                                                "TimeoutError",
                                                "BrokenBarrierError",
                                                "BrokenProcessPool",
                                                "BrokenThreadPool",
                                                "EOFError",
                                                "BrokenPipeError",
                                                "ConnectionResetError",
                                                "ConnectionRefusedError",
                                                "CancelledError",
                                                "timeout",
                                                "ShutDown",
                                                "QueueShutDown"};
  return std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes);
}

/// Whose exception came first where the job's own only followed from it.
struct First {
  std::string who, prefix;
};

// A job that outlives its process for longer did not fail by that.
constexpr Nanos kFollows = std::chrono::seconds(60);

std::optional<First> raised_first(const Run& run) {
  const model::Process* earliest = nullptr;
  std::optional<First> found;
  for (const model::Process& p : run.processes) {
    const bool failed = p.ended && p.wait_status >= 0 && WIFEXITED(p.wait_status) &&
                        WEXITSTATUS(p.wait_status) != 0;
    if (!p.in_job || p.main || !failed || run.end - p.end > kFollows) continue;
    if (earliest != nullptr && earliest->end <= p.end) continue;
    std::string prefix = "pid." + std::to_string(p.pid) + ".exception.";
    if (run.fact(prefix + "type").empty()) continue;
    earliest = &p;
    found = First{"A process of the job", std::move(prefix)};
  }
  if (found) return found;
  if (!gave_up(run.fact("exception.type")) || run.fact("thread_exception.type").empty())
    return std::nullopt;
  return First{"A thread of the job", "thread_exception."};
}

void add_exception(const RunView& view, const std::optional<First>& first, Findings& findings) {
  const Run& run = view.run();
  const std::string prefix = first ? first->prefix : "exception.";
  const std::string type = exception_type(run, prefix);
  Finding& f = findings.add_fatal(
      "crash.exception", fmt::format("{} raised {}", first ? first->who : "The job", type), 0.97);
  f.where = exception_line(run, prefix);
  const int code = WIFEXITED(run.wait_status) ? WEXITSTATUS(run.wait_status) : 0;
  const std::string words = exception_words(run, prefix);
  evidence(f, words.empty() ? type : words, code, "exit code", "agent.exception", 1);
  if (const std::string own = exception_type(run, "exception."); first && !own.empty()) {
    const std::string why = exception_words(run, "exception.");
    evidence(f, fmt::format("the job's own {}{}{} followed", own, why.empty() ? "" : ": ", why),
             code, "exit code", "agent.exception", 1);
  }
  evidence(f, fmt::format("after {} steps", run.steps.steps.size()),
           static_cast<double>(run.steps.steps.size()), "steps", "timeline",
           static_cast<int64_t>(run.steps.steps.size()));
  remedy(f, "traceback", "See the traceback; it names the line.");
}

/// The last reading of the process's main thread that shows a line of the user's, and whether its
/// interpreter was gone after it (kGone readings show nothing): the process was ending by then.
struct LastLine {
  const model::StackReading* reading = nullptr;
  bool gone = false;
};
LastLine last_line_of(const RunView& view, const model::Process& process) {
  constexpr int kGone = 2;
  const Run& run = view.run();
  const auto id = static_cast<model::ProcessId>(&process - run.processes.data());
  int blank = 0;
  for (size_t i = run.readings.size(); i-- > 0;) {
    const model::StackReading& r = run.readings[i];
    if (r.thread >= run.threads.size() || run.threads[r.thread].process != id) continue;
    if (!run.threads[r.thread].is_main) continue;
    if (r.stack == 0) ++blank;
    if (view.stacks().user_frame(r.stack) != 0) return {&r, blank >= kGone};
  }
  return {};
}

std::optional<model::Where> last_line(const RunView& view, const model::Process& process) {
  const LastLine last = last_line_of(view, process);
  if (last.reading == nullptr || last.gone) return std::nullopt;
  return view.stacks().where(view.stacks().user_frame(last.reading->stack));
}

/// Says so where the process was ending already: the stacks are older than its end.
void add_ending(const RunView& view, const model::Process* process, Finding& f) {
  if (process == nullptr) return;
  const LastLine last = last_line_of(view, *process);
  if (!last.gone) return;
  const double before = to_s(process->end - last.reading->at);
  evidence(f, fmt::format("its Python had ended by then: the last stacks are {} older", ms(before)),
           before * 1e3, "ms", "stacks", 1);
}

/// How much memory was left: a kill for memory that no counter here shows (another group's, another
/// machine's view of it) leaves little.
void add_memory_left(const RunView& view, Finding& f) {
  const auto left = room(view.host(SignalId::kMemAvailable), view.host(SignalId::kMemTotal));
  if (!left) return;
  evidence(f, fmt::format("{} of memory were left at the least", format_bytes(left->least)),
           left->least, "bytes", "probe.host", 1);
}

void add_signal_remedies(Finding& f, int signal) {
  if (signal == SIGKILL) {
    remedy(f, "killer",
           "SIGKILL leaves no core file and no message. Look who sent it: the kernel for memory "
           "(dmesg, journalctl -k), a scheduler or container for a limit of time or memory "
           "(Slurm, Kubernetes, systemd), or somebody by hand.");
  } else if (signal == SIGXCPU) {
    remedy(f, "cpu_limit", "Raise the limit of CPU time (ulimit -t).");
  } else if (signal == SIGXFSZ) {
    remedy(f, "file_limit", "Raise the limit of a file's size (ulimit -f).");
  } else if (is_sent(signal)) {
    remedy(f, "sender",
           "Somebody sent it: look in the log of what supervises the job (a scheduler's limit of "
           "time, a preemption, timeout(1), a closed terminal).");
  } else {
    remedy(f, "stacks",
           "Look at the last stacks; a debugger or a core file shows the native ones.");
  }
}

void add_shm_evidence(const RunView& view, Finding& f) {
  if (const auto room = shm_room(view)) {
    evidence(f, fmt::format("{} were left in /dev/shm at the least", format_bytes(room->least)),
             room->least, "bytes", "probe.mounts", 1);
    evidence(f, fmt::format("it holds {}", format_bytes(room->total)), room->total, "bytes",
             "probe.mounts", 1);
  }
  if (view.loader().batch_bytes > 0) {
    evidence(f, fmt::format("a batch has {}", format_bytes(view.loader().batch_bytes)),
             view.loader().batch_bytes, "bytes", "agent.loader", view.loader().batches);
  }
  remedy(f, "shm_size",
         "Make /dev/shm bigger (docker run --shm-size), or use file_system sharing.");
}

/// Who filled the memory: the process that was seen to grow most, or, where what it grew by leaves
/// most of the way to the limit open, the one that the kernel killed. That had the most, and one
/// that fills a limit within a second is hardly seen growing.
Grown filled(const RunView& view, const Killed& killed) {
  const Grown seen = grown_most(view);
  const auto limit = lowest_limit(view.run(), SignalId::kCgroupMemLimit);
  if (killed.process == nullptr || !limit) return seen;
  const double open = *limit - seen.most;
  const auto id = static_cast<model::ProcessId>(killed.process - view.run().processes.data());
  if (id == seen.process || seen.by > 0.5 * open) return seen;
  Grown unseen = grown(view, id);
  if (unseen.series == nullptr) return seen;
  unseen.by = open;
  return unseen;
}

void add_memory_evidence(const RunView& view, const Grown& grown, Finding& f) {
  const Run& run = view.run();
  if (const auto limit = lowest_limit(run, SignalId::kCgroupMemLimit)) {
    evidence(f, fmt::format("the control group may use {}", format_bytes(*limit)), *limit, "bytes",
             "probe.cgroup", 1);
    remedy(f, "limit", "Raise the memory limit, or use less: smaller batches, fewer workers.");
  } else {
    remedy(f, "footprint", "Use less memory: smaller batches, fewer workers.");
  }
  if (grown.series == nullptr) return;
  const double seconds = to_s(grown.series->readings.back().at - grown.series->readings.front().at);
  const int64_t pid = run.processes[grown.process].pid;
  const auto n = static_cast<int64_t>(grown.series->readings.size());
  evidence(f, fmt::format("the process that grew most is pid {}", pid), static_cast<double>(pid),
           "pid", "probe.processes", n);
  evidence(f, fmt::format("it had {}", format_bytes(grown.most)), grown.most, "bytes",
           "probe.processes", n);
  f.cost_bytes = grown.most;
  if (seconds > 0.2 && grown.by > 0) {
    evidence(f, fmt::format("it grew by {}/s", format_bytes(grown.by / seconds)),
             grown.by / seconds, "bytes/s", "probe.processes", n);
  }
}

/// The code that the job ended with. 0: it ended well, still runs, or was interrupted by hand.
int failure_code(const Run& run) {
  if (!run.finished || run.wait_status < 0 || !WIFEXITED(run.wait_status)) return 0;
  const int code = WEXITSTATUS(run.wait_status);
  return code == 128 + SIGINT ? 0 : code;
}

/// A job that failed without an exception that the agent has seen: another language, sys.exit(), an
/// interpreter without the agent.
void add_exit_code(const RunView& view, int code, Findings& findings) {
  const Run& run = view.run();
  const char* name = code > 128 ? sigabbrev_np(code - 128) : nullptr;
  Finding& f = findings.add_fatal(
      name != nullptr ? "crash.signal" : "crash.exception",
      name != nullptr ? fmt::format("The job ended with exit code {}: SIG{}", code, name)
                      : fmt::format("The job ended with exit code {}", code),
      0.9);
  const auto steps = static_cast<int64_t>(run.steps.steps.size());
  evidence(f, fmt::format("exit code {}, after {} steps", code, steps), code, "exit code",
           "recorder", 1);
  for (const model::Process& p : run.processes) {
    if (f.evidence.size() > kChildrenSaid) break;
    if (!p.in_job || p.main || !p.ended || p.wait_status < 0 || !WIFEXITED(p.wait_status)) continue;
    if (const int child = WEXITSTATUS(p.wait_status); child != 0) {
      evidence(
          f,
          fmt::format("pid {} ({}) ended with exit code {}", p.pid, escape_terminal(p.name), child),
          child, "exit code", "probe.processes", 1);
    }
  }
  remedy(f, "log", "What it printed last says why; `flatout explain LOG` reads it.");
}

/// What one run ended by, as far as it tells: how it was waited for, its exception, who was killed.
struct End {
  explicit End(const RunView& v);
  bool told(std::string_view what) const {
    return contains(message, what) || contains(traceback, what);
  }
  bool shm_told() const;

  const RunView& view;
  const Run& run;
  std::string_view type, message, traceback;  // of the exception
  bool failed = false;
  bool may_have_failed = false;  // failed, or nothing says how it ended
  std::optional<Killed> killed;
  bool killed_counts = false;  // it hurt the job
};

End::End(const RunView& v)
    : view(v),
      run(v.run()),
      type(run.fact("exception.type")),
      message(run.fact("exception.message")),
      traceback(run.fact("exception.traceback")),
      killed(first_killed(run)) {
  const bool interrupted =
      run.wait_status > 0 && WIFSIGNALED(run.wait_status) && WTERMSIG(run.wait_status) == SIGINT;
  failed = run.finished && run.wait_status != 0 && !interrupted;
  may_have_failed = failed || !run.finished;
  if (!killed) return;
  const bool worker_lost =
      (told("DataLoader worker") && (told("killed by signal") || told("exited unexpectedly"))) ||
      (type.ends_with("BrokenProcessPool") && told("terminated abruptly"));
  const bool job_itself = killed->process == nullptr || killed->process->main;
  // An exception that nobody catches ends a C++ program by abort().
  const bool uncaught = killed->signal == SIGABRT && !type.empty() && job_itself;
  // A signal that did not hurt anybody (a helper that was ended on purpose) is no crash.
  killed_counts = may_have_failed && !uncaught &&
                  (job_itself || type.empty() || worker_lost || is_fault(killed->signal));
}

bool End::shm_told() const {
  return told("insufficient shared memory") || told("(shm)") ||
         (told("No space left on device") && (told("/dev/shm") || told("torch_"))) ||
         told("unable to write to file </torch_") || told("unable to resize file </torch_");
}

// Each of these says so where it is what the run ended by.

/// Whatever the job says of itself once the kernel has killed a part of it.
bool detect_killed_for_memory(const End& end, Findings& findings) {
  const bool oom =
      growth(end.run, SignalId::kCgroupOomKills) >= 1 || growth(end.run, SignalId::kVmOomKill) >= 1;
  if (!end.killed || end.killed->signal != SIGKILL || !oom || !end.may_have_failed) return false;
  Finding& f = findings.add_fatal("mem.killed", "A process of the job was killed for memory", 0.95);
  const Grown grown = filled(end.view, *end.killed);
  f.where = growing_line(end.view, grown);
  if (const model::Process* process = end.killed->process; process != nullptr) {
    const bool its_doing =
        grown.process < end.run.processes.size() && &end.run.processes[grown.process] == process;
    if (!f.where && its_doing) f.where = last_line(end.view, *process);
    evidence(f, fmt::format("pid {} ({}) was killed", process->pid, escape_terminal(process->name)),
             process->pid, "pid", "probe.processes", 1);
  }
  add_memory_evidence(end.view, grown, f);
  return true;
}

bool detect_shm_end(const End& end, Findings& findings) {
  const auto room = shm_room(end.view);
  const bool full = room && room->total > 0 &&
                    room->least < std::max(0.02 * room->total, end.view.loader().batch_bytes);
  const bool killed_by_it = end.killed_counts && end.killed->signal == SIGBUS && full;
  if (!end.failed || !(end.shm_told() || killed_by_it)) return false;
  Finding& f = findings.add_fatal("mem.shm", "/dev/shm is too small for the workers' batches",
                                  full ? 0.97 : 0.85);
  if (end.killed_counts && end.killed->process != nullptr) {
    f.where = fault_line(end.run);
    if (!f.where) f.where = last_line(end.view, *end.killed->process);
  }
  if (!f.where) f.where = exception_line(end.run, "exception.");
  add_shm_evidence(end.view, f);
  return true;
}

bool detect_fds_end(const End& end, Findings& findings) {
  const bool told = end.told("Too many open files") || end.told("received 0 items of ancdata") ||
                    end.told("Errno 24");
  if (!end.failed || !told) return false;
  Finding& f = findings.add_fatal("mem.fds", "File descriptors ran out", 0.95);
  f.where = exception_line(end.run, "exception.");
  for (const Series* s : end.run.all(SignalId::kProcFdLimit)) {
    if (!s->last()) continue;
    evidence(f, fmt::format("{} open files are allowed", format_number(*s->last())), *s->last(),
             "files", "probe.processes", 1);
    break;
  }
  remedy(f, "ulimit",
         "Raise the limit of open files, close what is not needed, or use "
         "torch.multiprocessing.set_sharing_strategy('file_system').");
  return true;
}

bool detect_threads_end(const End& end, Findings& findings) {
  const bool told =
      end.told("Resource temporarily unavailable") || end.told("can't start new thread");
  return end.failed && told && detect_pids_end(end.view, findings);
}

bool detect_signal(const End& end, Findings& findings) {
  if (!end.killed_counts) return false;
  const model::Process* process = end.killed->process;
  const int signal = end.killed->signal;
  const char* name = sigabbrev_np(signal);
  const bool worker = process != nullptr && !process->main;
  Finding& f = findings.add_fatal(
      "crash.signal",
      fmt::format("{} was killed by SIG{}", worker ? "A process of the job" : "The job",
                  name != nullptr ? name : "?"),
      0.95);
  if (process != nullptr) {
    // Where it was when others ended it is chance; and what Python's faulthandler wrote without
    // one of the user's lines struck in none.
    if (!is_sent(signal)) {
      f.where = fault_line(end.run);
      if (!f.where && end.run.fact("fault.stack").empty()) f.where = last_line(end.view, *process);
    }
    evidence(f, fmt::format("pid {} ({}) ended", process->pid, escape_terminal(process->name)),
             process->pid, "pid", "probe.processes", 1);
  }
  evidence(f, fmt::format("by signal {}", signal), signal, "signal", "probe.processes", 1);
  if (signal == SIGKILL) add_memory_left(end.view, f);
  add_ending(end.view, process, f);
  if (process != nullptr) add_last_stacks(end.view, *process, f);
  add_signal_remedies(f, signal);
  return true;
}

bool detect_exception(const End& end, Findings& findings) {
  const std::optional<First> first = end.failed ? raised_first(end.run) : std::nullopt;
  const bool own = !end.type.empty() && end.type != "SystemExit" && end.type != "KeyboardInterrupt";
  if (!first && !(own && end.may_have_failed)) return false;
  add_exception(end.view, first, findings);
  return true;
}

}  // namespace

void detect_crash(const RunView& view, Findings& findings) {
  const End end(view);
  if (detect_killed_for_memory(end, findings) || detect_shm_end(end, findings) ||
      detect_fds_end(end, findings) || detect_threads_end(end, findings) ||
      (end.failed && detect_device_end(view, findings)) || detect_signal(end, findings) ||
      detect_exception(end, findings)) {
    return;
  }
  const int code = failure_code(end.run);
  if (code != 0 && end.type != "KeyboardInterrupt") add_exit_code(view, code, findings);
}

}  // namespace flatout::diagnose
