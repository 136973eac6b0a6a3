// Who takes the cores: others, the job's own threads, a quota, a mask; and what the training thread
// burns on the interpreter and the collector.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/findings.h"
#include "diagnose/input.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::Slice;
using model::SliceKind;

namespace {

// A lost core or less than this of one is noise of any machine.
constexpr double kSomeCore = 0.1;
// Part of the wanted CPU time that a hypervisor withholds, from which that is a cause of its own.
constexpr double kMuchStolen = 0.3;
// Interpreter time in the time on CPU from which operations count as tiny; and how far below what
// was read the truth may lie (standard errors).
constexpr double kTinyOps = 0.14, kSure = 1.28;
// Interpreter time in the forward pass below which its operations are not to blame.
constexpr double kPythonShare = 0.25;
constexpr double kMuchOverhead = 0.1;  // of the step
// Interpreter time in the forward pass up to which a library's own loop may start its operations
// (nn.GRU), so that nothing in Python makes them tiny.
constexpr double kLibrarysLoop = 0.1;
// Operations of the autograd graph that take less than this on average, forward and back, are
// mostly dispatch: launching one takes some 5 us each way.
constexpr double kTinyOp = 40e-6;
constexpr double kManyOps = 50;
// The backward pass of an operation takes up to this many times as long as the operation.
constexpr double kBackwardOps = 2.5;

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
  relief.cores = view.cpu().others;
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
  remedy(*f, "cpu_quota", "Raise the quota, or run fewer threads than it has cores.");
}

/// Who shares few cores makes a batch in twice the time: faster decoding is the second thing to do,
/// unless it is most of it.
void leave_decoding_for_later(Findings& findings, const std::string& pinned) {
  if (findings.cost(pinned) > 0.5 * findings.cost("input.decode_cpu")) {
    findings.drop("input.decode_cpu");
  }
}

void detect_affinity(const RunView& view, Findings& findings) {
  const CpuView& cpu = view.cpu();
  if (cpu.affinity <= 0 || cpu.cores <= cpu.affinity || !cpu.idle_known) return;
  if (cpu.quota && *cpu.quota <= cpu.affinity) return;
  const double free = std::min(cpu.cores - cpu.affinity, cpu.idle);
  if (free < 0.3 || cpu.job < 0.7 * cpu.affinity) return;
  const CoreWait wait = core_wait(view);
  const WhatIf whatif(view);
  const double own = cpu.job / std::max(cpu.job + cpu.others, 1e-9);
  // The waiting ends when there is a core for every busy thread.
  Relief relief{.fetch = wait.fetch * own, .trainer = wait.compute * own, .cores = free};
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

void detect_oversubscribed(const RunView& view, Findings& findings) {
  const CpuView& cpu = view.cpu();
  if (cpu.usable <= 0 || findings.has("cpu.throttled") || findings.has("cpu.affinity")) return;
  const Crowd crowd = view.crowd();
  if (!crowd.too_many(cpu.usable)) return;
  const double pool = crowd.pool, producer_pool = crowd.producer_pool;
  const double runnable = crowd.all(), trainer = crowd.trainer;
  // While a pool's threads take turns on the cores, all wait at its barrier for the last one.
  const auto held_up = [](const Cell& c) {
    return c.act == Act::kRunQueue || c.act == Act::kLock || c.act == Act::kUnknown ||
           (c.traits & kInSpin) != 0;
  };
  const auto in_compute = [&](const Cell& c) { return held_up(c) && c.part != Part::kInputWait; };
  const double own = cpu.job / std::max(cpu.job + cpu.others, 1e-9);
  Relief relief;
  if (pool > 0.1 * cpu.usable) {
    const double wait = view.per_step(Role::kTrainer, in_compute);
    // With a thread a core the work itself keeps the cores as busy as they are.
    const auto runs = [](const Cell& c) { return on_cpu(c.act) && c.part != Part::kInputWait; };
    const auto works = [&](const Cell& c) { return runs(c) && (c.traits & kInSpin) == 0; };
    const auto in_user = [&](const Cell& c) { return runs(c) && c.act != Act::kKernel; };
    const double pool_works = view.per_step(Role::kPool, [&](const Cell& c) {
      return works(c) && in_user(c);
    }) * (1 - unseen_spinning(view, works));
    const double work = pool_works + view.per_step(Role::kTrainer, works);
    relief.trainer_cpu = view.per_step(Role::kPool, in_user) - pool_works +
                         view.per_step(Role::kTrainer, runs) - view.per_step(Role::kTrainer, works);
    const double computing =
        view.per_step(Role::kTrainer, [](const Cell& c) { return c.part != Part::kInputWait; });
    relief.trainer = std::min(wait, std::max(0.0, computing - work / cpu.usable)) * own;
  }
  if (producer_pool > 0.1 * cpu.usable && view.loader().batches > 0) {
    const auto batch = [&](const Cell& c) {
      return c.role == Role::kProducer && (c.stage != Stage::kNone || !view.loader().measured);
    };
    const double all = view.profile().seconds(batch);
    const double lost =
        view.profile().seconds([&](const Cell& c) { return batch(c) && held_up(c); });
    if (all > 0) relief.fetch = view.loader().fetch * lost / all * own;
    // The producers' threads stand in the training thread's way, too.
    if (relief.trainer == 0) {
      relief.trainer = (view.trainer_delay() - view.trainer_delay_in_wait()) * own * producer_pool /
                       std::max(runnable - trainer, 1e-9);
    }
    // Switching and spinning is CPU time that the work does not need.
    const double kernel =
        view.per_step(Role::kProducerPool, [](const Cell& c) { return c.act == Act::kKernel; });
    relief.fetch_cpu = kernel;
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
      return (c.role == Role::kTrainer && pool > producer_pool && in_compute(c)) ||
             (c.role == Role::kProducer && pool <= producer_pool && held_up(c));
    });
  if (!f->where && !programs.empty()) {
    f->where = setting_line(view.run(), fmt::format("program.{}.started_at", programs[0].pid));
  }
  remedy(*f, "num_threads",
         beside ? "Run what stands beside the training later, elsewhere or with fewer threads."
                : "Use as many threads as cores (OMP_NUM_THREADS, set_num_threads).");
}

