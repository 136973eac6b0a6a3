#include "timeline/trace_streams.h"

#include <algorithm>
#include <map>

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

struct Stream {
  StreamSummary out;
  int64_t end = 0;
  struct Change {
    int64_t time;
    int32_t by;
  };
  std::vector<Change> changes;  // +1 where a launch begins, -1 where the device begins with it
};

void measure_queue(Stream& stream) {
  auto& changes = stream.changes;
  if (changes.empty()) return;
  std::stable_sort(changes.begin(), changes.end(), [](const auto& a, const auto& b) {
    return a.time != b.time ? a.time < b.time : a.by > b.by;
  });
  int64_t length = 0;
  double area = 0;
  int64_t last = changes.front().time;
  for (const auto& change : changes) {
    area += static_cast<double>(length) * static_cast<double>(change.time - last);
    last = change.time;
    length += change.by;
    stream.out.queue_max = std::max(stream.out.queue_max, length);
  }
  const int64_t span = last - changes.front().time;
  if (span > 0) stream.out.queue_mean = area / static_cast<double>(span);
}

}  // namespace

std::vector<StreamSummary> summarize_streams(const TraceIndex& index,
                                             const std::vector<TraceIndex::DeviceEvent>& events) {
  const Trace& trace = index.trace();
  std::map<int64_t, Stream> streams;
  for (const auto& [start, event, launch] : events) {
    const int64_t id = trace.track_of(event).stream;
    Stream& s = streams[id];
    if (s.out.events == 0) {
      s.out.stream = id;
    } else if (start > s.end) {
      const int64_t gap = start - s.end;
      if (launch != kNoEvent && trace.start[launch] > s.end) {
        s.out.idle.host_wait += gap;
      } else if (gap < kShortGap) {
        s.out.idle.kernel_wait += gap;
      } else {
        s.out.idle.other += gap;
      }
    }
    s.end = s.out.events == 0 ? trace.end(event) : std::max(s.end, trace.end(event));
    ++s.out.events;
    if (launch == kNoEvent) {
      ++s.out.uncorrelated;
    } else {
      s.changes.push_back({trace.start[launch], 1});
      s.changes.push_back({start, -1});
    }
  }
  std::vector<StreamSummary> out;
  for (auto& [id, stream] : streams) {
    measure_queue(stream);
    out.push_back(stream.out);
  }
  return out;
}

}  // namespace flatout::timeline
