// Memory: what grows, what presses, what faults, what contends, what runs out.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "base/contains.h"
#include "base/stats.h"
#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/compiling.h"
#include "diagnose/findings.h"
#include "diagnose/input.h"
#include "diagnose/room.h"
#include "diagnose/side_work.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::Series;
using model::SignalId;

namespace {

// Growth that would use up the memory within this time is worth telling.
constexpr double kSoon = 3600.0;
constexpr double kForeseeable = 24 * 3600.0;
// Growth is not taken to go on for longer than this many times as long as it was seen.
constexpr double kFarthest = 100;
// Kernel time on a line's time on CPU from which faults are what it mostly does.
constexpr double kFaultsDominate = 0.4;
// A step that has no more than these, or what takes as long, is as steps are.
constexpr double kFewFaults = 500;
// What a fault that zeroes an OS page takes at most, in a virtual machine too.
constexpr double kFaultSeconds = 4e-6;
// The same for a huge page.
constexpr double kHugeFaultSeconds = 0.5e-3;
// Kernel time that lines which mostly fault have of all, below which it is spread over the lines.
constexpr double kSpread = 0.5;
// And the part of the step from which it is more than what a framework's buffers usually take.
constexpr double kMuchFaulting = 0.1;
// What passing a byte and a call of read or write take the kernel, in a virtual machine too; and
// the part of its time up to which faults are what the rest of it is.
constexpr double kPassedByteSeconds = 0.5e-9, kCallSeconds = 3e-6, kFewFiles = 0.3;
// Part of a line's time in waits and work of the kernel from which little else is left of it.
constexpr double kThrashes = 0.6, kSurelyThrashes = 0.4;
constexpr double kSomeGrowth = 24.0 * (1 << 20);
// Part of a memory limit that a process must have grown by to be why the limit was reached.
constexpr double kMuchOfLimit = 0.25;
// A leak of each step is as steep in each third of the run, but for this factor.
constexpr double kEven = 0.5;

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

void detect_leak(const RunView& view, Findings& findings) {
  if (view.steps().count < 20) return;
  const TimePoint begin = view.steps().steady.front()->begin, end = view.steps().steady.back()->end;
  const model::Run& run = view.run();
  const Series* worst = nullptr;
  model::ProcessId whose = model::kNone;
  double slope = 0, grown = 0;
  for (model::ProcessId p = 0; p < run.processes.size(); ++p) {
    if (!run.processes[p].in_job) continue;
    const Series* s = own_memory(view, p);
    if (s == nullptr) continue;
    std::vector<double> x, y;
    for (const model::Reading& r : s->readings) {
      if (r.at < begin || r.at > end) continue;
      x.push_back(steps_at(view, r.at));
      y.push_back(r.value);
    }
    if (x.size() < 4) continue;
    if (x.size() < 8) {
      // Few readings must all rise, and the last as much as the others.
      const double each = (y.back() - y.front()) / static_cast<double>(y.size() - 1);
      bool steady = each > 0 && y.back() - y[y.size() - 2] > 0.4 * each;
      for (size_t i = 1; i < y.size(); ++i) steady &= y[i] - y[i - 1] > 0.2 * each;
      const double rise = y.back() - y.front();
      if (!steady || rise < 2 * kSomeGrowth || rise < 0.2 * y.front() || rise < grown) continue;
      worst = s;
      whose = p;
      grown = rise;
      slope = rise / std::max(x.back() - x.front(), 1.0);
      continue;
    }
    // Growth of a warm-up or of a cache that fills ends; a leak goes on in every part of the run.
    const size_t third = x.size() / 3;
    const auto line = [&](size_t from, size_t to) {
      return theil_sen(std::span(x).subspan(from, to - from), std::span(y).subspan(from, to - from))
          .slope;
    };
    const double all = line(0, x.size());
    if (all <= 0) continue;
    bool even = true;
    for (size_t from = 0; from < 3; ++from) {
      const size_t to = from == 2 ? x.size() : (from + 1) * third + 1;
      const double slope_there = line(from * third, to);
      even &= slope_there > kEven * all && slope_there * kEven < all;
    }
    const double rise = all * (x.back() - x.front());
    if (!even) continue;
    if (rise < kSomeGrowth || rise < 0.05 * y.front()) continue;
    if (rise > grown) {
      worst = s;
      whose = p;
      slope = all;
      grown = rise;
    }
  }
  if (worst == nullptr) return;
  const auto left = memory_left(view);
  const double seconds = to_s(end - begin);
  const double per_second = grown / std::max(seconds, 1e-9);
  if (!left || *left / per_second > kForeseeable) return;
  // Heaps of many threads and caches grow for a while, too: what nobody is seen to keep must go on
  // for a good part of the time that is left.
  const double until = *left / per_second;
  const auto keeps = grower(run, whose, slope);
  if (!keeps && until > kFarthest * seconds) return;
  Finding& f = findings.add_outside("mem.leak", "Memory grows with every step", 0.85);
  f.cost_bytes = slope;
  const auto n = static_cast<int64_t>(worst->readings.size());
  evidence(f, fmt::format("{} more each step", format_bytes(slope)), slope, "bytes",
           "probe.processes", n);
  evidence(f, fmt::format("{} so far", format_bytes(grown)), grown, "bytes", "probe.processes", n);
  if (keeps) {
    f.where = keeps->where;
    evidence(f,
             fmt::format("{} grows: {}", escape_terminal(keeps->name), escape_terminal(keeps->how)),
             slope, "bytes", "agent.growth", n);
  }
  if (!f.where) f.where = touching_line(view, whose);
  // What makes it grow is told with its gain, and comes first.
  const bool compiled = !keeps && keeps_compiled(view, findings, *worst);
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

void detect_pressure(const RunView& view, Findings& findings) {
  const auto waits = [](const Cell& c) {
    return c.role == Role::kTrainer && c.act == Act::kReclaim;
  };
  const double unit = view.has_steps() ? view.steps().mean : 1.0;
  const double wall = view.seconds();
  double cost = view.readings(waits) >= kFewReadings ? view.per_step(Role::kTrainer, waits) : 0;
  double stalled = 0;
  std::string source = "psi";
  for (const Series* s : view.run().all(SignalId::kCgroupPsiMemorySome)) {
    stalled = std::max(stalled, view.increase(s).value_or(0) * 1e-9 / wall);
  }
  const double swapped = view.increase(view.host(SignalId::kVmSwapIn)).value_or(0) / wall;
  double hits = 0, scans = view.increase(view.host(SignalId::kVmDirectScan)).value_or(0);
  for (const Series* s : view.run().all(SignalId::kCgroupMemMaxEvents)) {
    hits = std::max(hits, view.increase(s).value_or(0));
  }
  for (const Series* s : view.run().all(SignalId::kCgroupMemHighEvents)) {
    hits = std::max(hits, view.increase(s).value_or(0));
  }
  for (const Series* s : view.run().all(SignalId::kCgroupDirectScan)) {
    scans = std::max(scans, view.increase(s).value_or(0));
  }
  if (stalled == 0 && (swapped > 10 || hits > 0)) {
    stalled = view.increase(view.host(SignalId::kPsiMemorySome)).value_or(0) * 1e-9 / wall;
  }
  // Swapped-in memory shows as waits for storage outside of reads and input. Lines that hardly do
  // anything else lose the rest to it, too: faults on cores of a virtual machine count as theirs.
  const auto outside = [](const Cell& c) {
    return c.role == Role::kTrainer && c.part != Part::kInputWait && c.part != Part::kCheckpoint;
  };
  struct Line {
    double all = 0, read = 0, kernel = 0;
  };
  std::unordered_map<model::FrameId, Line> lines;
  for (const Cell& c : view.profile().cells()) {
    if (!outside(c)) continue;
    lines[c.user].all += c.seconds;
    if (c.act == Act::kRead || c.act == Act::kReclaim) lines[c.user].read += c.seconds;
    if (in_kernel(c.act)) lines[c.user].kernel += c.seconds;
  }
  const bool swapping = swapped > 50;
  // Mapped files that the limit throws out come back by faults, as swapped memory does. A limit
  // that is hit in every step leaves no doubt whose doing the faults of a line that also reads are;
  // how much of them is waiting depends on the disk.
  const bool thrown_out = hits > 0;
  const double steps = static_cast<double>(std::max<int64_t>(view.steps().count, 1));
  const double least_read = hits > steps ? 0.02 : 0.2;
  const double thrashes = hits > steps ? kSurelyThrashes : kThrashes;
  const double faulting = view.per_step(Role::kTrainer, [&](const Cell& c) {
    if (!outside(c)) return false;
    const Line& line = lines[c.user];
    return c.act == Act::kRead || (c.user != 0 && line.read > least_read * line.all &&
                                   line.read + line.kernel > thrashes * line.all);
  });
  cost = std::max({cost, std::min(stalled, 0.95) * unit, swapping || thrown_out ? faulting : 0});
  if (!swapping && hits <= 0 && scans <= 0) return;
  if (findings.has("input.cold_cache") && cost < 0.2 * unit) return;
  Finding* f = findings.add("mem.pressure", "The job waits for memory to be freed", 0.88, cost);
  if (f == nullptr) return;
  const int64_t n = view.steps().count;
  evidence(*f, fmt::format("{} a step go to it", ms(cost)), cost * 1e3, "ms", "stacks", n);
  if (hits > 0) {
    evidence(*f, fmt::format("the control group's limit was hit {} times", format_number(hits)),
             hits, "events", "probe.cgroup", n);
  }
  if (swapping) {
    evidence(*f, fmt::format("{} OS pages a second were swapped in", format_number(swapped)),
             swapped, "1/s", "probe.memory", n);
  }
  f->where = view.where([](const Cell& c) {
    return c.role == Role::kTrainer &&
           (c.act == Act::kReclaim || c.act == Act::kRead || c.act == Act::kKernel) &&
           c.part != Part::kInputWait;
  });
  const Grown grown = grown_most(view);
  const auto limit = lowest_limit(view.run(), SignalId::kCgroupMemLimit);
  if (hits > 0 && limit && grown.by > kMuchOfLimit * *limit) {
    if (const auto line = growing_line(view, grown)) f->where = line;
    const int64_t pid = view.run().processes[grown.process].pid;
    evidence(
        *f,
        fmt::format("pid {} grew by {} of {}", pid, format_bytes(grown.by), format_bytes(*limit)),
        grown.by, "bytes", "probe.processes", static_cast<int64_t>(grown.series->readings.size()));
    remedy(*f, "release", "Find what keeps each step's objects; a higher limit only lasts longer.");
    return;
  }
  remedy(*f, "limit", "Raise the memory limit, or shrink the working set.");
}

/// The line of the user's that fills fresh memory, as C++ shows in its library's functions for it.
/// Samples of native code are taken outside of the kernel, and a reading's is one from before: so
/// those with the kernel's time do not tell where it goes.
std::optional<model::Where> filling_line(const RunView& view) {
  static constexpr std::array<std::string_view, 4> kFills = {
      "uninitialized_", "_fill_initialize", "_default_initialize", "_default_append"};
  const model::Run& run = view.run();
  std::unordered_map<model::FrameId, double> fills;
  for (const model::StackReading& r : run.readings) {
    if (r.thread != view.trainer()) continue;
    const model::FrameId user = view.stacks().user_frame(r.stack);
    for (model::StackId at = r.stack; user != 0 && at != 0; at = run.stacks[at].parent) {
      const std::string_view name = run.string(run.frames[run.stacks[at].frame].function);
      if (!contains_any(name, kFills)) continue;
      fills[user] += r.weight_us;
      break;
    }
  }
  const auto most = std::ranges::max_element(
      fills, [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == fills.end()) return std::nullopt;
  return view.stacks().where(most->first);
}

void detect_page_faults(const RunView& view, Findings& findings) {
  if (view.steps().count > 0 && !view.has_steps()) return;
  const auto ours = [&](model::ProcessId p) { return p == view.trainer_process(); };
  const double n =
      view.has_steps() ? static_cast<double>(view.steps().count) : view.seconds();  // or seconds
  if (n <= 0) return;
  const double faults = view.process_increase(SignalId::kProcMinorFaults, ours) / n;
  // The kernel may be busy with something else; a fault does not take longer than this.
  const double huge = view.increase(view.host(SignalId::kVmThpFaultAlloc)).value_or(0) / n;
  const double most = faults * kFaultSeconds + huge * kHugeFaultSeconds;
  // Fewer are the ordinary traffic of small buffers.
  if (most < kFewFaults * kFaultSeconds) return;
  struct Line {
    double cpu = 0, kernel = 0, storage = 0;
  };
  std::unordered_map<model::FrameId, Line> lines;
  // After workers were forked, what is written to is copied first: told already.
  const bool forked = findings.has("input.worker_restart");
  const Profile::Filter side_work = told_side_work(view, findings);
  const auto computes = [&](const Cell& c) {
    return c.role == Role::kTrainer && on_cpu(c.act) && c.part != Part::kCheckpoint &&
           !(forked && c.slow_step) && !side_work(c) &&
           (c.traits & (kInSave | kInLogging | kInSpawn | kInSubprocess)) == 0;
  };
  const auto faults_in = [&](const Cell& c) { return computes(c) && in_kernel(c.act); };
  for (const Cell& c : view.profile().cells()) {
    if (c.role == Role::kTrainer && c.act == Act::kRead) lines[c.user].storage += c.seconds;
    if (!computes(c)) continue;
    lines[c.user].cpu += c.seconds;
    if (faults_in(c)) lines[c.user].kernel += c.seconds;
  }
  // The cause is a line that does little else; every framework maps and unmaps some.
  const auto at_lines = [&](const Cell& c) {
    const auto it = lines.find(c.user);
    return faults_in(c) && it != lines.end() &&
           it->second.kernel > kFaultsDominate * it->second.cpu &&
           it->second.storage < 0.2 * it->second.kernel;
  };
  double cost = std::min(view.per_step(Role::kTrainer, at_lines), most);
  // Or no line stands out, and it is all that the kernel does for the thread.
  const double kernel = view.per_step(Role::kTrainer, faults_in);
  const double own =
      view.increase(view.thread(SignalId::kThreadMinorFaults, view.trainer())).value_or(0) / n;
  const double passed = view.process_increase(SignalId::kProcReadChars, ours) +
                        view.process_increase(SignalId::kProcWriteChars, ours);
  const double calls = view.process_increase(SignalId::kProcReadCalls, ours) +
                       view.process_increase(SignalId::kProcWriteCalls, ours);
  const double files = (passed * kPassedByteSeconds + calls * kCallSeconds) / n;
  const double step = view.has_steps() ? view.steps().mean : 1.0;
  // A framework under Python always maps and unmaps some; that is how it works.
  const bool spread = !view.is_python() && cost < kSpread * kernel &&
                      kernel > kMuchFaulting * step && own * kFaultSeconds > kernel &&
                      files < kFewFiles * kernel && !forked && !findings.has("mem.pressure");
  if (spread) cost = kernel - files;
  if (view.readings(spread ? Profile::Filter(faults_in) : at_lines) < kFewReadings) return;
  if (findings.has("input.feed_dict")) cost -= fresh_for_feeding(view);  // told already
  Finding* f = findings.add("mem.page_faults", "Big buffers are mapped and unmapped every step",
                            spread ? 0.75 : 0.88, cost);
  if (f == nullptr) return;
  if (!view.is_python()) f->where = filling_line(view);
  if (!f->where && !spread) f->where = view.where(at_lines);
  if (!view.has_steps()) {
    f->title = "Big buffers are mapped and unmapped again and again";
    f->gain = 1 / (1 - cost);
  }
  const std::string_view each = view.has_steps() ? "a step" : "a second";
  evidence(*f, fmt::format("{} page faults {}", format_number(faults), each), faults, "faults",
           "probe.processes", view.steps().count);
  evidence(*f, "the kernel takes " + per_step_text(view, cost) + " for them", cost * 1e3, "ms",
           "probe.threads", view.steps().count);
  remedy(*f, "buffers",
         "Use the buffers again, or an allocator that keeps them (jemalloc; glibc's with "
         "MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_=17179869184), or huge pages.");
}

void detect_compaction(const RunView& view, Findings& findings) {
  const double wall = view.seconds();
  const double stalls = view.increase(view.host(SignalId::kVmCompactStall)).value_or(0) / wall;
  const double slab = view.host_last(SignalId::kMemSlabReclaimable).value_or(0);
  const double total = view.host_last(SignalId::kMemTotal).value_or(0);
  const bool bloated = slab > 0 && total > 0 && slab > 0.3 * total;
  const double scans = view.increase(view.host(SignalId::kVmDirectScan)).value_or(0) / wall;
  if (stalls < 5 && !(bloated && scans > 100)) return;
  const auto kernel = [](const Cell& c) {
    return c.role == Role::kTrainer && (c.act == Act::kReclaim || c.act == Act::kMemory);
  };
  if (view.readings(kernel) < kFewReadings) return;
  Finding* f = findings.add("mem.compaction", "Allocations stall in compaction and reclaim", 0.75,
                            view.per_step(Role::kTrainer, kernel));
  if (f == nullptr) return;
  findings.drop("mem.pressure");
  evidence(*f, fmt::format("{} allocations a second had to compact first", format_number(stalls)),
           stalls, "1/s", "probe.memory", view.steps().count);
  if (slab > 0) {
    evidence(*f, fmt::format("{} of file-name caches", format_bytes(slab)), slab, "bytes",
             "probe.memory", 1);
  }
  if (const auto free = view.host_last(SignalId::kBuddyFree2M)) {
    evidence(*f, fmt::format("{} free pieces of 2 MiB are left", format_number(*free)), *free,
             "pieces", "probe.memory", 1);
  }
  f->where = view.where(kernel);
  remedy(*f, "huge_pages", "Set transparent huge pages to madvise; drop what bloats the caches.");
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

void detect_memory(const RunView& view, Findings& findings) {
  detect_leak(view, findings);
  detect_pressure(view, findings);
  detect_page_faults(view, findings);
  detect_compaction(view, findings);
  detect_fds(view, findings);
}

}  // namespace flatout::diagnose
