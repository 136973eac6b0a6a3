#include "report/curves.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace flatout::report {
namespace {

using model::Run;
using model::Series;
using model::SignalId;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool known(const Curve& c) {
  return std::any_of(c.values.begin(), c.values.end(), [](double v) { return !std::isnan(v); });
}

void accumulate(double& sum, std::optional<double> value) {
  if (value) sum = std::isnan(sum) ? *value : sum + *value;
}

/// Sum of the counters' increase per second.
Curve rate(std::string label, const std::vector<const Series*>& list, const Buckets& b,
           double scale = 1) {
  Curve curve{std::move(label), std::vector<double>(b.count, kNan)};
  for (const Series* s : list) {
    for (size_t i = 0; i < b.count; ++i) {
      std::optional<double> inc = s->increase(b.start(i), b.start(i + 1));
      if (inc) *inc *= scale / to_s(b.width);
      accumulate(curve.values[i], inc);
    }
  }
  return curve;
}

/// Sum of the gauges. A series counts only while it was being read.
Curve level(std::string label, const std::vector<const Series*>& list, const Buckets& b,
            bool limit = false) {
  Curve curve{std::move(label), std::vector<double>(b.count, kNan), limit};
  for (const Series* s : list) {
    if (s->empty()) continue;
    for (size_t i = 0; i < b.count; ++i) {
      const TimePoint end = b.start(i + 1);
      // A limit or a slow gauge holds until it is read again; a process's memory ends with it.
      const bool alive =
          s->readings.front().at <= end &&
          (limit || s->readings.back().at + 2 * b.width + std::chrono::seconds(2) >= b.start(i));
      if (alive) accumulate(curve.values[i], s->at(end));
    }
  }
  return curve;
}

std::vector<const Series*> of_entity(const Run& run, SignalId signal, model::EntityId entity) {
  const Series* s = entity == model::kNoEntity ? nullptr : run.find(signal, entity);
  return s == nullptr ? std::vector<const Series*>{} : std::vector<const Series*>{s};
}

std::string entity_name(const Run& run, const Series& s) {
  return s.entity < run.entities.size() ? run.entities[s.entity].name : std::string("?");
}

class ChartList {
 public:
  void add(std::string id, std::string title, std::string unit, std::vector<Curve> curves) {
    Chart chart{std::move(id), std::move(title), std::move(unit), {}};
    bool measured = false;
    for (Curve& c : curves) {
      if (!known(c)) continue;
      measured = measured || !c.limit;
      chart.curves.push_back(std::move(c));
    }
    if (measured) charts_.push_back(std::move(chart));
  }
  std::vector<Chart> take() { return std::move(charts_); }

