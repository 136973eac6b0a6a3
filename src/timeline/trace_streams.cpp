#include "timeline/trace_streams.h"

#include <algorithm>
#include <deque>
#include <map>

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

// How many launches of a stream wait for their begin. A stream begins them in the order in which
// they were made: then those that wait are all that has to be held.
class Queue {
 public:
  void add(int64_t launch, int64_t begin) {
    ++count_;
    waited_ += static_cast<__int128>(begin) - launch;
    first_ = std::min({first_, launch, begin});
    last_ = std::max({last_, launch, begin});
    in_order_ = in_order_ && launch >= latest_ && launch <= begin;
    if (!in_order_) return;
    latest_ = launch;
    // What begins at the very moment of a launch still waits then.
    while (!waiting_.empty() && waiting_.front() < launch) waiting_.pop_front();
    waiting_.push_back(begin);
    most_ = std::max(most_, static_cast<int64_t>(waiting_.size()));
  }
  bool in_order() const { return in_order_; }
  int64_t most() const { return most_; }
  /// Weighted by time: each launch is in the queue from its call to its begin.
  std::optional<double> mean() const {
    if (count_ == 0 || last_ == first_) return std::nullopt;
    return static_cast<double>(waited_) /
           (static_cast<double>(last_) - static_cast<double>(first_));
  }

 private:
  uint64_t count_ = 0;
  __int128 waited_ = 0;
  int64_t first_ = INT64_MAX, last_ = INT64_MIN, latest_ = INT64_MIN, most_ = 0;
  bool in_order_ = true;
  std::deque<int64_t> waiting_;  // begins of those launched before the latest launch's time
};

/// The same for launches in any order, of clocks that contradict each other, too.
int64_t longest_queue(const TraceIndex& index, TrackId stream,
                      const std::vector<TraceIndex::DeviceEvent>& events) {
  const Trace& trace = index.trace();
  std::vector<int64_t> launches, begins;
  for (const auto& [start, event, launch] : events) {
    if (launch == kNoEvent || trace.track[event] != stream) continue;
    launches.push_back(trace.start[launch]);
    begins.push_back(start);
  }
  std::sort(launches.begin(), launches.end());
  int64_t most = 0;
  size_t begun = 0;
  for (size_t i = 0; i < launches.size(); ++i) {
    while (begun < begins.size() && begins[begun] < launches[i]) ++begun;
    most = std::max(most, static_cast<int64_t>(i + 1) - static_cast<int64_t>(begun));
  }
  return most;
}

struct Stream {
  StreamSummary out;
  int64_t end = 0;
  Queue queue;
};

}  // namespace

std::vector<StreamSummary> summarize_streams(const TraceIndex& index,
                                             const std::vector<TraceIndex::DeviceEvent>& events) {
  const Trace& trace = index.trace();
  std::map<TrackId, Stream> streams;
  for (const auto& [start, event, launch] : events) {
    Stream& s = streams[trace.track[event]];
    if (s.out.events > 0 && start > s.end) {
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
      s.queue.add(trace.start[launch], start);
    }
  }
  std::vector<StreamSummary> out;
  for (auto& [track, s] : streams) {
    s.out.stream = trace.tracks[track].stream;
    s.out.queue_mean = s.queue.mean();
    s.out.queue_max = s.queue.in_order() ? s.queue.most() : longest_queue(index, track, events);
    out.push_back(s.out);
  }
  std::sort(out.begin(), out.end(),
            [](const StreamSummary& a, const StreamSummary& b) { return a.stream < b.stream; });
  return out;
}

}  // namespace flatout::timeline
