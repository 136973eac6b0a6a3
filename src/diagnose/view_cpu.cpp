// Whose the cores were: the job's, its parts', other processes', nobody's.
#include <algorithm>
#include <cmath>

#include "diagnose/room.h"
#include "diagnose/view.h"

namespace flatout::diagnose {

using model::SignalId;
using model::ThreadId;

double RunView::cores_of(const std::function<bool(model::ProcessId)>& which) const {
  return (process_increase(SignalId::kProcCpuUser, which) +
          process_increase(SignalId::kProcCpuSystem, which)) *
         1e-9 / seconds();
}

void RunView::find_cpu() {
  if (seconds() <= 0) return;
  find_host_cpu();
  find_job_cpu();
  find_usable_cores();
  find_throttling();
}

void RunView::find_host_cpu() {
  const auto rate = [&](SignalId signal) {
    return increase(host(signal)).value_or(0) / seconds() * 1e-9;
  };
  cpu_.cores = host_last(SignalId::kHostCores).value_or(0);
  cpu_.idle_known = increase(host(SignalId::kHostCpuIdle)).has_value();
  cpu_.idle = rate(SignalId::kHostCpuIdle) + rate(SignalId::kHostCpuIowait);
  cpu_.busy = rate(SignalId::kHostCpuBusy);
  if (cpu_.cores <= 0 && cpu_.idle_known) cpu_.cores = std::round(cpu_.idle + cpu_.busy);
  cpu_.others = rate(SignalId::kOthersCpu);
  cpu_.stolen = rate(SignalId::kHostCpuSteal);
}

void RunView::find_job_cpu() {
  cpu_.job = cores_of([](model::ProcessId) { return true; });
  if (const auto total = increase(host(SignalId::kJobCpu))) {
    cpu_.job = std::max(cpu_.job, *total * 1e-9 / seconds());
  }
  cpu_.trainer = cores_of([&](model::ProcessId p) { return p == trainer_process_; });
  cpu_.producers = cores_of([&](model::ProcessId p) { return is_producer_process(p); });
  double threads = 0;  // producers within the training process
  for (ThreadId t = 0; t < roles_.size(); ++t) {
    const double cores = increase(thread(SignalId::kThreadOnCpu, t)).value_or(0) * 1e-9 / seconds();
    if (roles_[t] == Role::kPool) cpu_.pool += cores;
    if (roles_[t] == Role::kProducer && run_.threads[t].process == trainer_process_) {
      threads += cores;
    }
  }
  if (loader_.graph && loader_.kind == LoaderKind::kThreads) {
    threads = std::min(loader_.fetch / steps_.mean, cpu_.job);  // none of them has that name
  }
  if (loader_.kind == LoaderKind::kThreads) {
    cpu_.producers += threads;
    cpu_.trainer = std::max(0.0, cpu_.trainer - threads);
  }
}

/// By masks and quotas.
void RunView::find_usable_cores() {
  const auto last = [](const model::Series* s) {
    return s != nullptr ? s->last() : std::optional<double>();
  };
  const auto of_process = [&](model::ProcessId p) {
    return last(process(SignalId::kProcAllowedCores, p));
  };
  cpu_.affinity = last(thread(SignalId::kThreadAllowedCores, trainer_))
                      .value_or(of_process(trainer_process_).value_or(0));
  cpu_.quota = lowest_limit(run_, SignalId::kCgroupCpuLimit);
  cpu_.usable = cpu_.cores;
  if (cpu_.affinity > 0) cpu_.usable = std::min(cpu_.usable, cpu_.affinity);
  if (cpu_.quota && cpu_.usable > 0) cpu_.usable = std::min(cpu_.usable, *cpu_.quota);
  for (model::ProcessId p = 0; p < run_.processes.size(); ++p) {
    if (is_producer_process(p)) loader_.mask = std::max(loader_.mask, of_process(p).value_or(0));
  }
  if (loader_.mask >= std::floor(cpu_.usable)) loader_.mask = 0;
}

// A quota stands at one level of the hierarchy; the level that stops most counts.
void RunView::find_throttling() {
  for (const model::Series* s : run_.all(SignalId::kCgroupThrottledTime)) {
    cpu_.throttled = std::max(cpu_.throttled, increase(s).value_or(0) * 1e-9 / seconds());
  }
  for (const model::Series* s : run_.all(SignalId::kCgroupThrottled)) {
    const double stopped = increase(s).value_or(0);
    const double periods = increase(series(SignalId::kCgroupPeriods, s->entity)).value_or(0);
    if (periods > 0) {
      cpu_.throttled_periods = std::max(cpu_.throttled_periods, stopped / periods);
    }
  }
}

namespace {

// Share of the job's CPU time that nobody's account may hold without anybody beside the job.
constexpr double kNobodys = 0.08;
constexpr double kLeastCores = 0.02;  // that a process must use to be a neighbour

void sort_by_cores(std::vector<Neighbour>& processes) {
  std::sort(processes.begin(), processes.end(),
            [](const Neighbour& a, const Neighbour& b) { return a.cores > b.cores; });
}

}  // namespace

std::vector<Neighbour> RunView::programs_beside() const {
  std::vector<Neighbour> out;
  if (seconds() <= 0) return out;
  for (model::ProcessId p = 0; p < run_.processes.size(); ++p) {
    if (p == trainer_process_ || is_producer_process(p)) continue;
    const double cores = cores_of([p](model::ProcessId q) { return q == p; });
    if (cores < kLeastCores) continue;
    out.push_back({run_.processes[p].name, run_.processes[p].pid, cores});
  }
  sort_by_cores(out);
  return out;
}

void RunView::find_neighbours() {
  const double wall = seconds();
  if (wall <= 0) return;
  for (const model::Series* s : run_.all(SignalId::kOtherCpu)) {
    const double cores = increase(s).value_or(0) * 1e-9 / wall;
    if (cores < kLeastCores || s->entity >= run_.entities.size()) continue;
    const model::Entity& e = run_.entities[s->entity];
    neighbours_.push_back({e.name, e.key, cores});
  }
  sort_by_cores(neighbours_);
  // What is in no process's account, up to a part of the job's own: the kernel's work between its
  // threads, and host times that are counted in ticks.
  double named = 0;
  for (const Neighbour& other : neighbours_) named += other.cores;
  if (cpu_.others - named < kNobodys * cpu_.job) cpu_.others = std::min(cpu_.others, named);
}

}  // namespace flatout::diagnose