 private:
  std::vector<Chart> charts_;
};

std::vector<const Series*> joined(std::vector<const Series*> a,
                                  const std::vector<const Series*>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void cpu_charts(const Run& run, const Buckets& b, ChartList& list) {
  std::vector<const Series*> job = run.all(SignalId::kJobCpu);
  if (job.empty()) job = joined(run.all(SignalId::kProcCpuUser), run.all(SignalId::kProcCpuSystem));
  list.add("cpu", "Processor", "cores",
           {rate("this job", job, b, 1e-9),
            rate("other processes", run.all(SignalId::kOthersCpu), b, 1e-9),
            level("cores", run.all(SignalId::kHostCores), b, true),
            level("quota", run.all(SignalId::kCgroupCpuLimit), b, true)});

  model::EntityId training = model::kNoEntity;
  if (run.steps.source != model::StepSource::kNone && run.steps.thread < run.threads.size()) {
    training = run.entity(model::EntityKind::kThread, run.threads[run.steps.thread].tid);
  }
  const std::vector<const Series*> own = of_entity(run, SignalId::kThreadRunDelay, training);
  std::vector<const Series*> rest = run.all(SignalId::kThreadRunDelay);
  if (!own.empty()) rest.erase(std::find(rest.begin(), rest.end(), own[0]));
  list.add("run_delay", "Threads waiting for a core", "tasks",
           {rate("training thread", own, b, 1e-9),
            rate(own.empty() ? "threads of the job" : "other threads of the job", rest, b, 1e-9)});
  list.add("throttled", "Stopped by the CPU quota", "tasks",
           {rate("time stopped", run.all(SignalId::kCgroupThrottledTime), b, 1e-9)});
}

void disk_charts(const Run& run, const Buckets& b, ChartList& list) {
  list.add("disk", "Disk", "bytes/s",
           {rate("read by the job", run.all(SignalId::kProcReadBytes), b),
            rate("written by the job", run.all(SignalId::kProcWriteBytes), b),
            rate("read, whole machine", run.all(SignalId::kDiskReadBytes), b),
            rate("written, whole machine", run.all(SignalId::kDiskWriteBytes), b)});
  std::vector<std::pair<double, const Series*>> busy;
  for (const Series* s : run.all(SignalId::kDiskBusy)) {
    busy.emplace_back(s->increase(run.begin, run.end).value_or(0), s);
  }
  std::stable_sort(busy.begin(), busy.end(),
                   [](const auto& x, const auto& y) { return x.first > y.first; });
  std::vector<Curve> curves;
  for (size_t i = 0; i < busy.size() && i < 3; ++i) {
    curves.push_back(rate(entity_name(run, *busy[i].second), {busy[i].second}, b, 1e-9));
  }
  list.add("disk_busy", "Disk busy", "ratio", std::move(curves));
}

void memory_charts(const Run& run, const Buckets& b, ChartList& list) {
  std::vector<const Series*> usage;
  std::vector<const Series*> limit;
  // The job's own group only: its parents hold the same bytes again.
  const model::EntityId group = run.entity(model::EntityKind::kCgroup, 0);
  usage = of_entity(run, SignalId::kCgroupMemUsage, group);
  limit = of_entity(run, SignalId::kCgroupMemLimit, group);
  list.add("memory", "Memory", "bytes",
           {level("job, resident", run.all(SignalId::kProcRss), b),
            level("page cache", run.all(SignalId::kMemCached), b),
            level("available", run.all(SignalId::kMemAvailable), b),
            level("control group", usage, b), level("limit", limit, b, true)});
  list.add("faults", "Page faults of the job", "1/s",
           {rate("minor", run.all(SignalId::kProcMinorFaults), b),
            rate("major (wait for disk)", run.all(SignalId::kProcMajorFaults), b)});
  list.add("pressure", "Pressure (some task waits)", "ratio",
           {rate("processor", run.all(SignalId::kPsiCpuSome), b, 1e-9),
            rate("disk", run.all(SignalId::kPsiIoSome), b, 1e-9),
            rate("memory", run.all(SignalId::kPsiMemorySome), b, 1e-9)});
  list.add("swap", "Swap", "1/s",
           {rate("pages in", run.all(SignalId::kVmSwapIn), b),
            rate("pages out", run.all(SignalId::kVmSwapOut), b)});
}

void gpu_charts(const Run& run, const Buckets& b, ChartList& list) {
  std::vector<Curve> use;
  std::vector<Curve> memory;
  for (const Series* s : run.all(SignalId::kGpuUtil)) {
    if (use.size() < 8) use.push_back(level(entity_name(run, *s), {s}, b));
  }
  for (const Series* s : run.all(SignalId::kGpuMemUsed)) {
    if (memory.size() < 8) memory.push_back(level(entity_name(run, *s), {s}, b));
  }
  list.add("gpu", "GPU: time with a kernel running", "ratio", std::move(use));
  list.add("gpu_memory", "GPU memory in use", "bytes", std::move(memory));
}

void job_counters(const Run& run, const Buckets& b, ChartList& list) {
  size_t count = 0;
  for (const Series* s : run.all(SignalId::kJobCounter)) {
    if (count >= 8) break;
    const std::string name = entity_name(run, *s);
    list.add("counter" + std::to_string(count++), name, "1", {level(name, {s}, b)});
  }
}

}  // namespace

Buckets make_buckets(const Run& run, size_t most) {
  Buckets b;
  b.begin = run.begin;
  const Nanos length = std::max(run.end - run.begin, Nanos(1));
  // Not finer than what was read: the series with the most readings tells how often that was.
  size_t readings = 0;
  for (const Series& s : run.series) readings = std::max(readings, s.readings.size());
  b.count = std::clamp<size_t>(readings, 1, std::max<size_t>(most, 1));
  b.width = std::max(length / static_cast<int64_t>(b.count), Nanos(1));
  return b;
}

std::vector<Chart> make_charts(const Run& run, const Buckets& buckets) {
  ChartList list;
  cpu_charts(run, buckets, list);
  disk_charts(run, buckets, list);
  memory_charts(run, buckets, list);
  gpu_charts(run, buckets, list);
  job_counters(run, buckets, list);
  return list.take();
}

}  // namespace flatout::report
