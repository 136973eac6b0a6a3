#include "diagnose/whatif.h"

#include <algorithm>

namespace flatout::diagnose {

using model::Part;

// What a batch that comes from a worker costs the training thread, beyond one that it makes itself:
// descriptors passed over a socket, a mapping for each tensor. PyTorch's own code takes 0.6 ms for
// a batch of two tensors on a fast host, 2 ms in a small virtual machine.
constexpr double kTakeBatch = 1e-3;
// And for each byte, on either side: shared memory is touched OS page by OS page, a fault each.
constexpr double kTakeByte = 0.25e-9;
// Work that comes to run on all cores takes this many times as long: they share caches and memory.
constexpr double kBeside = 1.15;
// Of the time that a step leaves producers for its batch: who takes less is hardly ever late.
constexpr double kTimeToSpare = 0.8;

WhatIf::WhatIf(const RunView& view) {
  const StepsView& steps = view.steps();
  const LoaderView& loader = view.loader();
  const CpuView& cpu = view.cpu();
  step_ = steps.count > 0 ? steps.mean : 1.0;
  wait_ = steps.part(Part::kInputWait);
  serial_ = loader.kind == LoaderKind::kSerial;
  pipeline_ = loader.kind == LoaderKind::kProcesses || loader.kind == LoaderKind::kThreads;
  fetch_ = loader.fetch;
  workers_ = std::max(loader.workers, 1);
  if (loader.batches > 0 && steps.count > 0) {
    per_step_ = static_cast<double>(loader.batches) / static_cast<double>(steps.count);
  }
  // What remains of an input wait when a batch lies ready: taking it out of the queue. Where in a
  // graph the wait is is not known, and what the thread does then may be the graph's own work.
  const double handling =
      pipeline_ && !loader.graph
          ? view.trainer_in(Part::kInputWait, [](const Cell& c) { return on_cpu(c.act); })
          : 0;
  handling_ = std::min(handling, wait_);
  compute_ = step_ - wait_ + handling_;
  cpu_fetch_ = cpu.producers * step_;
  cpu_main_ = std::max(0.0, cpu.job - cpu.producers) * step_;
  host_ = cpu.cores;
  others_ = cpu.others;
  computing_ = view.per_step(
      Role::kTrainer, [](const Cell& c) { return on_cpu(c.act) && c.part != Part::kInputWait; });
  cores_ = cpu.usable;
  // Neighbours keep what they have, up to their fair share.
  cores_ -= std::min(cpu.others, 0.5 * cores_);
  cores_ = std::max(cores_, cpu.job);
  // Waiting for cores in the compute phases that the producers are to blame for.
  const double rivals = cpu.producers + cpu.others;
  if (rivals > 0 && pipeline_) {
    const double delay = view.trainer_delay() - view.trainer_delay_in_wait() + view.pool_delay();
    competing_ = std::clamp(delay, 0.0, 0.7 * compute_) * cpu.producers / rivals;
  }
  take_ = kTakeBatch + kTakeByte * loader.batch_bytes;
  if (pipeline_) {
    const double even = bound(compute_, fetch_, workers_, cpu_main_ + cpu_fetch_, cores_);
    const double wait = step_ - compute_, expected = even - compute_;
    // Producers with time to spare are not what makes a step wait now and then.
    late_ = 1;
    if (expected <= 0 && compute_ > 0) {
      const double load = fetch_ * per_step_ / workers_ / compute_;
      late_ = std::clamp((load - kTimeToSpare) / (1 - kTimeToSpare), 0.0, 1.0);
    }
    uneven_ = std::max(0.0, wait - expected);
    if (expected > wait && expected > 0) exposed_ = wait / expected;
  }
}

double WhatIf::bound(double compute, double fetch, int workers, double cpu, double cores) const {
  double step = std::max(compute, fetch * per_step_ / workers);
  if (cores > 0) step = std::max(step, cpu / cores);
  return step;
}

double WhatIf::on_all_cores() const {
  if (cores_ <= 0) return 0;
  const double cpu = cpu_main_ + cpu_fetch_;
  const double beside_now = std::max(cpu / step_ - 1, 0.0);
  return cpu / cores_ * beside(cores_ - 1) / beside(beside_now);
}

double WhatIf::beside(double busy) const {
  return host_ <= 1 ? 1 : 1 + (kBeside - 1) * std::clamp(busy / (host_ - 1), 0.0, 1.0);
}

/// What the training thread's `computing` takes less beside `then` busy cores than beside `now`;
/// no more than what brings them to rest has `saved` by itself.
double WhatIf::relieved(double computing, double now, double then, double saved) const {
  return std::min(computing * (1 - beside(then) / beside(now)), std::max(saved, 0.0));
}

double WhatIf::step_with(const Relief& relief) const {
  const double per_step = per_step_;
  if (!pipeline_) {
    double step = step_ - relief.trainer;
    if (serial_ && relief.workers > 0) {
      // The batches made aside, at the same cost, as fast as the cores allow.
      const double left = step - wait_;
      const double cpu = cpu_main_ - relief.trainer_cpu - relief.fetch_cpu * per_step;
      const double take = take_ * per_step;
      double aside =
          std::max(left + take, (wait_ - relief.fetch * per_step + take) / relief.workers);
      const double cores = cores_ + relief.cores;
      if (cores > 0) aside = std::max(aside, kBeside * (cpu + 2 * take) / cores);
      return std::min(step, aside);
    }
    if (serial_) step -= std::min(relief.fetch * per_step, wait_);
    const double computing = std::clamp(computing_ - relief.trainer_cpu, 0.0, std::max(step, 0.0));
    step -= relieved(computing, others_, others_ - relief.others, step_ - step);
    return std::max(step, 0.001 * step_);
  }
  double compute = compute_ - relief.trainer - std::min(relief.handling, handling_);
  if (cpu_fetch_ > 0) {
    compute -= competing_ * std::clamp(relief.fetch_cpu * per_step / cpu_fetch_, 0.0, 1.0);
  }
  const double fetch = std::max(0.0, fetch_ - relief.fetch);
  const double cpu = std::max(0.0, cpu_main_ - relief.trainer_cpu) +
                     std::max(0.0, cpu_fetch_ - relief.fetch_cpu * per_step);
  const int workers = relief.workers > 0 ? relief.workers : workers_;
  // Batches that come unevenly are waited for the less, the less each takes.
  double uneven = std::max(0.0, uneven_ - relief.uneven);
  if (fetch_ > 0) {
    const double less = fetch / fetch_ * workers_ / std::max(workers, workers_);
    uneven *= 1 - late_ * (1 - less);
  }
  const auto step_of = [&](double own) {
    const double bounded = bound(own, fetch, workers, cpu, cores_ + relief.cores);
    return std::clamp(own + (bounded - own) * exposed_ + uneven, 0.001 * step_, step_);
  };
  const double step = step_of(compute);
  const double fetching = std::max(0.0, cpu_fetch_ - relief.fetch_cpu * per_step);
  const double computing = std::clamp(computing_ - relief.trainer_cpu, 0.0, compute);
  return step_of(compute - relieved(computing, cpu_fetch_ / step_ + others_,
                                    fetching / step + others_ - relief.others, step_ - step));
}

}  // namespace flatout::diagnose
