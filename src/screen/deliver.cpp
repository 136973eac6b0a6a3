#include "screen/deliver.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "probe/nvml_probe.h"
#include "probe/reading.h"

namespace flatout::screen {
namespace {

using model::EntityKind;
using model::SignalId;

class Deliverer {
 public:
  Deliverer(int32_t job, model::Sink& sink) : job_(job), sink_(sink) {}

  void add(const Snapshot& s) {
    // A history that was thinned: the snapshot stands for those before it that went, too.
    window_s_ = last_ == TimePoint{} ? s.interval_s : to_s(s.at - last_);
    last_ = s.at;
    const probe::Deliver host(sink_, probe::host_entity(sink_), s.at);
    add_host(s, host);
    for (const Core& core : s.cores) {
      const auto entity = sink_.entity(EntityKind::kCpu, core.cpu, "", model::kNoEntity);
      count(SignalId::kCpuBusy, entity, s.at, (core.busy() - core.steal) * window_s_ * 1e9);
    }
    int64_t number = 0;
    for (const Disk& disk : s.disks) {
      const auto entity = sink_.entity(EntityKind::kDisk, number++, disk.name, model::kNoEntity);
      count(SignalId::kDiskReadBytes, entity, s.at, disk.read_bytes_per_s * window_s_);
      count(SignalId::kDiskWriteBytes, entity, s.at, disk.write_bytes_per_s * window_s_);
      count(SignalId::kDiskBusy, entity, s.at, disk.busy * window_s_ * 1e9);
      sink_.reading(SignalId::kDiskQueue, entity, s.at, static_cast<double>(disk.in_flight));
    }
    for (const Gpu& gpu : s.gpus) probe::deliver_gpu(gpu.now, {gpu.name, ""}, s.at, sink_);
    add_tasks(s);
  }

 private:
  void add_host(const Snapshot& s, const probe::Deliver& host) {
    const auto entity = probe::host_entity(sink_);
    const double all_ns = window_s_ * 1e9 * static_cast<double>(s.cores.size());
    count(SignalId::kHostCpuBusy, entity, s.at, (s.all.user + s.all.system) * all_ns);
    count(SignalId::kHostCpuIowait, entity, s.at, s.all.iowait * all_ns);
    count(SignalId::kHostCpuSteal, entity, s.at, s.all.steal * all_ns);
    count(SignalId::kHostCpuIdle, entity, s.at, (1 - s.all.busy() - s.all.iowait) * all_ns);
    const auto waited = [&](SignalId signal, const std::optional<double>& share) {
      if (share) count(signal, entity, s.at, *share * window_s_ * 1e9);
    };
    waited(SignalId::kPsiCpuSome, s.cpu_waiting.some);
    waited(SignalId::kPsiIoSome, s.io_waiting.some);
    waited(SignalId::kPsiIoFull, s.io_waiting.full);
    waited(SignalId::kPsiMemorySome, s.memory_waiting.some);
    waited(SignalId::kPsiMemoryFull, s.memory_waiting.full);
    const auto gauge = [&](SignalId signal, uint64_t value) {
      host(signal, static_cast<double>(value));
    };
    gauge(SignalId::kHostRunnable, s.runnable);
    gauge(SignalId::kHostCores, s.cores.size());
    gauge(SignalId::kMemTotal, s.memory.total);
    gauge(SignalId::kMemFree, s.memory.free);
    gauge(SignalId::kMemAvailable, s.memory.available);
    gauge(SignalId::kMemCached, s.memory.cached);
    gauge(SignalId::kMemDirty, s.memory.dirty);
    gauge(SignalId::kSwapTotal, s.memory.swap_total);
    gauge(SignalId::kSwapFree, s.memory.swap_free);
  }

  void add_tasks(const Snapshot& s) {
    std::set<int32_t> job;
    if (job_ != 0) job.insert(job_);
    for (size_t before = 0; before != job.size();) {
      before = job.size();
      for (const Task& t : s.task_list) {
        if (!t.is_thread() && job.contains(t.ppid)) job.insert(t.pid);
      }
    }
    for (const Task& t : s.task_list) {
      if (t.is_thread() || t.kernel) continue;
      const bool in_job = job.contains(t.pid);
      const bool counts = t.cores >= kLeastCores || t.rss_bytes >= kLeastBytes ||
                          t.read_bytes_per_s > 0 || t.write_bytes_per_s > 0;
      if (!in_job && !counts) continue;
      tell(s, t, in_job);
      const auto entity = sink_.entity(in_job ? EntityKind::kProcess : EntityKind::kOther, t.pid,
                                       "", model::kNoEntity);
      const double cpu_ns = static_cast<double>(t.cores) * window_s_ * 1e9;
      count(in_job ? SignalId::kProcCpuUser : SignalId::kOtherCpu, entity, s.at, cpu_ns);
      sink_.reading(in_job ? SignalId::kProcRss : SignalId::kOtherRss, entity, s.at,
                    static_cast<double>(t.rss_bytes));
      if (t.read_bytes_per_s >= 0) {
        count(in_job ? SignalId::kProcReadBytes : SignalId::kOtherReadBytes, entity, s.at,
              static_cast<double>(t.read_bytes_per_s) * window_s_);
        count(in_job ? SignalId::kProcWriteBytes : SignalId::kOtherWriteBytes, entity, s.at,
              static_cast<double>(t.write_bytes_per_s) * window_s_);
      }
    }
  }

  void tell(const Snapshot& s, const Task& t, bool in_job) {
    if (!told_.insert({t.pid, t.start_ticks}).second) return;
    model::Process process;
    process.pid = t.pid;
    process.ppid = t.ppid;
    process.start_time_ticks = t.start_ticks;
    process.start = process.end = s.at;
    process.in_job = in_job;
    process.main = in_job && t.pid == job_;
    process.name = t.comm.data();
    if (t.command != nullptr) process.command = *t.command;
    sink_.process(process);
  }

  void count(SignalId signal, model::EntityId entity, TimePoint at, double increase) {
    double& total = totals_[{signal, entity}];
    total += increase;
    sink_.reading(signal, entity, at, total);
  }

  int32_t job_;
  model::Sink& sink_;
  TimePoint last_{};
  double window_s_ = 0;  // that the snapshot's means stand for
  std::map<std::pair<SignalId, model::EntityId>, double> totals_;
  std::set<std::pair<int32_t, uint64_t>> told_;
};

}  // namespace

void deliver(const History& history, int32_t job, model::Sink& sink) {
  Deliverer deliverer(job, sink);
  for (const auto& snapshot : history.all()) deliverer.add(*snapshot);
}

}  // namespace flatout::screen
