// Who takes the cores: others, the job's own threads, a quota, a mask.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/findings.h"
#include "diagnose/input.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;

namespace {

// Of the cores, threads of one pool that want to run at a time, from which they are too many.
constexpr double kCrowds = 1.2;
// A lost core or less than this of one is noise of any machine.
constexpr double kSomeCore = 0.1;
// Part of the step that waits for a core, from which a mask with idle cores beside it is too small.
constexpr double kMuchQueued = 0.3;
// Part of the wanted CPU time that a hypervisor withholds, from which that is a cause of its own.
constexpr double kMuchStolen = 0.3;

/// What a step loses to waiting for cores: in the compute phases (a pool's slowest thread holds up
/// the training thread) and through the producers where they bound the step.
struct CoreWait {
  double compute = 0, fetch = 0;  // seconds per step, per batch
};

CoreWait core_wait(const RunView& view) {
  CoreWait w;
  w.compute = view.trainer_delay() - view.trainer_delay_in_wait() + view.pool_delay();
  w.fetch = view.loader().kind == LoaderKind::kSerial
                ? view.trainer_delay_in_wait()
                : view.loader().fetch * view.producer_delay_share();
  return w;
}

double saved_without(const RunView& view, const CoreWait& wait, double share) {
  const WhatIf whatif(view);
  // What others take is CPU time that the job would have had.
  Relief relief{.fetch = wait.fetch * share, .trainer = wait.compute * share};
  relief.cores = relief.others = view.cpu().others;
  const double limit = view.has_steps() ? view.steps().mean : 1.0;
  return std::min(whatif.saved_by(relief), 0.9 * limit);
}

/// Who of them used most of the cores.
void name_largest(Finding& f, const std::vector<Neighbour>& processes, const std::string& source,
                  int64_t n) {
  size_t named = 0;
  for (const Neighbour& other : processes) {
    if (++named > 3 || other.cores < kSomeCore) break;
    evidence(f,
             fmt::format("{} (pid {}) used {} cores", escape_terminal(other.name), other.pid,
                         format_number(other.cores)),
             other.cores, "cores", source, n);
    evidence(f, fmt::format("pid {}", other.pid), static_cast<double>(other.pid), "pid", source, n);
  }
}

/// Program and script of a process outside the job, as far as they are known.
std::string_view script_of(const model::Run& run, int64_t pid) {
  const std::string_view command = run.fact(fmt::format("other.{}.command", pid));
  const size_t blank = command.find(' ');
  return blank == std::string_view::npos ? std::string_view() : command.substr(blank + 1);
}

/// Whether a script is the job's own, as far as its name as it was typed tells.
bool runs(std::string_view script, std::string_view own) {
  if (script.starts_with("./")) script.remove_prefix(2);
  return !script.empty() && own.ends_with(script) &&
         (own.size() == script.size() || own[own.size() - script.size() - 1] == '/');
}

/// Those of them that run the job's own script: started twice, or left over.
void name_twins(const RunView& view, Finding& f) {
  const model::Run& run = view.run();
  const std::string_view own = run.fact("code.file");
  // Ranks of one job run the same script.
  if (own.empty() || !run.fact("env.WORLD_SIZE").empty() ||
      !run.fact("env.OMPI_COMM_WORLD_SIZE").empty() || !run.fact("env.PMI_SIZE").empty() ||
      !run.fact("env.SLURM_PROCID").empty())
    return;
  for (const Neighbour& other : view.neighbours()) {
    if (other.cores < kSomeCore || !runs(script_of(run, other.pid), own)) continue;
    const model::EntityId entity = run.entity(model::EntityKind::kOther, other.pid);
    const model::Series* age = view.series(model::SignalId::kOtherAge, entity);
    std::string when;
    double before = 0;
    if (age != nullptr && !age->empty()) {
      const model::Reading& last = age->readings.back();
      before = last.value - to_s(last.at - run.begin);
      when =
          fmt::format(", started {} {} this one", format_duration(nanos(std::fabs(before) * 1e9)),
                      before > 0 ? "before" : "after");
    }
    evidence(f,
             fmt::format("pid {} runs {}, too{}", other.pid,
                         escape_terminal(own.substr(own.rfind('/') + 1)), when),
             before, "s", "probe.neighbours", 1);
    remedy(f, "twin",
           "Was it started twice, or is the other one left over from before? Then end it.");
    return;
  }
}

/// Whether the job lets others go first.
void tell_own_nice(const RunView& view, Finding& f) {
  const auto nice = parse_number<double>(view.run().fact("job.nice"));
  // Sessions share evenly where they are scheduled as groups, however nice they are.
  if (!nice || *nice <= 0 || view.run().fact("kernel.autogroup") == "1") return;
  evidence(f, fmt::format("the job itself was started with nice {}", format_number(*nice)), *nice,
           "", "probe.host", 1);
  remedy(f, "own_nice", "Or start the job without nice: others come before it.");
}

/// Who shares few cores, or is stopped, makes a batch in twice the time: faster decoding is the
/// second thing to do, unless it is most of it.
void leave_decoding_for_later(Findings& findings, const std::string& limit) {
  if (findings.cost(limit) > 0.5 * findings.cost("input.decode_cpu")) {
    findings.drop("input.decode_cpu");
  }
}

void detect_throttled(const RunView& view, Findings& findings) {
  const CpuView& cpu = view.cpu();
  if (cpu.throttled <= 0) return;
  // Stopped time is summed over cores; the job's wall time stops as long as its busy threads do.
  const double width =
      std::max(1.0, std::min(cpu.cores > 0 ? cpu.cores : 1.0, cpu.job + cpu.throttled));
  const double stopped = std::min(0.95, cpu.throttled / width);
  const double unit = view.has_steps() ? view.steps().mean : 1.0;
  Finding* f = findings.add("cpu.throttled", "The CPU quota of the control group stops the job",
                            0.95, stopped * unit);
  if (f == nullptr) return;
  evidence(*f,
           fmt::format("the quota stopped it in {} of all periods",
                       format_percent(cpu.throttled_periods)),
           cpu.throttled_periods, "ratio", "probe.cgroup", view.steps().count);
  evidence(*f, fmt::format("{} of its time it stood still", format_percent(stopped)), stopped,
           "ratio", "probe.cgroup", view.steps().count);
  if (cpu.quota) {
    evidence(*f, fmt::format("the quota is {} cores", format_number(*cpu.quota)), *cpu.quota,
             "cores", "probe.cgroup", 1);
  }
  leave_decoding_for_later(findings, f->id);
  remedy(*f, "cpu_quota", "Raise the quota, or run fewer threads than it has cores.");
}

/// Share of the pool's work that spins, though no stack shows it: of threads of native jobs more
/// run than can be sampled at a time. As it is among those that were.
double unseen_spinning(const RunView& view, const Profile::Filter& works) {
  if (view.is_python()) return 0;
  const auto seen = [](const Cell& c) { return c.user != 0 || c.traits != 0; };
  const auto pool = [&](const Profile::Filter& filter) {
    return view.per_step(Role::kPool, filter);
  };
  const double unseen = pool([&](const Cell& c) { return works(c) && !seen(c); });
  const double working = pool([&](const Cell& c) { return works(c) && seen(c); });
  const double spinning =
      pool([](const Cell& c) { return on_cpu(c.act) && (c.traits & kInSpin) != 0; });
  if (working + spinning <= 0 || unseen <= 0) return 0;
  return unseen / (unseen + working) * spinning / (working + spinning);
}

/// How much more of a native training process ran than was seen running. Where all cores are taken,
/// reading takes one of them, and who had it is seen waiting for one.
double more_than_seen(const RunView& view) {
  if (view.is_python() || view.steps().count == 0) return 1;
  double seen = 0;
  for (const Role role : {Role::kTrainer, Role::kPool, Role::kHelper})
    seen += view.per_step(role, [](const Cell& c) { return on_cpu(c.act) && !c.aside; });
  const double counted = view.cpu().trainer * view.steps().mean;
  return seen > 0 ? std::max(1.0, counted / seen) : 1;
}

/// Of the time in which the pool's threads have something to do, that goes to locks of the job's:
/// to waiting for one another there, taking them and releasing them.
double part_at_lock(const RunView& view) {
  const auto pool = [&](const Profile::Filter& filter) {
    return view.per_step(Role::kPool, filter);
  };
  const double locked = pool(at_lock_of_jobs);
  const double busy = pool([&](const Cell& c) {
    return !at_lock_of_jobs(c) && (on_cpu(c.act) || c.act == Act::kRunQueue);
  });
  return locked > 0 ? locked / (locked + busy) : 0;
}

/// While a pool's threads take turns on the cores, all wait at its barrier for the last one.
bool held_up(const Cell& c) {
  return c.act == Act::kRunQueue || c.act == Act::kLock || c.act == Act::kUnknown ||
         (c.traits & kInSpin) != 0;
}
bool held_up_computing(const Cell& c) { return held_up(c) && c.part != Part::kInputWait; }

/// What the step would be spared if each thread of its own pool had one of so many cores to
/// itself. `own`: the job's part of what is used of the cores.
Relief relief_of_pool(const RunView& view, double cores, double own) {
  // The work itself keeps the cores as busy as they are then.
  const auto runs = [](const Cell& c) { return on_cpu(c.act) && c.part != Part::kInputWait; };
  const auto works = [&](const Cell& c) { return runs(c) && (c.traits & kInSpin) == 0; };
  const auto in_user = [&](const Cell& c) { return runs(c) && c.act != Act::kKernel; };
  const auto pool_in_user = [&](const Cell& c) { return works(c) && in_user(c); };
  const double pool_works =
      view.per_step(Role::kPool, pool_in_user) * (1 - unseen_spinning(view, works));
  const double trainer_works = view.per_step(Role::kTrainer, works);
  const double computing =
      view.per_step(Role::kTrainer, [](const Cell& c) { return c.part != Part::kInputWait; });
  const bool queues = view.pool_takes_work();
  const double wait = view.per_step(Role::kTrainer, [&](const Cell& c) {
    return held_up_computing(c) && (!queues || c.act == Act::kRunQueue);
  });
  // Nor do more cores open a lock of the job's.
  const double needed =
      (pool_works + trainer_works) * more_than_seen(view) / cores + wait * part_at_lock(view);
  Relief out;
  out.trainer_cpu = view.per_step(Role::kPool, in_user) - pool_works +
                    view.per_step(Role::kTrainer, runs) - trainer_works;
  out.trainer = std::min(wait, std::max(0.0, computing - needed)) * own;
  return out;
}

void detect_affinity(const RunView& view, Findings& findings) {
  const CpuView& cpu = view.cpu();
  if (cpu.affinity <= 0 || cpu.cores <= cpu.affinity || !cpu.idle_known) return;
  if (cpu.quota && *cpu.quota <= cpu.affinity) return;
  const double free = std::min(cpu.cores - cpu.affinity, cpu.idle);
  const CoreWait wait = core_wait(view);
  // Other ranks may have the same cores, and then a job's own threads do not fill them.
  const bool queues = view.has_steps() && wait.compute > kMuchQueued * view.steps().mean;
  if (free < 0.3 || (cpu.job < 0.7 * cpu.affinity && !queues)) return;
  const WhatIf whatif(view);
  const double own = cpu.job / std::max(cpu.job + cpu.others, 1e-9);
  // The waiting ends when there is a core for every busy thread.
  Relief relief{.fetch = wait.fetch * own, .trainer = wait.compute * own, .cores = free};
  if (view.pool_delay() > 0) {
    // Part of it is for threads of the pool that work: on cores of their own they still do.
    const Relief pool = relief_of_pool(view, cpu.affinity + free, own);
    relief.trainer = std::min(relief.trainer, pool.trainer);
    relief.trainer_cpu = pool.trainer_cpu;
  }
  Finding* f = findings.add("cpu.affinity", "Threads are pinned to fewer cores than are free", 0.93,
                            whatif.saved_by(relief));
  if (f == nullptr) return;
  const int64_t n = view.steps().count;
  evidence(*f, fmt::format("the training thread may use {} cores", format_number(cpu.affinity)),
           cpu.affinity, "cores", "probe.threads", n);
  evidence(*f, fmt::format("the host has {}", format_number(cpu.cores)), cpu.cores, "cores",
           "probe.host", n);
  evidence(*f, fmt::format("{} were idle", format_number(cpu.idle)), cpu.idle, "cores",
           "probe.host", n);
  evidence(*f, fmt::format("the job's threads wait {} a step for a core", ms(wait.compute)),
           wait.compute * 1e3, "ms", "probe.threads", n);
  leave_decoding_for_later(findings, f->id);
  f->where = setting_line(view.run(), "affinity.set_at");
  remedy(*f, "affinity", "Widen the mask (taskset, sched_setaffinity, cpuset).");
}

/// Workers that crowd on few cores while others are free. The training thread may use them all.
void detect_pinned_workers(const RunView& view, Findings& findings) {
  const CpuView& cpu = view.cpu();
  const double mask = view.loader().mask;
  if (findings.has("cpu.affinity") || mask <= 0 || !cpu.idle_known) return;
  if (cpu.producers < 0.7 * mask) return;
  const double free = std::min(cpu.usable - mask, cpu.idle);
  if (free < 0.3) return;
  const double own = cpu.job / std::max(cpu.job + cpu.others, 1e-9);
  const double queued = core_wait(view).fetch * own;
  const WhatIf whatif(view);
  Finding* f =
      findings.add("cpu.affinity", "Loader workers are pinned to fewer cores than are free", 0.9,
                   whatif.saved_by({.fetch = queued}));
  if (f == nullptr) return;
  const int64_t n = view.steps().count;
  leave_decoding_for_later(findings, f->id);
  evidence(*f, fmt::format("a worker may use {} cores", format_number(mask)), mask, "cores",
           "probe.processes", n);
  evidence(*f, fmt::format("{} of {} were idle", format_number(cpu.idle), format_number(cpu.cores)),
           cpu.idle, "cores", "probe.host", n);
  evidence(*f, fmt::format("making a batch waits {} for a core", ms(queued)), queued * 1e3, "ms",
           "stacks", view.loader().batches);
  f->where = setting_line(view.run(), "affinity.set_at");
  remedy(*f, "affinity", "Widen the mask (taskset, sched_setaffinity, cpuset).");
}

void detect_contention(const RunView& view, Findings& findings) {
  const CpuView& cpu = view.cpu();
  if (findings.has("cpu.throttled") || findings.has("cpu.affinity")) return;
  const CoreWait wait = core_wait(view);
  const double rivals = cpu.others + cpu.job;
  if (rivals <= 0) return;
  const int64_t n = view.steps().count;
  if (cpu.others > kSomeCore) {
    // A thread of ours that waits for a core waits for whoever has it: all but itself.
    const double unit = view.has_steps() ? view.steps().mean : 1.0;
    const double me = std::min(
        cpu.job, view.per_step(Role::kTrainer, [](const Cell& c) { return on_cpu(c.act); }) / unit);
    const double share = cpu.others / std::max(cpu.others + cpu.job - me, cpu.others);
    Finding* f = findings.add("cpu.noisy_neighbour", "Processes outside the job take its cores",
                              0.9, saved_without(view, wait, share));
    if (f != nullptr) {
      evidence(*f,
               fmt::format("processes outside the job used {} cores", format_number(cpu.others)),
               cpu.others, "cores", "probe.neighbours", n);
      name_largest(*f, view.neighbours(), "probe.neighbours", n);
      name_twins(view, *f);
      tell_own_nice(view, *f);
      evidence(*f,
               fmt::format("threads of the step waited {} for a core",
                           per_step_text(view, wait.compute)),
               wait.compute * 1e3, "ms", "probe.threads", n);
      remedy(*f, "cpuset", "Stop them, or give the job cores of its own (cpuset, cgroup weight).");
      remedy(*f, "nice", "Lower their priority (nice, and the autogroup's own nice value).");
      return;
    }
  }
}

/// The same of the pools of the producers, which hold up batches.
void add_relief_of_producers(const RunView& view, const Crowd& crowd, double own, Relief& relief) {
  const auto batch = [&](const Cell& c) {
    return c.role == Role::kProducer && (c.stage != Stage::kNone || !view.loader().measured);
  };
  const double all = view.profile().seconds(batch);
  const double lost = view.profile().seconds([&](const Cell& c) { return batch(c) && held_up(c); });
  if (all > 0) relief.fetch = view.loader().fetch * lost / all * own;
  // The producers' threads stand in the training thread's way, too.
  if (relief.trainer == 0) {
    relief.trainer = (view.trainer_delay() - view.trainer_delay_in_wait()) * own *
                     crowd.producer_pool / std::max(crowd.all() - crowd.trainer, 1e-9);
  }
  // Switching and spinning is CPU time that the work does not need.
  relief.fetch_cpu =
      view.per_step(Role::kProducerPool, [](const Cell& c) { return c.act == Act::kKernel; });
}

void detect_oversubscribed(const RunView& view, Findings& findings) {
  const CpuView& cpu = view.cpu();
  if (cpu.usable <= 0 || findings.has("cpu.throttled") || findings.has("cpu.affinity")) return;
  const Crowd crowd = view.crowd();
  if (!crowd.too_many(cpu.usable)) return;
  const double pool = crowd.pool, producer_pool = crowd.producer_pool;
  const double runnable = crowd.all(), trainer = crowd.trainer;
  const double own = cpu.job / std::max(cpu.job + cpu.others, 1e-9);
  Relief relief;
  // A pool that takes work out of a queue, and has a thread for each core, is too many only with
  // others beside it.
  const bool fits = view.pool_takes_work() && pool < kCrowds * cpu.usable;
  if (pool > 0.1 * cpu.usable && !fits) relief = relief_of_pool(view, cpu.usable, own);
  if (producer_pool > 0.1 * cpu.usable && view.loader().batches > 0) {
    add_relief_of_producers(view, crowd, own, relief);
  }
  // Programs and threads beside the training are to blame where the rest would have room.
  const bool rest_fits = runnable - crowd.helpers < 1.1 * cpu.usable;
  const bool beside = crowd.helpers > std::max(pool, producer_pool) ||
                      (crowd.helpers > 0.1 * cpu.usable && rest_fits);
  if (crowd.helpers > 0.1 * cpu.usable) {
    // Waits for a core at a pool's barrier are counted already.
    const double waits = (view.trainer_delay() - view.trainer_delay_in_wait()) * own *
                         crowd.helpers / std::max(runnable - trainer, 1e-9);
    relief.trainer = std::max(relief.trainer, waits);
  }
  const WhatIf whatif(view);
  Finding* f =
      findings.add("cpu.oversubscribed", "The job runs more busy threads than it has cores", 0.9,
                   whatif.saved_by(relief));
  if (f == nullptr) return;
  // What samples take by themselves cannot be told while the threads that make them hold each other
  // up, unless it is far more.
  if (producer_pool > pool && findings.cost("input.decode_cpu") < 2 * findings.cost(f->id)) {
    findings.drop("input.decode_cpu");
  }
  const int64_t n = view.steps().count;
  evidence(*f, fmt::format("{} threads of the job want to run at a time", format_number(runnable)),
           runnable, "threads", "stacks", n);
  evidence(*f, fmt::format("there are {} cores for them", format_number(cpu.usable)), cpu.usable,
           "cores", "probe.host", n);
  if (const auto threads = parse_number<double>(view.run().fact("torch.num_threads"))) {
    evidence(*f, fmt::format("torch uses {} threads", format_number(*threads)), *threads, "threads",
             "agent.torch", 1);
  }
  const std::vector<Neighbour> programs =
      beside ? view.programs_beside() : std::vector<Neighbour>();
  name_largest(*f, programs, "probe.processes", n);
  // As many threads as were asked for would do, were it not for those beside them.
  if (!beside || !rest_fits) f->where = setting_line(view.run(), "torch.num_threads.set_at");
  if (!f->where)
    f->where = view.where([&](const Cell& c) {
      if (beside) return c.role == Role::kHelper && on_cpu(c.act);
      return (c.role == Role::kTrainer && pool > producer_pool && held_up_computing(c)) ||
             (c.role == Role::kProducer && pool <= producer_pool && held_up(c));
    });
  if (!f->where && !programs.empty()) {
    f->where = setting_line(view.run(), fmt::format("program.{}.started_at", programs[0].pid));
  }
  remedy(*f, "num_threads",
         beside ? "Run what stands beside the training later, elsewhere or with fewer threads."
                : "Use as many threads as cores (OMP_NUM_THREADS, set_num_threads).");
}

}  // namespace

