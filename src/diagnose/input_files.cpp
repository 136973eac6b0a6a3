#include "diagnose/input_files.h"

#include <unordered_map>
#include <unordered_set>

namespace flatout::diagnose {

using model::SignalId;

namespace {

constexpr double kIoLine = 0.25;  // I/O in a line's time from which the line is about I/O
// Opening a small file and reading it takes less than this for each call of read, and most of it
// in the interpreter: then less I/O shows.
constexpr double kReadSeconds = 50e-6, kIoLineOfReads = 0.1;
constexpr double kSmallFile = 64e3;  // bytes of a read from which a file is not small

}  // namespace

bool ReadWork::small() const { return bytes < kSmallFile * calls; }

bool ReadWork::are_all_of(double seconds) const {
  return small() && seconds < kReadSeconds * calls;
}

ReadWork read_work(const RunView& view) {
  const LoaderView& loader = view.loader();
  ReadWork out;
  if (loader.batches == 0) return out;
  const auto ours = [&](model::ProcessId p) {
    return loader.kind == LoaderKind::kProcesses ? view.is_producer_process(p)
                                                 : p == view.trainer_process();
  };
  const double n = static_cast<double>(loader.batches);
  out.faults = view.process_increase(SignalId::kProcMinorFaults, ours) / n;
  out.huge = view.increase(view.host(SignalId::kVmThpFaultAlloc)).value_or(0) / n;
  out.bytes = view.process_increase(SignalId::kProcReadChars, ours) / n;
  out.calls = view.process_increase(SignalId::kProcReadCalls, ours) / n;
  out.writes = view.process_increase(SignalId::kProcWriteCalls, ours) / n;
  out.stored = view.process_increase(SignalId::kProcReadBytes, ours) / n;
  return out;
}

FileWork file_work(const RunView& view, const BatchTimes& times, const ReadWork& read) {
  FileWork out;
  struct Line {
    double all = 0, io = 0;
    int64_t readings = 0, lookups = 0, others = 0;  // others: known to be at other calls
  };
  std::unordered_map<model::FrameId, Line> lines;
  double seconds = 0;
  for (const Cell& c : view.profile().cells()) {
    if (!makes_samples(view, c)) continue;
    seconds += c.seconds;
    Line& line = lines[c.user];
    line.all += c.seconds;
    if (c.act == Act::kKernel || c.act == Act::kMetadata || c.act == Act::kRead) {
      line.io += c.seconds;
      line.readings += c.readings;
    }
    if (c.act == Act::kMetadata) line.lookups += c.readings;
    if (c.act == Act::kRead || c.act == Act::kMemory || c.act == Act::kWrite) {
      line.others += c.readings;
    }
  }
  if (seconds <= 0) return out;
  const double least = read.are_all_of(times.total) ? kIoLineOfReads : kIoLine;
  const double scale = (times.total - times.collate - times.handover) / seconds;
  std::unordered_set<model::FrameId> busy;
  for (const auto& [frame, line] : lines) {
    if (line.io > least * line.all && line.readings >= 2) busy.insert(frame);
  }
  out.cells = [&view, busy = std::move(busy)](const Cell& c) {
    return makes_samples(view, c) &&
           (c.act == Act::kMetadata || c.act == Act::kRead ||
            (on_cpu(c.act) && c.act != Act::kGc && busy.count(c.user) > 0));
  };
  for (const Cell& c : view.profile().cells()) {
    if (!out.cells(c)) continue;
    const double t = c.seconds * scale;
    (c.act == Act::kRead       ? out.blocked
     : c.act == Act::kMetadata ? out.lookups
     : c.act == Act::kKernel   ? out.kernel
                               : out.interpreter) += t;
    const Line& line = lines[c.user];
    const RunView::NativeCalls native = view.native_calls(c.user);
    const int64_t lookups = line.lookups + native.lookups;
    if (c.act == Act::kKernel) {
      if (lookups > line.others) {
        out.by_lookups += t;
      } else if (native.unclear > 0 && line.others + native.others == 0) {
        out.by_unknown += t;
      }
    }
  }
  return out;
}

}  // namespace flatout::diagnose
