// Processes: those that the job starts all the time, those of old runs that were left over, those
// that nobody reaps.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/findings.h"

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

void detect_churn(const RunView& view, Findings& findings) {
  const auto ours = [](const Cell& c) {
    return c.role == Role::kTrainer && (c.traits & kInLoader) == 0 && c.part != Part::kCheckpoint;
  };
  const auto calls = [&](const Cell& c) {
    return ours(c) && (c.act == Act::kChild || (c.traits & (kInSpawn | kInSubprocess)) != 0);
  };
  const int64_t readings = view.readings(calls);
  if (readings < kFewReadings || findings.has("cpu.process_churn")) return;
  // Who starts a process in every other step reads what it says from a pipe.
  const double steps = static_cast<double>(std::max<int64_t>(view.steps().count, 1));
  const bool asks = view.increase(view.host(SignalId::kHostForks)).value_or(0) > 0.5 * steps;
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
  Finding* f = findings.add("cpu.process_churn", "Processes are started all the time", 0.9, cost);
  if (f == nullptr) return;
  f->where = view.where(starting);
  evidence(*f, fmt::format("starting and awaiting processes takes {} a step", ms(cost)), cost * 1e3,
           "ms", "stacks", readings);
  if (const auto forks = view.increase(view.host(SignalId::kHostForks))) {
    const double rate = *forks / std::max(view.seconds(), 1e-9);
    evidence(*f, fmt::format("{} processes and threads were made a second", format_number(rate)),
             rate, "1/s", "probe.host", view.steps().count);
  }
  remedy(*f, "pool", "Call in process, or keep a pool of processes.");
}

void detect_zombies(const RunView& view, Findings& findings) {
  const model::Run& run = view.run();
  const auto last = [&](SignalId id) {
    const model::Series* s = view.host(id);
    return s != nullptr ? s->last() : std::nullopt;
  };
  const auto total = last(SignalId::kMemTotal), available = last(SignalId::kMemAvailable);
  const auto pids = last(SignalId::kHostPids), most = last(SignalId::kHostPidMax);
  const auto unreaped = last(SignalId::kHostZombies);
  const bool pids_short =
      pids && most && unreaped && *pids > 0.8 * *most && *unreaped > 0.5 * *pids;
  const bool memory_short = total && available && *available < 0.15 * *total;
  double held = 0, shm = 0;
  std::string names;
  for (const model::Series* s : run.all(SignalId::kOtherOrphan)) {
    if (s->last().value_or(0) < 1 || s->entity >= run.entities.size()) continue;
    const model::Entity& e = run.entities[s->entity];
    const model::Series* rss = view.series(SignalId::kOtherRss, s->entity);
    const model::Series* own = view.series(SignalId::kOtherShm, s->entity);
    held += rss != nullptr ? rss->last().value_or(0) : 0;
    shm += own != nullptr ? own->last().value_or(0) : 0;
    names +=
        fmt::format("{}{} (pid {})", names.empty() ? "" : ", ", escape_terminal(e.name), e.key);
  }
  // Tasks of a control group that run towards its limit because nobody reaps them.
  const Series* reaped_late = nullptr;
  double tasks = 0, most_tasks = 0;
  for (const Series* limit : run.all(SignalId::kCgroupPidsMax)) {
    const Series* used = view.series(SignalId::kCgroupPids, limit->entity);
    const Series* dead = view.host(SignalId::kHostZombies);
    if (used == nullptr || dead == nullptr || used->readings.size() < 5 || !limit->last()) continue;
    double unburied = 0;
    for (const model::Reading& r : dead->readings) unburied = std::max(unburied, r.value);
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
    if (near || (grown >= 8 && left < 3600 * rate)) {
      reaped_late = used;
      tasks = peak->value;
      most_tasks = *limit->last();
    }
  }
  if (reaped_late != nullptr) {
    Finding& f =
        findings.add_outside("cpu.zombies", "Processes that nobody reaps use up the limit", 0.85);
    const auto n = static_cast<int64_t>(reaped_late->readings.size());
    evidence(f, fmt::format("{} tasks were in the group", format_number(tasks)), tasks, "tasks",
             "probe.cgroup", n);
    evidence(f, fmt::format("{} are allowed", format_number(most_tasks)), most_tasks, "tasks",
             "probe.cgroup", n);
    f.where = setting_line(run, "forks.most_at");
    remedy(f, "reap", "Wait for the children (subprocess.run, or poll() them).");
    return;
  }
  const bool memory_held = memory_short && total && held + shm > 0.1 * *total;
  if (!memory_held && !pids_short) return;
  Finding& f =
      findings.add_outside("cpu.zombies", "Left-overs of old runs hold what the job lacks", 0.85);
  if (memory_held) {
    f.cost_bytes = held + shm;
    evidence(f, fmt::format("{} hold {}", names, format_bytes(held + shm)), held + shm, "bytes",
             "probe.neighbours", 1);
    evidence(f, fmt::format("{} of memory are left", format_bytes(*available)), *available, "bytes",
             "probe.memory", 1);
  }
  if (pids_short) {
    evidence(f, fmt::format("{} processes were never reaped", format_number(*unreaped)), *unreaped,
             "processes", "probe.host", 1);
    evidence(f, fmt::format("{} tasks are alive", format_number(*pids)), *pids, "tasks",
             "probe.host", 1);
    evidence(f, fmt::format("{} are allowed", format_number(*most)), *most, "tasks", "probe.host",
             1);
  }
  remedy(f, "clean_up", "End the left-over processes and remove what they hold.");
}

}  // namespace

void detect_processes(const RunView& view, Findings& findings) {
  detect_churn(view, findings);
  detect_zombies(view, findings);
}

}  // namespace flatout::diagnose
