// Processes: those that the job starts all the time, those of old runs that were left over, those
// that nobody reaps.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/findings.h"
#include "diagnose/raised.h"
#include "diagnose/room.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::Series;
using model::SignalId;

namespace {

// Part of a line's time in starting and awaiting processes from which it is there for that.
constexpr double kForChildren = 0.3;
// What the kernel takes at most for the first write to an OS page after a fork.
constexpr double kCopySeconds = 4e-6;

// Of memory, /dev/shm or a GPU's memory: what left-overs hold at least to be to blame, and what is
// left at most where the job lacks it.
constexpr double kMuchHeld = 0.1, kLittleLeft = 0.15;

/// Whether the job starts processes over and over, where no steps tell how often: a launcher that
/// waits for its one child does not.
bool starts_many(const RunView& view) {
  constexpr double kMany = 5, kPerSecond = 0.5;
  const auto started =
      static_cast<double>(std::ranges::count_if(view.run().processes, [&](const model::Process& p) {
        return p.in_job && !p.main && p.start > view.run().begin;
      }));
  return started >= kMany && started >= kPerSecond * view.seconds();
}

/// What forked children do per step that is the job's own work: as long as they work side by side.
/// They live too briefly to be seen whole, so this is their CPU time in the proportion that was
/// seen.
double work_of_children(const RunView& view, double forks_per_step) {
  const auto child = [](const Cell& c) {
    return c.aside && (c.role == Role::kHelper || c.role == Role::kProducer) && on_cpu(c.act);
  };
  const double all = view.profile().seconds(child);
  const double work = view.profile().seconds(
      [&](const Cell& c) { return child(c) && (c.traits & kInChild) != 0 && c.user != 0; });
  if (all <= 0 || !view.has_steps()) return 0;
  const CpuView& cpu = view.cpu();
  const double used = std::max(0.0, cpu.job - cpu.trainer - cpu.pool) * view.steps().mean;
  const double at_once = std::clamp(forks_per_step, 1.0, std::max(cpu.usable, 1.0));
  return used * work / all / at_once;
}

void detect_churn(const RunView& view, Findings& findings) {
  const auto ours = [](const Cell& c) {
    return c.role == Role::kTrainer && (c.traits & kInLoader) == 0 && c.part != Part::kCheckpoint;
  };
  const auto calls = [&](const Cell& c) {
    return ours(c) && (c.act == Act::kChild || (c.traits & (kInSpawn | kInSubprocess)) != 0);
  };
  const int64_t readings = view.readings(calls);
  if (readings < kFewReadings || findings.has("cpu.process_churn")) return;
  if (!view.has_steps() && !starts_many(view)) return;
  // Who starts a process in every other step reads what it says from a pipe.
  const double steps = static_cast<double>(std::max<int64_t>(view.steps().count, 1));
  const double forks = view.increase(view.host(SignalId::kHostForks)).value_or(0) / steps;
  const bool asks = forks > 0.5;
  struct Line {
    double all = 0, children = 0, pipes = 0;
    bool is_for_children(bool asks) const {
      return children > 0 && children + (asks ? pipes : 0) > kForChildren * all;
    }
  };
  std::unordered_map<model::FrameId, Line> lines;
  for (const Cell& c : view.profile().cells()) {
    if (!ours(c)) continue;
    lines[c.user].all += c.seconds;
    if (calls(c)) {
      lines[c.user].children += c.seconds;
    } else if (c.act == Act::kPoll) {
      lines[c.user].pipes += c.seconds;
    }
  }
  const auto starting = [&](const Cell& c) {
    if (!ours(c)) return false;
    return calls(c) || (c.user != 0 && lines[c.user].is_for_children(asks));
  };
  double cost = view.per_step(Role::kTrainer, starting);
  // After each fork, parent and child copy what they write to.
  const auto copies = [&](const Cell& c) {
    return ours(c) && c.act == Act::kKernel && !starting(c) && (c.traits & kInSave) == 0;
  };
  if (view.has_steps() && view.readings([&](const Cell& c) {
        return ours(c) && (c.traits & kInSpawn) != 0;
      }) >= kFewReadings) {
    const double faults =
        view.process_increase(SignalId::kProcMinorFaults,
                              [&](model::ProcessId p) { return p == view.trainer_process(); }) /
        static_cast<double>(view.steps().count);
    cost += std::min(view.per_step(Role::kTrainer, copies), faults * kCopySeconds);
  }
  // Their work stays, and is no longer done while others are being started.
  const double awaited = view.per_step(Role::kTrainer, [&](const Cell& c) {
    return ours(c) && c.act == Act::kPoll && !starting(c);
  });
  cost -= std::max(0.0, work_of_children(view, forks) - awaited);
  const std::optional<model::Where> where = view.where(starting);
  // Who makes a pool for each epoch starts its processes on the way to a batch: told already.
  for (const Finding& f : findings.all()) {
    if (f.id == "input.worker_restart" && same_line(f.where, where)) return;
  }
  Finding* f = findings.add("cpu.process_churn", "Processes are started all the time", 0.9, cost);
  if (f == nullptr) return;
  f->where = where;
  evidence(*f, fmt::format("starting and awaiting processes takes {}", per_step_text(view, cost)),
           cost * 1e3, "ms", "stacks", readings);
  if (forks > 0) {
    const double rate = forks * steps / std::max(view.seconds(), 1e-9);
    evidence(*f, fmt::format("{} processes and threads were made a second", format_number(rate)),
             rate, "1/s", "probe.host", view.steps().count);
  }
  remedy(*f, "pool", "Call in process, or keep a pool of processes.");
}

/// Live processes that look like left-overs of old runs, and what they hold together.
struct LeftOvers {
  std::string names;                    // "python (pid 4121, 2 h old), …"
  double memory = 0, shm = 0, gpu = 0;  // bytes
};

LeftOvers left_overs(const RunView& view) {
  const model::Run& run = view.run();
  LeftOvers out;
  for (const Series* s : run.all(SignalId::kOtherOrphan)) {
    if (s->last().value_or(0) < 1 || s->entity >= run.entities.size()) continue;
    const model::Entity& e = run.entities[s->entity];
    const auto last = [&](SignalId id) {
      const Series* series = view.series(id, s->entity);
      return series != nullptr ? series->last() : std::nullopt;
    };
    out.memory += last(SignalId::kOtherRss).value_or(0);
    out.shm += last(SignalId::kOtherShm).value_or(0);
    for (const Series* used : run.all(SignalId::kGpuProcessMem)) {
      if (used->entity < run.entities.size() && run.entities[used->entity].key == e.key)
        out.gpu += used->last().value_or(0);
    }
    std::string name = fmt::format("{} (pid {}", escape_terminal(e.name), e.key);
    if (const auto age = last(SignalId::kOtherAge))
      name += fmt::format(", {} old", format_duration(nanos(*age * 1e9)));
    out.names += (out.names.empty() ? "" : ", ") + name + ")";
  }
  return out;
}

/// The least that was free, where that was too little.
std::optional<double> little_left(const std::optional<Room>& room) {
  if (!room || room->least >= kLittleLeft * room->total) return std::nullopt;
  return room->least;
}

void detect_left_overs(const RunView& view, Findings& findings) {
  const model::Run& run = view.run();
  const LeftOvers old = left_overs(view);
  if (old.names.empty()) return;
  struct Lack {
    double held, left;
    std::string_view of, source;
  };
  std::vector<Lack> lacks;
  const auto memory = room(view.host(SignalId::kMemAvailable), view.host(SignalId::kMemTotal));
  if (const auto left = little_left(memory);
      left && old.memory + old.shm > kMuchHeld * memory->total)
    lacks.push_back({old.memory + old.shm, *left, "memory", "probe.memory"});
  const auto shm = shm_room(view);
  if (const auto left = little_left(shm); left && old.shm > kMuchHeld * shm->total)
    lacks.push_back({old.shm, *left, "/dev/shm", "probe.mounts"});
  for (model::EntityId i = 0; i < run.entities.size(); ++i) {
    if (run.entities[i].kind != model::EntityKind::kGpu || old.gpu <= 0) continue;
    const Series* total = view.series(SignalId::kGpuMemTotal, i);
    const Series* used = view.series(SignalId::kGpuMemUsed, i);
    if (total == nullptr || used == nullptr || !total->last() || !used->last()) continue;
    const double left = *total->last() - *used->last();
    if (left < kLittleLeft * *total->last() && old.gpu > kMuchHeld * *total->last())
      lacks.push_back({old.gpu, left, "the GPU's memory", "probe.gpu"});
  }
  if (lacks.empty()) return;
  Finding& f =
      findings.add_outside("cpu.zombies", "Left-overs of old runs hold what the job lacks", 0.85);
  for (const Lack& lack : lacks) {
    f.cost_bytes = std::max(f.cost_bytes.value_or(0), lack.held);
    evidence(f, fmt::format("{} hold {}", old.names, format_bytes(lack.held)), lack.held, "bytes",
             "probe.neighbours", 1);
    evidence(f, fmt::format("{} of {} are left", format_bytes(lack.left), lack.of), lack.left,
             "bytes", std::string(lack.source), 1);
  }
  remedy(f, "clean_up", "End the left-over processes and remove what they hold.");
}

/// Ended processes of anybody's that nobody reaps, where the host runs out of pids.
void detect_unreaped(const RunView& view, Findings& findings) {
  const auto pids = view.host_last(SignalId::kHostPids);
  const auto most = view.host_last(SignalId::kHostPidMax);
  const auto unreaped = view.host_last(SignalId::kHostZombies);
  if (!pids || !most || !unreaped || *pids <= 0.8 * *most || *unreaped <= 0.5 * *pids) return;
  Finding& f =
      findings.add_outside("cpu.zombies", "Processes that nobody reaped use up the pids", 0.85);
  evidence(f, fmt::format("{} processes were never reaped", format_number(*unreaped)), *unreaped,
           "processes", "probe.host", 1);
  evidence(f, fmt::format("{} tasks are alive", format_number(*pids)), *pids, "tasks", "probe.host",
           1);
  evidence(f, fmt::format("{} are allowed", format_number(*most)), *most, "tasks", "probe.host", 1);
  remedy(f, "clean_up", "End the processes that should have reaped them.");
}

/// Tasks of a control group that run towards its limit because nobody reaps them, or `ended` the
/// job.
bool detect_unreaped_children(const RunView& view, bool ended, Findings& findings) {
  const Series* dead = view.host(SignalId::kHostZombies);
  if (dead == nullptr) return false;
  double unburied = 0;
  for (const model::Reading& r : dead->readings) unburied = std::max(unburied, r.value);
  for (const Series* limit : view.run().all(SignalId::kCgroupPidsMax)) {
    const Series* used = view.series(SignalId::kCgroupPids, limit->entity);
    if (used == nullptr || used->readings.size() < 2 || !limit->last()) continue;
    // The most there were: when the job ends they go with it.
    const auto peak = std::max_element(
        used->readings.begin(), used->readings.end(),
        [](const model::Reading& a, const model::Reading& b) { return a.value < b.value; });
    const model::Reading& mid =
        used->readings[static_cast<size_t>(peak - used->readings.begin()) / 2];
    if (unburied < 0.4 * peak->value) continue;
    const bool near = peak->value > 0.8 * *limit->last();
    const double grown = peak->value - mid.value;
    const double rate = peak->at > mid.at ? grown / to_s(peak->at - mid.at) : 0;
    const double left = *limit->last() - peak->value;
    const bool towards = used->readings.size() >= 5 && grown >= 8 && left < 3600 * rate;
    if (!ended && !near && !towards) continue;
    constexpr const char* kTitle = "Processes that nobody reaps use up the limit";
    Finding& f = ended ? findings.add_fatal("cpu.zombies", kTitle, 0.95)
                       : findings.add_outside("cpu.zombies", kTitle, 0.85);
    const auto n = static_cast<int64_t>(used->readings.size());
    evidence(f, fmt::format("{} tasks were in the group", format_number(peak->value)), peak->value,
             "tasks", "probe.cgroup", n);
    evidence(f, fmt::format("{} are allowed", format_number(*limit->last())), *limit->last(),
             "tasks", "probe.cgroup", n);
    evidence(f, fmt::format("{} ended processes were not reaped", format_number(unburied)),
             unburied, "processes", "probe.host", n);
    f.where = setting_line(view.run(), "forks.most_at");
    if (!f.where && ended) f.where = exception_line(view.run(), "exception.");
    remedy(f, "reap", "Wait for the children (subprocess.run, or poll() them).");
    return true;
  }
  return false;
}

}  // namespace

bool detect_pids_end(const RunView& view, Findings& findings) {
  return detect_unreaped_children(view, true, findings);
}

void detect_processes(const RunView& view, Findings& findings) {
  detect_churn(view, findings);
  if (findings.has("cpu.zombies") || detect_unreaped_children(view, false, findings)) return;
  detect_left_overs(view, findings);
  if (!findings.has("cpu.zombies")) detect_unreaped(view, findings);
}

}  // namespace flatout::diagnose
