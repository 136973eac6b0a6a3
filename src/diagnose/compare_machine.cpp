#include "diagnose/compare_machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/room.h"

namespace flatout::diagnose {

using model::Change;
using model::Part;
using model::Run;
using model::Series;
using model::SignalId;

namespace {

std::string number(double value, std::string_view unit) {
  if (unit == "bytes") return format_bytes(value);
  if (unit == "Hz") return fmt::format("{} GHz", format_number(value * 1e-9));
  if (unit == "ratio") return format_percent(value);
  return unit.empty() ? format_number(value) : fmt::format("{} {}", format_number(value), unit);
}

/// A quantity of both runs that counts as changed when it moved by more than noise.
void measure(std::vector<Change>& out, std::string what, std::optional<double> before,
             std::optional<double> now, std::string_view unit, double floor,
             std::optional<double> share_ms) {
  if (!before && !now) return;
  const double a = before.value_or(0), b = now.value_or(0);
  if (before && now &&
      std::fabs(a - b) <= std::max(floor, 0.1 * std::max(std::fabs(a), std::fabs(b)))) {
    return;
  }
  if (std::max(std::fabs(a), std::fabs(b)) < floor) return;
  Change change{std::move(what), before ? number(a, unit) : "", now ? number(b, unit) : "", {}, {}};
  if (share_ms && std::fabs(*share_ms) >= 0.01) change.share_ms = share_ms;
  out.push_back(std::move(change));
}

std::optional<double> typical(const RunView& view, SignalId id) {
  std::vector<double> values;
  for (const Series* s : view.run().all(id)) {
    for (const model::Reading& r : s->readings) values.push_back(r.value);
  }
  if (values.empty()) return std::nullopt;
  return median(values);
}

double waited_ms(const RunView& view) {
  return 1e3 * (view.trainer_delay() - view.trainer_delay_in_wait() + view.pool_delay());
}

double stopped_ms(const RunView& view) {
  const CpuView& cpu = view.cpu();
  const double width = std::max(1.0, std::min(std::max(cpu.cores, 1.0), cpu.job + cpu.throttled));
  return 1e3 * view.steps().mean * std::min(0.95, cpu.throttled / width);
}

double disk_ms(const RunView& view) {
  const auto reads = [](const Cell& c) { return c.act == Act::kRead; };
  double seconds = view.per_step(Role::kTrainer, reads);
  if (view.loader().kind == LoaderKind::kProcesses || view.loader().kind == LoaderKind::kThreads) {
    seconds += view.per_step(Role::kProducer, reads) / std::max(view.loader().workers, 1);
  }
  return 1e3 * seconds;
}

double compute_ms(const RunView& view) {
  double seconds = 0;
  for (const Part p : {Part::kForward, Part::kBackward, Part::kOptimizer, Part::kCompute}) {
    seconds += view.steps().part(p);
  }
  return 1e3 * seconds;
}

/// File systems of the big data files that the job had open.
std::string data_fs(const Run& run) {
  std::set<std::string> kinds;
  for (const auto& [key, value] : run.info) {
    if (key.starts_with("data.file.") && key.ends_with(".fs")) kinds.insert(value);
  }
  return fmt::format("{}", fmt::join(kinds, ", "));
}

}  // namespace

std::vector<Change> machine_changes(const RunView& a, const RunView& b, double difference) {
  std::vector<Change> out;
  // A share never exceeds the difference that it is to explain, and never points the other way.
  const auto share = [&](double before, double now) -> std::optional<double> {
    const double moved = now - before;
    if (difference == 0 || moved * difference <= 0) return std::nullopt;
    return std::copysign(std::min(std::fabs(moved), std::fabs(difference)), difference);
  };
  const double a_wait = waited_ms(a), b_wait = waited_ms(b);
  measure(out, "others.cpu_cores", a.cpu().others, b.cpu().others, "cores", 0.1,
          share(a_wait, b_wait));
  if (!b.neighbours().empty() && b.neighbours().front().cores > 0.1) {
    const Neighbour& worst = b.neighbours().front();
    const bool known = std::any_of(
        a.neighbours().begin(), a.neighbours().end(),
        [&](const Neighbour& n) { return n.name == worst.name && n.cores > 0.5 * worst.cores; });
    if (!known) {
      out.push_back({"neighbour",
                     "",
                     fmt::format("{}: {} cores", worst.name, format_number(worst.cores)),
                     {},
                     {}});
    }
  }
  measure(out, "cgroup.throttled", a.cpu().throttled, b.cpu().throttled, "s/s", 0.02,
          share(stopped_ms(a), stopped_ms(b)));
  measure(out, "cgroup.cpu_limit_cores", a.cpu().quota, b.cpu().quota, "cores", 0.01, {});
  const auto cores = [](const RunView& v) {
    return v.cpu().affinity > 0 ? std::optional<double>(v.cpu().affinity) : std::nullopt;
  };
  if (cores(a) && cores(b)) measure(out, "allowed_cores", cores(a), cores(b), "cores", 0.5, {});
  const auto a_clock = typical(a, SignalId::kCpuFrequency),
             b_clock = typical(b, SignalId::kCpuFrequency);
  if (a_clock && b_clock && *b_clock > 0) {
    measure(out, "cpu.frequency_hz", a_clock, b_clock, "Hz", 0.05 * *a_clock,
            share(compute_ms(a), compute_ms(a) * *a_clock / *b_clock));
  }
  const auto g_clock = typical(a, SignalId::kGpuClockSm),
             h_clock = typical(b, SignalId::kGpuClockSm);
  if (g_clock && h_clock && *h_clock > 0) {
    measure(out, "gpu.clock_sm_hz", g_clock, h_clock, "Hz", 0.05 * *g_clock,
            share(compute_ms(a), compute_ms(a) * *g_clock / *h_clock));
  }
  const auto g_power = typical(a, SignalId::kGpuPowerLimit),
             h_power = typical(b, SignalId::kGpuPowerLimit);
  if (g_power && h_power) measure(out, "gpu.power_limit_w", g_power, h_power, "W", 1, {});
  const auto read_rate = [](const RunView& v) {
    return v.process_increase(SignalId::kProcReadBytes, [](model::ProcessId) { return true; }) /
           static_cast<double>(std::max<int64_t>(v.steps().count, 1));
  };
  measure(out, "storage.read_bytes_per_step", read_rate(a), read_rate(b), "bytes", 4096,
          share(disk_ms(a), disk_ms(b)));
  const auto cached = [](const RunView& v) -> std::optional<double> {
    const auto size = typical(v, SignalId::kProcOpenDataBytes);
    const auto in_cache = typical(v, SignalId::kProcOpenDataCached);
    if (!size || !in_cache || *size <= 0) return std::nullopt;
    return *in_cache / *size;
  };
  if (cached(a) && cached(b)) measure(out, "data.cached", cached(a), cached(b), "ratio", 0.05, {});
  if (const std::string x = data_fs(a.run()), y = data_fs(b.run());
      !x.empty() && !y.empty() && x != y) {
    out.push_back({"data.fs", x, y, {}, {}});
  }
  const auto gc = [](const RunView& v) {
    return 1e3 * v.per_step(Role::kTrainer, [](const Cell& c) { return c.act == Act::kGc; });
  };
  measure(out, "gc", gc(a), gc(b), "ms", 0.5, share(gc(a), gc(b)));
  const auto pressed = [](const RunView& v) {
    return 1e3 * v.per_step(Role::kTrainer, [](const Cell& c) { return c.act == Act::kReclaim; });
  };
  measure(out, "memory.reclaim", pressed(a), pressed(b), "ms", 0.5, share(pressed(a), pressed(b)));
  measure(out, "cgroup.mem_limit_bytes", lowest_limit(a.run(), SignalId::kCgroupMemLimit),
          lowest_limit(b.run(), SignalId::kCgroupMemLimit), "bytes", 1, {});
  measure(out, "cgroup.io_limit_read", lowest_limit(a.run(), SignalId::kCgroupIoLimitRead),
          lowest_limit(b.run(), SignalId::kCgroupIoLimitRead), "bytes", 1, {});
  return out;
}

}  // namespace flatout::diagnose