/// The hypervisor lends the cores to other machines: to those here it looks as if they just worked
/// slower, so nothing waits in a run queue.
void detect_stolen(const RunView& view, Findings& findings) {
  const CpuView& cpu = view.cpu();
  if (cpu.stolen < kSomeCore || !findings.all().empty() || !view.has_steps()) return;
  const double share = cpu.stolen / (cpu.stolen + cpu.busy);
  // Less is the ordinary weather of a shared host, and nothing that the job's owner can change.
  if (share < kMuchStolen) return;
  Finding* f = findings.add("cpu.noisy_neighbour", "Other virtual machines take this one's cores",
                            0.8, share * view.steps().mean);
  if (f == nullptr) return;
  const int64_t n = view.steps().count;
  evidence(*f, fmt::format("the hypervisor withheld {} cores", format_number(cpu.stolen)),
           cpu.stolen, "cores", "probe.host", n);
  evidence(*f, fmt::format("programs on this machine used {}", format_number(cpu.busy)), cpu.busy,
           "cores", "probe.host", n);
  remedy(*f, "instance", "Use an instance with cores of its own, or another host.");
}

void detect_cpu(const RunView& view, Findings& findings) {
  detect_throttled(view, findings);
  detect_affinity(view, findings);
  detect_pinned_workers(view, findings);
  detect_oversubscribed(view, findings);
  detect_contention(view, findings);
}

}  // namespace flatout::diagnose