void detect_python_bound(const RunView& view, Findings& findings) {
  if (!view.has_steps()) return;  // all start-up is Python
  // While threads fight for the interpreter, the time in its lines is theirs as well.
  if (findings.has("input.gil")) return;
  // What a session does with what it is fed is copying.
  if (findings.has("input.feed_dict")) return;
  // An optimizer's own loop over parameters is the framework's business. A reading takes a moment:
  // some of that line fall into the part before. Lines of a few steps, which take far longer than
  // the others, are stalls.
  std::unordered_map<model::FrameId, double> in_optimizer, in_stalls, in_all;
  for (const Cell& c : view.profile().cells()) {
    if (c.role != Role::kTrainer || !on_cpu(c.act)) continue;
    const double readings = static_cast<double>(c.readings);
    in_all[c.user] += readings;
    if (c.part == Part::kOptimizer) in_optimizer[c.user] += readings;
    if (c.part == Part::kOther && c.slow_step) in_stalls[c.user] += readings;
  }
  const auto computing = [&](const Cell& c) {
    return c.role == Role::kTrainer && c.part != Part::kInputWait && c.part != Part::kCheckpoint &&
           c.part != Part::kOptimizer &&
           (c.traits & (kInLogging | kInSave | kInSpawn | kInSubprocess)) == 0 &&
           in_optimizer[c.user] <= 0.5 * in_all[c.user] &&
           in_stalls[c.user] <= 0.8 * in_all[c.user];
  };
  // Interpreter time among the time on CPU, by line and by function: big operations have hardly
  // any.
  struct Place {
    double readings = 0, python = 0;
    bool tiny() const {
      if (readings <= 0) return false;
      return share() - kSure * error() > kTinyOps;
    }
    bool started_by_python() const {
      return readings > 0 && share() - kSure * error() > kLibrarysLoop;
    }
    double share() const { return python / readings; }
    double error() const { return std::sqrt(share() * (1 - share()) / readings); }
  };
  std::unordered_map<uint64_t, Place> places;
  const auto line_of = [](const Cell& c) { return uint64_t{c.user}; };
  const auto function_of = [&](const Cell& c) {
    const model::Frame& f = view.run().frames[c.user < view.run().frames.size() ? c.user : 0];
    return uint64_t{1} << 63 | static_cast<uint64_t>(f.file) << 32 | f.function;
  };
  const auto runs = [&](const Cell& c) {
    return computing(c) && (c.act == Act::kPython || c.act == Act::kNative);
  };
  Place forward_place;
  // TensorFlow's threads compute while the one that called them waits: a line that waits for them
  // runs no tiny operations.
  const bool graphs = !view.run().fact("tensorflow.version").empty();
  for (const Cell& c : view.profile().cells()) {
    if (graphs && computing(c) && c.act == Act::kLock) {
      for (const uint64_t key : {line_of(c), function_of(c)})
        places[key].readings += static_cast<double>(c.readings);
      forward_place.readings += static_cast<double>(c.readings);
    }
    if (!runs(c)) continue;
    if (c.part != Part::kBackward) {
      forward_place.readings += static_cast<double>(c.readings);
      if (c.act == Act::kPython) forward_place.python += static_cast<double>(c.readings);
    }
    for (const uint64_t key : {line_of(c), function_of(c)}) {
      places[key].readings += static_cast<double>(c.readings);
      if (c.act == Act::kPython) places[key].python += static_cast<double>(c.readings);
    }
  }
  // A backward pass is one line, however many operations it runs.
  const auto tiny = [&](const Cell& c) {
    return runs(c) && (places[line_of(c)].tiny() ||
                       (c.part != Part::kBackward && places[function_of(c)].tiny()));
  };
  const auto in_python = [&](const Cell& c) { return tiny(c) && c.act == Act::kPython; };
  const double in_lines = view.per_step(Role::kTrainer, tiny);
  const double python = view.per_step(Role::kTrainer, in_python);
  // The backward pass of tiny operations is as many tiny operations, run without the interpreter.
  const auto runs_backward = [&](const Cell& c) { return runs(c) && c.part == Part::kBackward; };
  const auto runs_forward = [&](const Cell& c) { return runs(c) && c.part != Part::kBackward; };
  const double forward = view.per_step(Role::kTrainer, runs_forward);
  const double tiny_forward =
      view.per_step(Role::kTrainer, [&](const Cell& c) { return tiny(c) && runs_forward(c); });
  const double backward =
      view.per_step(Role::kTrainer, [&](const Cell& c) { return runs_backward(c) && !tiny(c); });
  const double share = forward > 0 ? tiny_forward / forward : 0;
  double overhead = in_lines + std::min(backward * share, kBackwardOps * tiny_forward);
  int64_t readings = view.readings(tiny);
  // The graph tells the number of operations, however few readings there are.
  std::string_view nodes = view.run().fact("torch.graph_nodes");
  if (nodes.ends_with('+')) nodes.remove_suffix(1);  // there were more
  const double ops = parse_number<double>(nodes).value_or(0);
  // Beside big operations such lines are a cause of their own where they are much of the step.
  const double among =
      overhead > kMuchOverhead * view.steps().mean ? in_lines : std::max(forward, in_lines);
  const bool by_lines = readings >= kFewReadings && python >= kPythonShare * among;
  const bool by_ops = ops >= kManyOps && forward + backward > 0 &&
                      forward + backward < kTinyOp * ops && forward_place.started_by_python();
  if (!by_lines && !by_ops) return;
  if (by_ops && forward + backward > overhead) {
    overhead = forward + backward;
    readings = view.readings(runs);
  }
  const WhatIf whatif(view);
  Finding* f = findings.add("cpu.python_bound",
                            "The interpreter's work on many tiny operations bounds the step", 0.85,
                            whatif.saved_by({.trainer = overhead, .trainer_cpu = overhead}));
  if (f == nullptr) return;
  f->where = view.where(tiny);
  if (!f->where) f->where = view.where(runs_forward);
  if (ops > 0) {
    const double each = (forward + backward) / ops;
    evidence(*f, fmt::format("{} operations a step", format_number(ops)), ops, "operations",
             "agent.graph", 1);
    evidence(*f, fmt::format("each takes {}, back and forth", ms(each)), each * 1e6, "us",
             "agent.graph", readings);
  }
  evidence(*f, fmt::format("{} a step run in lines of tiny operations", ms(overhead)),
           overhead * 1e3, "ms", "stacks", readings);
  evidence(*f, fmt::format("the interpreter alone takes {} of it", ms(python)), python * 1e3, "ms",
           "stacks", readings);
  remedy(*f, "batching", "Do the same in few big operations: vectorise, fuse, torch.compile.");
}

