// Memory: what presses, what faults, what is compacted.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/contains.h"
#include "base/text.h"
#include "diagnose/blame.h"
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
// Part of a memory limit that a process must have grown by to be why the limit was reached.
constexpr double kMuchOfLimit = 0.25;

/// Signs that memory was short in the steady time.
struct Shortage {
  double stalled = 0;  // share of the time that tasks waited, as the kernel counts it
  double swapped = 0;  // OS pages that were swapped in, a second
  double hits = 0;     // of a control group's limit
  double scans = 0;    // OS pages that were looked at to be freed
  bool swapping() const { return swapped > 50; }
};

Shortage shortage_in(const RunView& view) {
  const double wall = view.seconds();
  const auto most = [&](SignalId signal, double at_least = 0) {
    for (const Series* s : view.run().all(signal)) {
      at_least = std::max(at_least, view.increase(s).value_or(0));
    }
    return at_least;
  };
  const auto of_host = [&](SignalId signal) {
    return view.increase(view.host(signal)).value_or(0);
  };
  Shortage out;
  out.stalled = most(SignalId::kCgroupPsiMemorySome) * 1e-9 / wall;
  out.swapped = of_host(SignalId::kVmSwapIn) / wall;
  out.hits = most(SignalId::kCgroupMemHighEvents, most(SignalId::kCgroupMemMaxEvents));
  out.scans = most(SignalId::kCgroupDirectScan, of_host(SignalId::kVmDirectScan));
  if (out.stalled == 0 && (out.swapped > 10 || out.hits > 0)) {
    out.stalled = of_host(SignalId::kPsiMemorySome) * 1e-9 / wall;
  }
  return out;
}

/// Seconds per step that memory takes to come back. Swapped-in memory shows as waits for storage
/// outside of reads and input, and mapped files that a limit threw out come back by the same
/// faults. Lines that hardly do anything else lose the rest to it, too: faults on cores of a
/// virtual machine count as theirs. `surely`: a limit that is hit in every step leaves no doubt
/// whose doing the faults of a line that also reads are; how much of them is waiting depends on
/// the disk.
double faulting_back(const RunView& view, bool surely) {
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
  const double least_read = surely ? 0.02 : 0.2, thrashes = surely ? kSurelyThrashes : kThrashes;
  return view.per_step(Role::kTrainer, [&](const Cell& c) {
    if (!outside(c)) return false;
    const Line& line = lines[c.user];
    return c.act == Act::kRead || (c.user != 0 && line.read > least_read * line.all &&
                                   line.read + line.kernel > thrashes * line.all);
  });
}

void detect_pressure(const RunView& view, Findings& findings) {
  const Shortage shortage = shortage_in(view);
  if (!shortage.swapping() && shortage.hits <= 0 && shortage.scans <= 0) return;
  const auto waits = [](const Cell& c) {
    return c.role == Role::kTrainer && c.act == Act::kReclaim;
  };
  const double unit = view.has_steps() ? view.steps().mean : 1.0;
  double cost = view.readings(waits) >= kFewReadings ? view.per_step(Role::kTrainer, waits) : 0;
  cost = std::max(cost, std::min(shortage.stalled, 0.95) * unit);
  if (shortage.swapping() || shortage.hits > 0) {
    const double steps = static_cast<double>(std::max<int64_t>(view.steps().count, 1));
    cost = std::max(cost, faulting_back(view, shortage.hits > steps));
  }
  if (findings.has("input.cold_cache") && cost < 0.2 * unit) return;
  Finding* f = findings.add("mem.pressure", "The job waits for memory to be freed", 0.88, cost);
  if (f == nullptr) return;
  const int64_t n = view.steps().count;
  evidence(*f, fmt::format("{} a step go to it", ms(cost)), cost * 1e3, "ms", "stacks", n);
  if (shortage.hits > 0) {
    evidence(
        *f, fmt::format("the control group's limit was hit {} times", format_number(shortage.hits)),
        shortage.hits, "events", "probe.cgroup", n);
  }
  if (shortage.swapping()) {
    evidence(*f,
             fmt::format("{} OS pages a second were swapped in", format_number(shortage.swapped)),
             shortage.swapped, "1/s", "probe.memory", n);
  }
  f->where = view.where([](const Cell& c) {
    return c.role == Role::kTrainer &&
           (c.act == Act::kReclaim || c.act == Act::kRead || c.act == Act::kKernel) &&
           c.part != Part::kInputWait;
  });
  const Grown grown = grown_most(view);
  const auto limit = lowest_limit(view.run(), SignalId::kCgroupMemLimit);
  if (shortage.hits > 0 && limit && grown.by > kMuchOfLimit * *limit) {
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

}  // namespace

void detect_memory(const RunView& view, Findings& findings) {
  detect_growth(view, findings);
  detect_pressure(view, findings);
  detect_page_faults(view, findings);
  detect_compaction(view, findings);
}

}  // namespace flatout::diagnose
