// What grows until the job ends by it: memory of each step, descriptors, mappings.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/compiling.h"
#include "diagnose/findings.h"

namespace flatout::diagnose {

using model::Finding;
using model::Series;
using model::SignalId;

namespace {

// Growth that would use up the memory within this time is worth telling.
constexpr double kSoon = 3600.0;
constexpr double kForeseeable = 24 * 3600.0;
// Growth is not taken to go on for longer than this many times as long as it was seen.
constexpr double kFarthest = 100;
constexpr double kSomeGrowth = 24.0 * (1 << 20);
// A leak of each step is as steep in each third of the run, but for this factor.
constexpr double kEven = 0.5;
constexpr size_t kFewReadingsOfMemory = 8;

/// Memory that the job may still take: of the control group and of the host, the lesser.
std::optional<double> memory_left(const RunView& view) {
  std::optional<double> left = view.host_last(SignalId::kMemAvailable);
  for (const Series* limit : view.run().all(SignalId::kCgroupMemLimit)) {
    const Series* usage = view.series(SignalId::kCgroupMemUsage, limit->entity);
    const Series* file = view.series(SignalId::kCgroupMemFile, limit->entity);
    if (!limit->last() || usage == nullptr || !usage->last()) continue;
    const double cache = file != nullptr ? file->last().value_or(0) : 0;
    const double room = *limit->last() - (*usage->last() - cache);
    if (!left || room < *left) left = room;
  }
  return left;
}

/// Number of steps done at a time.
double steps_at(const RunView& view, TimePoint t) {
  const auto& steady = view.steps().steady;
  const auto it =
      std::upper_bound(steady.begin(), steady.end(), t,
                       [](TimePoint when, const model::Step* s) { return when < s->end; });
  return static_cast<double>(it - steady.begin());
}

/// Memory of a process over the steps.
struct Growth {
  const Series* series = nullptr;
  model::ProcessId process = model::kNone;
  double slope = 0;  // bytes a step
  double bytes = 0;  // over the steps
};

/// Few readings must all rise, and the last as much as the others.
Growth growth_of_few(std::span<const double> steps, std::span<const double> bytes) {
  const double rise = bytes.back() - bytes.front();
  const double each = rise / static_cast<double>(bytes.size() - 1);
  bool steady = each > 0 && bytes.back() - bytes[bytes.size() - 2] > 0.4 * each;
  for (size_t i = 1; i < bytes.size(); ++i) steady &= bytes[i] - bytes[i - 1] > 0.2 * each;
  if (!steady || rise < 2 * kSomeGrowth || rise < 0.2 * bytes.front()) return {};
  return {.slope = rise / std::max(steps.back() - steps.front(), 1.0), .bytes = rise};
}

/// Growth of a warm-up or of a cache that fills ends; a leak goes on in every part of the run.
Growth growth_of_many(std::span<const double> steps, std::span<const double> bytes) {
  const size_t n = steps.size(), third = n / 3;
  const auto slope = [&](size_t from, size_t to) {
    return theil_sen(steps.subspan(from, to - from), bytes.subspan(from, to - from)).slope;
  };
  const double all = slope(0, n);
  if (all <= 0) return {};
  for (size_t part = 0; part < 3; ++part) {
    const double there = slope(part * third, part == 2 ? n : (part + 1) * third + 1);
    if (there <= kEven * all || there * kEven >= all) return {};
  }
  const double rise = all * (steps.back() - steps.front());
  if (rise < kSomeGrowth || rise < 0.05 * bytes.front()) return {};
  return {.slope = all, .bytes = rise};
}

/// The process of the job that grows most with its steps; none: no series.
Growth most_growth(const RunView& view) {
  const auto& steady = view.steps().steady;
  const auto& processes = view.run().processes;
  Growth most;
  for (model::ProcessId p = 0; p < processes.size(); ++p) {
    const Series* series = processes[p].in_job ? own_memory(view, p) : nullptr;
    if (series == nullptr) continue;
    std::vector<double> steps, bytes;
    for (const model::Reading& r : series->readings) {
      if (r.at < steady.front()->begin || r.at > steady.back()->end) continue;
      steps.push_back(steps_at(view, r.at));
      bytes.push_back(r.value);
    }
    if (steps.size() < 4) continue;
    Growth growth = steps.size() < kFewReadingsOfMemory ? growth_of_few(steps, bytes)
                                                        : growth_of_many(steps, bytes);
    if (growth.bytes <= most.bytes) continue;
    growth.series = series;
    growth.process = p;
    most = growth;
  }
  return most;
}

void detect_leak(const RunView& view, Findings& findings) {
  if (view.steps().count < 20) return;
  const Growth growth = most_growth(view);
  if (growth.series == nullptr) return;
  const auto& steady = view.steps().steady;
  const double seconds = to_s(steady.back()->end - steady.front()->begin);
  const double per_second = growth.bytes / std::max(seconds, 1e-9);
  const auto left = memory_left(view);
  if (!left || *left / per_second > kForeseeable) return;
  // Heaps of many threads and caches grow for a while, too: what nobody is seen to keep must go on
  // for a good part of the time that is left.
  const double until = *left / per_second;
  const auto keeps = grower(view.run(), growth.process, growth.slope);
  if (!keeps && until > kFarthest * seconds) return;
  Finding& f = findings.add_outside("mem.leak", "Memory grows with every step", 0.85);
  f.cost_bytes = growth.slope;
  const auto n = static_cast<int64_t>(growth.series->readings.size());
  evidence(f, fmt::format("{} more each step", format_bytes(growth.slope)), growth.slope, "bytes",
           "probe.processes", n);
  evidence(f, fmt::format("{} so far", format_bytes(growth.bytes)), growth.bytes, "bytes",
           "probe.processes", n);
  if (keeps) {
    f.where = keeps->where;
    evidence(f,
             fmt::format("{} grows: {}", escape_terminal(keeps->name), escape_terminal(keeps->how)),
             growth.slope, "bytes", "agent.growth", n);
  }
  if (!f.where) f.where = touching_line(view, growth.process);
  // What makes it grow is told with its gain, and comes first.
  const bool compiled = !keeps && keeps_compiled(view, findings, *growth.series);
  if (!compiled) f.ends_in_s = until;
  evidence(f, fmt::format("what is left lasts {} more", format_duration(nanos(until * 1e9))), until,
           "s", "probe.memory", n);
  if (compiled) {
    f.title = "Memory grows with every step that compiles: what was compiled is kept";
    compile_once(f);
    return;
  }
  remedy(f, "release",
         "Find what keeps each step's objects (lists of losses or outputs: detach "
         "them, or keep numbers).");
  if (!keeps) {
    remedy(f, "heap",
           "Run it once under flatout heap --leaks -- COMMAND: it names the lines, C++ too, whose "
           "memory only grows.");
  }
}

/// Descriptors or mappings that will have run out soon.
void detect_fds(const RunView& view, Findings& findings) {
  if (findings.has("mem.fds")) return;
  const model::Run& run = view.run();
  const auto check = [&](SignalId used_id, SignalId limit_id, std::string_view what) {
    for (const Series* used : run.all(used_id)) {
      const Series* limit = view.series(limit_id, used->entity);
      if (limit == nullptr || !limit->last() || used->readings.size() < 3) continue;
      // The most that were open: at the end of the job they are closed.
      const auto most = std::max_element(
          used->readings.begin(), used->readings.end(),
          [](const model::Reading& a, const model::Reading& b) { return a.value < b.value; });
      const size_t half = static_cast<size_t>(most - used->readings.begin()) / 2;
      const model::Reading& mid = used->readings[half];
      const double last = most->value, grown = last - mid.value;
      if (*limit->last() <= 0 || half < 2 || most->at <= mid.at) continue;
      // Growth that goes on, and reaches the limit soon.
      const double left = (*limit->last() - last) / std::max(grown / to_s(most->at - mid.at), 1e-9);
      const double before = mid.value - used->readings.front().value;
      if (grown < 16 || grown < 0.3 * before || left > kSoon || last < 0.2 * *limit->last())
        continue;
      Finding& f = findings.add_outside("mem.fds", fmt::format("{} run out", what), 0.85);
      const auto n = static_cast<int64_t>(used->readings.size());
      evidence(f, fmt::format("{} are in use and more each time", format_number(last)), last,
               std::string(what), "probe.processes", n);
      evidence(f, fmt::format("{} are allowed", format_number(*limit->last())), *limit->last(),
               std::string(what), "probe.processes", n);
      f.ends_in_s = left;
      f.where = opening_line(view.run(), used->entity);
      remedy(f, "ulimit", "Raise the limit, close what is not needed, or share by file_system.");
      return;
    }
  };
  check(SignalId::kProcFds, SignalId::kProcFdLimit, "file descriptors");
  if (!findings.has("mem.fds")) {
    check(SignalId::kProcMaps, SignalId::kProcMapsLimit, "memory mappings");
  }
}

}  // namespace

void detect_growth(const RunView& view, Findings& findings) {
  detect_leak(view, findings);
  detect_fds(view, findings);
}

}  // namespace flatout::diagnose
