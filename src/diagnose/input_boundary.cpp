// The border to the device: batches fed to TensorFlow by hand, copies that block.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "diagnose/input.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::Slice;
using model::SliceKind;

Fed fed(const RunView& view) {
  Fed out;
  for (const Slice& s : view.run().slices) {
    if (s.kind != SliceKind::kFeed || s.thread != view.trainer()) continue;
    ++out.calls;
    out.bytes += static_cast<double>(s.value);
  }
  return out;
}

bool fed_by_hand(const RunView& view) {
  const int64_t calls = fed(view).calls;
  return calls > 0 && 2 * calls >= view.steps().count;
}

double fresh_for_feeding(const RunView& view) {
  const Fed all = fed(view);
  const auto ours = [&](model::ProcessId p) { return p == view.trainer_process(); };
  const double faults = view.process_increase(model::SignalId::kProcMinorFaults, ours) /
                        static_cast<double>(view.steps().count);
  if (all.bytes <= 0 || faults <= 0) return 0;
  const double kernel =
      view.trainer_in(Part::kForward, [](const Cell& c) { return in_kernel(c.act); });
  const double pages = all.bytes / static_cast<double>(all.calls) / kOsPageBytes;
  return std::min(1.0, pages / faults) * kernel;
}

void detect_boundary(const RunView& view, Findings& findings) {
  const model::Run& run = view.run();
  const double n = static_cast<double>(view.steps().count);
  double feed = 0, copies = 0, pageable = 0, blocking = 0, bytes = 0;
  int64_t feeds = 0, count = 0;
  size_t step = 0;
  const auto& steady = view.steps().steady;
  for (const Slice& s : run.slices) {
    if (s.kind != SliceKind::kFeed && s.kind != SliceKind::kH2d) continue;
    while (step < steady.size() && steady[step]->end < s.end) ++step;
    if (step >= steady.size()) break;
    if (s.begin < steady[step]->begin || s.thread != view.trainer()) continue;
    const double length = to_s(s.length());
    if (s.kind == SliceKind::kFeed) {
      feed += length;
      ++feeds;
      continue;
    }
    copies += length;
    ++count;
    bytes += static_cast<double>(s.value);
    if ((s.value2 & 1) != 0) pageable += length;
    if ((s.value2 & 3) != 0) blocking += length;
  }
  feed = feed / n + (feeds > 0 ? fresh_for_feeding(view) : 0);
  // The loop makes the batches itself, too.
  if (fed_by_hand(view) && !view.loader().measured) feed += view.steps().part(Part::kInputWait);
  if (Finding* f =
          findings.add("input.feed_dict", "Batches enter TensorFlow through Python", 0.9, feed)) {
    f->where = view.where([](const Cell& c) {
      return c.role == Role::kTrainer && (c.part == Part::kInputWait || c.part == Part::kOther);
    });
    evidence(*f, fmt::format("feeding takes {} a step", format_duration(nanos(feed * 1e9))),
             feed * 1e3, "ms", "agent.feed", feeds);
    remedy(*f, "dataset", "Build the input with the Dataset API and native operations.");
  }
  if (Finding* f = findings.add("input.h2d_sync",
                                pageable > 0.5 * copies
                                    ? "Copies to the device come from pageable memory and block"
                                    : "Copies to the device block the step",
                                0.9, blocking / n)) {
    f->where =
        view.where([](const Cell& c) { return c.role == Role::kTrainer && c.part == Part::kH2d; });
    evidence(*f, fmt::format("copies block {} a step", format_duration(nanos(blocking / n * 1e9))),
             blocking / n * 1e3, "ms", "agent.h2d", count);
    evidence(*f, fmt::format("{} are copied a step", format_bytes(bytes / n)), bytes / n, "bytes",
             "agent.h2d", count);
    remedy(*f, "pin_memory", "Use pin_memory=True and copy with non_blocking=True.");
  }
}

}  // namespace flatout::diagnose
