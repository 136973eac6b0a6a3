#include "diagnose/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/diagnose.h"
#include "diagnose/view.h"

namespace flatout::diagnose {

using model::Change;
using model::Comparison;
using model::Finding;
using model::Part;
using model::Run;
using model::Series;
using model::SignalId;

namespace {

// Facts that differ between any two runs and explain nothing.
bool is_noise(std::string_view key) {
  static constexpr std::array<std::string_view, 14> kParts = {
      "time",  "date", "pid",       "folder", "boot", "exit_code", "wait_status",
      "begin", "end",  "exception", "run.",   "uuid", "id",        "seconds"};
  const size_t dot = key.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? key : key.substr(dot + 1);
  for (const std::string_view part : kParts) {
    if (last == part || (part.ends_with('.') && key.starts_with(part))) return true;
  }
  return key.starts_with("exception") || key.starts_with("flatout.");
}

std::vector<double> lengths_ms(const RunView& view) {
  std::vector<double> out;
  for (const model::Step* s : view.steps().steady) out.push_back(to_ms(s->length()));
  return out;
}

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
  Change change{std::move(what), before ? number(a, unit) : "", now ? number(b, unit) : "", {}};
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

std::optional<double> lowest(const RunView& view, SignalId id) {
  std::optional<double> out;
  for (const Series* s : view.run().all(id)) {
    if (s->last() && (!out || *s->last() < *out)) out = s->last();
  }
  return out;
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

void compare_machine(const RunView& a, const RunView& b, double difference,
                     std::vector<Change>& out) {
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
  const auto gc = [](const RunView& v) {
    return 1e3 * v.per_step(Role::kTrainer, [](const Cell& c) { return c.act == Act::kGc; });
  };
  measure(out, "gc", gc(a), gc(b), "ms", 0.5, share(gc(a), gc(b)));
  const auto pressed = [](const RunView& v) {
    return 1e3 * v.per_step(Role::kTrainer, [](const Cell& c) { return c.act == Act::kReclaim; });
  };
  measure(out, "memory.reclaim", pressed(a), pressed(b), "ms", 0.5, share(pressed(a), pressed(b)));
  measure(out, "cgroup.mem_limit_bytes", lowest(a, SignalId::kCgroupMemLimit),
          lowest(b, SignalId::kCgroupMemLimit), "bytes", 1, {});
  measure(out, "cgroup.io_limit_read", lowest(a, SignalId::kCgroupIoLimitRead),
          lowest(b, SignalId::kCgroupIoLimitRead), "bytes", 1, {});
}

void compare_facts(const Run& a, const Run& b, std::vector<Change>& out) {
  auto before = a.info.begin(), now = b.info.begin();
  const auto differs = [&](const std::string& key, const std::string& x, const std::string& y) {
    if (!is_noise(key) && x != y) out.push_back({key, x, y, {}});
  };
  while (before != a.info.end() || now != b.info.end()) {
    if (now == b.info.end() || (before != a.info.end() && before->first < now->first)) {
      differs(before->first, before->second, "");
      ++before;
    } else if (before == a.info.end() || now->first < before->first) {
      differs(now->first, "", now->second);
      ++now;
    } else {
      differs(before->first, before->second, now->second);
      ++before;
      ++now;
    }
  }
}

const Finding* find(const std::vector<Finding>& all, const std::string& id) {
  const auto it =
      std::find_if(all.begin(), all.end(), [&](const Finding& f) { return f.id == id; });
  return it == all.end() ? nullptr : &*it;
}

}  // namespace

Comparison compare(const Run& before, const Run& now) {
  Comparison out;
  const RunView a(before), b(now);
  const std::vector<double> x = lengths_ms(a), y = lengths_ms(b);
  out.old_steps = static_cast<int64_t>(x.size());
  out.new_steps = static_cast<int64_t>(y.size());
  compare_facts(before, now, out.changes);
  if (x.size() < 5 || y.size() < 5) {
    out.headline = "Too few steps to compare.";
    return out;
  }
  out.old_median_ms = median(x);
  out.new_median_ms = median(y);
  out.ratio = out.new_median_ms / out.old_median_ms;
  out.ratio_interval = bootstrap_median_ratio(y, x, 0.95);
  const double difference = out.new_median_ms - out.old_median_ms;
  for (size_t p = 0; p < model::kPartCount; ++p) {
    // Of the mean step, brought to the median's length as the breakdown is.
    const auto part = [&](const RunView& v, double median_ms) {
      return v.steps().mean > 0 ? v.steps().parts[p] / v.steps().mean * median_ms : 0;
    };
    const double old_ms = part(a, out.old_median_ms), new_ms = part(b, out.new_median_ms);
    if (old_ms > 0 || new_ms > 0) out.parts.push_back({static_cast<Part>(p), old_ms, new_ms});
  }
  const model::Diagnosis old_findings = diagnose(before), new_findings = diagnose(now);
  for (const Finding& f : new_findings.findings) {
    if (find(old_findings.findings, f.id) == nullptr) out.appeared.push_back(f);
  }
  for (const Finding& f : old_findings.findings) {
    if (find(new_findings.findings, f.id) == nullptr) out.vanished.push_back(f);
  }
  std::vector<Change> machine;
  compare_machine(a, b, difference, machine);
  // Shares of causes that overlap add up to no more than there is to explain.
  double shares = 0;
  for (const Change& c : machine) shares += c.share_ms.value_or(0);
  if (std::fabs(shares) > std::fabs(difference) && shares != 0) {
    for (Change& c : machine) {
      if (c.share_ms) *c.share_ms *= difference / shares;
    }
    shares = difference;
  }
  out.unexplained_ms = difference - shares;
  out.changes.insert(out.changes.begin(), machine.begin(), machine.end());
  std::stable_sort(out.changes.begin(), out.changes.end(), [](const Change& l, const Change& r) {
    return std::fabs(l.share_ms.value_or(0)) > std::fabs(r.share_ms.value_or(0));
  });
  if (out.ratio_interval.low > 1) {
    out.verdict = "slower";
  } else if (out.ratio_interval.high < 1) {
    out.verdict = "faster";
  } else {
    out.verdict = "no_difference";
  }
  const double moved = std::fabs(difference);
  if (out.verdict == "no_difference") {
    out.headline = "No difference in speed that could be told from noise.";
    return out;
  }
  out.headline = fmt::format(
      "Steps take {} {} ({} instead of {})", format_duration(nanos(moved * 1e6)),
      out.verdict == "slower" ? "longer" : "less", format_duration(nanos(out.new_median_ms * 1e6)),
      format_duration(nanos(out.old_median_ms * 1e6)));
  const std::vector<Finding>& why = out.verdict == "slower" ? out.appeared : out.vanished;
  if (!why.empty()) {
    out.headline += (out.verdict == "slower" ? ": " : "; no longer: ") + why.front().title;
  }
  out.headline += ".";
  return out;
}

}  // namespace flatout::diagnose
