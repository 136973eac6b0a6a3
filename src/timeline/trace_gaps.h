// Gaps in which nothing runs on a device, blamed on what came after (definitions: docs/traces.md).
#pragma once

#include <algorithm>
#include <vector>

#include "timeline/trace_index.h"
#include "timeline/trace_streams.h"

namespace flatout::timeline {

enum class GapBlame : uint8_t {
  kSync,     // the host waited for this device when the gap began, and then launched what came next
  kHost,     // what came next was launched only after the gap began
  kKernel,   // short, and launched in time
  kOther,    // launched in time: it waited for other work
  kUnknown,  // the trace lacks its launch
};

struct DeviceGap {
  int64_t begin = 0, end = 0;
  GapBlame blame = GapBlame::kOther;
  int64_t input = 0;          // of it, a data loader was asked for a batch; not kKernel and kOther
  bool waited = false;        // it began while the host waited for this device; likewise
  model::EventId launch = 0;  // of what came next; kSync and kHost only
};

/// Calls f(gap) for each, in order. `events`: of one device, in order of their start.
template <class F>
void for_each_gap(const TraceIndex& index, const std::vector<TraceIndex::DeviceEvent>& events,
                  F&& f) {
  const model::Trace& trace = index.trace();
  size_t sync = 0;  // calls that wait for the device, those begun before the gap
  int64_t end = trace.end(events.front().event);
  for (size_t i = 1; i < events.size(); ++i) {
    const int64_t start = events[i].start;
    if (start > end) {
      DeviceGap gap{end, start, GapBlame::kOther, 0, false, events[i].launch};
      const auto look_at_host = [&] {
        while (sync < index.syncs().size() && trace.start[index.syncs()[sync]] <= end) ++sync;
        gap.waited = sync > 0 && trace.end(index.syncs()[sync - 1]) >= end;
        gap.input = overlap(index.input(), end, start);
      };
      if (gap.launch != model::kNoEvent && trace.start[gap.launch] > end) {
        look_at_host();
        gap.blame = gap.waited ? GapBlame::kSync : GapBlame::kHost;
      } else if (start - end < kShortGap) {
        gap.blame = GapBlame::kKernel;
      } else if (gap.launch == model::kNoEvent) {
        look_at_host();
        gap.blame = GapBlame::kUnknown;
      }
      f(gap);
    }
    end = std::max(end, trace.end(events[i].event));
  }
}

}  // namespace flatout::timeline
