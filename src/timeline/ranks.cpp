#include "timeline/ranks.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/text.h"
#include "timeline/steps.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr std::string_view kRankFact = "dist.rank";

/// "pid.4121.dist.rank" -> 4121; 0 for another key.
int32_t pid_of(std::string_view key) {
  if (!key.starts_with("pid.")) return 0;
  key.remove_prefix(4);
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos || key.substr(dot + 1) != kRankFact) return 0;
  return parse_number<int32_t>(key.substr(0, dot)).value_or(0);
}

/// Processes with steps of their own. A loader's workers have their rank's environment, not these.
std::vector<bool> training_processes(const Run& run) {
  std::vector<bool> out(run.processes.size(), false);
  for (const Slice& slice : run.slices) {
    if (slice.kind != SliceKind::kStep && slice.kind != SliceKind::kOptimizer &&
        slice.kind != SliceKind::kBackward) {
      continue;
    }
    const ProcessId process = run.threads[slice.thread].process;
    if (process < out.size()) out[process] = true;
  }
  return out;
}

/// The process and all that descend from it.
std::vector<bool> family_of(const Run& run, ProcessId head) {
  std::map<int32_t, std::vector<ProcessId>> children;
  for (ProcessId id = 0; id < run.processes.size(); ++id) {
    children[run.processes[id].ppid].push_back(id);
  }
  std::vector<bool> out(run.processes.size(), false);
  std::vector<ProcessId> open{head};
  while (!open.empty()) {
    const ProcessId id = open.back();
    open.pop_back();
    if (out[id]) continue;
    out[id] = true;
    const auto found = children.find(run.processes[id].pid);
    if (found != children.end()) {
      open.insert(open.end(), found->second.begin(), found->second.end());
    }
  }
  return out;
}

/// Facts as a recording of this rank alone would have them.
std::map<std::string, std::string> facts_of(const Run& run, ProcessId process) {
  std::map<std::string, std::string> out = run.info;
  if (run.training_process == process) return out;
  for (const std::string& key : run.training_facts) out.erase(key);
  const std::string prefix = "pid." + std::to_string(run.processes[process].pid) + ".";
  for (auto it = run.info.lower_bound(prefix);
       it != run.info.end() && it->first.starts_with(prefix); ++it) {
    out.erase(it->first);
    out[it->first.substr(prefix.size())] = it->second;
  }
  return out;
}

}  // namespace

std::vector<RankProcess> find_ranks(const Run& run) {
  const std::vector<bool> trains = training_processes(run);
  std::map<int32_t, RankProcess> ranks;
  const auto add = [&](int32_t pid, std::string_view text) {
    const auto number = parse_number<int32_t>(text);
    if (!number || *number < 0) return;
    for (ProcessId id = 0; id < run.processes.size(); ++id) {
      if (run.processes[id].pid != pid || !trains[id]) continue;
      const auto [at, fresh] = ranks.try_emplace(*number, RankProcess{*number, id, 0});
      if (fresh) continue;
      ++at->second.restarts;
      if (run.processes[id].start >= run.processes[at->second.process].start) {
        at->second.process = id;
      }
    }
  };
  if (run.training_process < run.processes.size()) {
    add(run.processes[run.training_process].pid, run.fact(std::string(kRankFact)));
  }
  for (const auto& [key, value] : run.info) {
    if (const int32_t pid = pid_of(key)) add(pid, value);
  }
  std::vector<RankProcess> out;
  if (ranks.size() < 2) return out;
  for (const auto& [number, rank] : ranks) out.push_back(rank);
  return out;
}

Run run_of_rank(const Run& run, const RankProcess& rank) {
  const std::vector<bool> family = family_of(run, rank.process);
  Run out;
  out.info = facts_of(run, rank.process);
  out.begin = run.begin;
  out.end = run.end;
  out.strings = run.strings;
  out.frames = run.frames;
  out.stacks = run.stacks;
  out.processes = run.processes;
  out.threads = run.threads;
  out.entities = run.entities;
  out.gaps = run.gaps;
  out.missing = run.missing;
  for (ProcessId id = 0; id < out.processes.size(); ++id) {
    out.processes[id].in_job = out.processes[id].in_job && family[id];
    out.processes[id].main = id == rank.process;
  }
  const Process& process = out.processes[rank.process];
  out.finished = process.ended || run.finished;
  out.wait_status = process.wait_status != -1 ? process.wait_status : run.wait_status;
  if (process.ended && process.end > out.begin) out.end = std::min(out.end, process.end);

  const auto ours = [&](ThreadId thread) { return family[run.threads[thread].process]; };
  for (const Slice& slice : run.slices) {
    if (ours(slice.thread)) out.slices.push_back(slice);
  }
  for (const StackReading& reading : run.readings) {
    if (ours(reading.thread)) out.readings.push_back(reading);
  }
  std::set<int64_t> pids, tids;
  for (ProcessId id = 0; id < family.size(); ++id) {
    if (family[id]) pids.insert(run.processes[id].pid);
  }
  for (const Thread& thread : run.threads) {
    if (family[thread.process]) tids.insert(thread.tid);
  }
  for (const Series& series : run.series) {
    if (series.signal == SignalId::kJobCpu || series.entity >= run.entities.size()) continue;
    const Entity& entity = run.entities[series.entity];
    if (entity.kind == EntityKind::kProcess && !pids.contains(entity.key)) continue;
    if (entity.kind == EntityKind::kThread && !tids.contains(entity.key)) continue;
    out.series.push_back(series);
  }
  find_steps(out);
  return out;
}

void tell_number(const Run& run, Rank& rank) {
  const auto told = [&](std::string_view by_job, const char* by_launcher) {
    const auto number = parse_number<int32_t>(run.fact(std::string(by_job)));
    return number ? number : parse_number<int32_t>(run.fact(by_launcher));
  };
  rank.number = told(kRankFact, "rank").value_or(-1);
  rank.world = told("dist.world_size", "rank.world_size").value_or(0);
}

void align_clocks(std::vector<Rank>& ranks) {
  if (ranks.empty()) return;
  const Rank& first = ranks.front();
  for (size_t r = 1; r < ranks.size(); ++r) {
    Rank& rank = ranks[r];
    if (rank.host == first.host) continue;
    std::vector<int64_t> behind;
    size_t at = 0;
    for (const RankStep& step : rank.judged) {
      while (at < first.judged.size() && first.judged[at].index < step.index) ++at;
      if (at == first.judged.size()) break;
      if (first.judged[at].index == step.index) {
        behind.push_back((first.judged[at].met - step.met).count());
      }
    }
    if (behind.empty()) continue;
    const auto middle = behind.begin() + static_cast<std::ptrdiff_t>(behind.size() / 2);
    std::nth_element(behind.begin(), middle, behind.end());
    rank.clock = Nanos(*middle);
  }
}

}  // namespace flatout::timeline