/// Whether the job itself made the collector run more often than Python's own thresholds (700, 10,
/// 10) would have it.
bool collects_eagerly(const model::Run& run) {
  const auto parts = split(run.fact("gc.threshold"), ',');
  if (parts.size() != 3) return false;
  const auto young = parse_number<double>(parts[0]), middle = parse_number<double>(parts[1]);
  const auto old = parse_number<double>(parts[2]);
  if (!young || !middle || !old || *young <= 0) return false;
  return *young < 700 || *young * *middle * *old < 0.5 * 700 * 10 * 10;
}

void detect_gc(const RunView& view, Findings& findings) {
  if (!view.has_steps()) return;
  double slices = 0, longest = 0, collected = 0;
  int64_t count = 0, generation = 0;
  size_t step = 0;
  const auto& steady = view.steps().steady;
  for (const Slice& s : view.run().slices) {
    if (s.kind != SliceKind::kGc || s.thread >= view.run().threads.size()) continue;
    // A collection on any thread of the process holds the interpreter lock.
    if (view.run().threads[s.thread].process != view.trainer_process()) continue;
    while (step < steady.size() && steady[step]->end < s.end) ++step;
    if (step >= steady.size()) break;
    if (s.begin < steady[step]->begin) continue;
    slices += to_s(s.length());
    longest = std::max(longest, to_s(s.length()));
    collected += static_cast<double>(std::max<int64_t>(s.value2, 0));
    generation = std::max(generation, s.value);
    ++count;
  }
  const auto collecting = [](const Cell& c) {
    return c.role == Role::kTrainer && c.act == Act::kGc;
  };
  const double read = view.per_step(Role::kTrainer, collecting);
  const double n = static_cast<double>(std::max<int64_t>(view.steps().count, 1));
  const bool measured = count > 0;
  const double cost = measured ? slices / n : read;
  if (!measured && view.readings(collecting) < kFewReadings) return;
  Finding* f = findings.add("cpu.gc", "Garbage-collector pauses stall the steps", 0.95, cost);
  if (f == nullptr) return;
  if (collects_eagerly(view.run())) f->where = setting_line(view.run(), "gc.threshold.set_at");
  if (!f->where) f->where = view.where(collecting);
  evidence(*f, fmt::format("collecting takes {} a step", ms(cost)), cost * 1e3, "ms",
           measured ? "agent.gc" : "stacks", measured ? count : view.readings(collecting));
  if (measured) {
    evidence(*f, fmt::format("the longest pause took {}", ms(longest)), longest * 1e3, "ms",
             "agent.gc", count);
    evidence(*f, fmt::format("up to generation {}", generation), static_cast<double>(generation),
             "generation", "agent.gc", count);
    evidence(*f, fmt::format("{} objects were freed by it", format_number(collected)), collected,
             "objects", "agent.gc", count);
  }
  remedy(*f, "gc_freeze", "Call gc.freeze() after start-up, raise gc.set_threshold().");
}

/// The training thread waits for the interpreter lock that other threads of its process hold.
void detect_gil(const RunView& view, Findings& findings) {
  if (findings.has("input.gil")) return;
  const auto waits = [](const Cell& c) { return c.role == Role::kTrainer && c.act == Act::kGil; };
  const int64_t readings = view.readings(waits);
  if (readings < kFewReadings) return;
  const double wait = view.per_step(Role::kTrainer, waits);
  // Told already.
  if (findings.has("input.collate") && gil_for_passing(view) > 0.5 * wait) return;
  Finding* f = findings.add("input.gil",
                            "Other threads hold the GIL that the training thread wants", 0.9, wait);
  if (f == nullptr) return;
  f->where = view.where(holds_gil);
  evidence(*f, fmt::format("the training thread waits {} a step for the GIL", ms(wait)), wait * 1e3,
           "ms", "stacks", readings);
  remedy(*f, "processes", "Move that work into processes, or into code that releases the GIL.");
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
  detect_gil(view, findings);
  detect_python_bound(view, findings);
  detect_gc(view, findings);
}

}  // namespace flatout::diagnose
