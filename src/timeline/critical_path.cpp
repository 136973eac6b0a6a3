#include "timeline/critical_path.h"

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "timeline/trace_host.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr int64_t kOverlap =
    2'000;  // ns; events of one stream that overlap by less follow each other: rounding
constexpr int64_t kHandOver =
    20'000;  // ns; a thread that is idle for longer may wait for another one
constexpr int64_t kStreamWait =
    10'000;  // ns from the end of another stream's work to what waited for it
constexpr int64_t kLongDelay =
    30'000;  // ns; longer than a stream's own delay from one event to the next
constexpr int64_t kBlocked =
    100'000;                        // ns; a launch that takes longer may wait for room in the queue
constexpr size_t kFullQueue = 256;  // launches
constexpr size_t kMostThreads = 64;
constexpr size_t kMostPieces = 15;
constexpr size_t kMostKernels = 3;  // asked "what if" by name
constexpr uint32_t kNone = 0xFFFFFFFF;

/// A point that a host thread reaches, or a device event: over at `end`, after `length` of work
/// that begins when the last of those that it waits for is over (and some more time has passed).
struct Node {
  struct After {
    uint32_t node = kNone;
    int64_t lag = 0;
  };
  int64_t end = 0, length = 0;
  EventId event = kNoEvent;  // of a device
  TrackId track = kNoEvent;  // of a host thread
  int64_t input = 0;         // of `length`, a batch was asked for
  bool works = false;        // a host thread's work, not its waiting
  After after[4];

  void follow(uint32_t node, int64_t lag) {
    for (After& a : after) {
      if (a.node != kNone) continue;
      a = {node, lag};
      return;
    }
  }
};

/// A moment in a host thread at which something depends on it or it on something.
struct Moment {
  enum class Kind : uint8_t {
    kPassed,  // something begins here: a launch, a hand-over to another thread
    kWaited,  // it waited for a device until here
    kWoke,    // it was idle until here, and another thread had worked
  };
  int64_t time = 0;
  Kind kind = Kind::kPassed;
  EventId call = kNoEvent;  // kPassed: the launch; kWaited: the call that waited
  size_t other = 0;         // kWoke: the thread that had worked last, and until when
  int64_t other_end = 0;
  uint32_t node = kNone;
};

struct Thread {
  TrackId track = kNoEvent;
  Intervals active;
  std::vector<EventId> calls;  // of the runtime, in order
  std::vector<Moment> moments;
};

struct DeviceNode {
  EventId event = kNoEvent;
  EventId launch = kNoEvent;  // within the window
  uint32_t node = kNone;
};

bool waits(std::string_view call) {
  return call.find("Synchronize") != std::string_view::npos || call == "cudaMemcpy" ||
         call == "hipMemcpy" || call == "hipMemcpyWithStream";
}

/// When `set` last held at or before `time`; INT64_MIN: never.
int64_t last_active(const Intervals& set, int64_t time) {
  const auto after = std::partition_point(set.all().begin(), set.all().end(),
                                          [&](const Interval64& i) { return i.begin < time; });
  return after == set.all().begin() ? INT64_MIN : std::min((after - 1)->end, time);
}

class PathFinder {
 public:
  PathFinder(const TraceIndex& index, int64_t begin, int64_t end)
      : index_(index), trace_(index.trace()), begin_(begin), end_(end) {}

  std::optional<CriticalPath> find() {
    collect_devices();
    if (devices_.empty()) return std::nullopt;
    collect_threads();
    if (threads_.empty()) return std::nullopt;  // nobody on the host is known
    find_moments();
    nodes_.push_back({.end = begin_});  // where all begins
    make_points();
    make_devices();
    join_waits();
    if (!sort()) return std::nullopt;
    return answer();
  }

 private:
  void collect_devices();
  void collect_threads();
  void find_moments();
  void find_waits(Thread& thread);
  void find_hand_overs();
  void make_points();
  void make_devices();
  void join_waits();
  bool sort();
  std::optional<CriticalPath> answer() const;

  using Lengths = std::function<int64_t(const Node&)>;
  int64_t play(const Lengths& length, std::vector<int64_t>* ends = nullptr) const;
  PathPart part_of(const Node& node) const;
  void walk(const std::vector<int64_t>& ends, CriticalPath& path) const;
  void ask(CriticalPath& path) const;

  const TraceIndex& index_;
  const Trace& trace_;
  int64_t begin_, end_;
  std::vector<DeviceNode> devices_;               // in order of their start
  std::unordered_set<EventId> launches_;          // calls with device events in the window
  std::vector<Thread> threads_;                   // the training thread first
  std::unordered_map<EventId, uint32_t> points_;  // of launches
  std::vector<std::pair<int64_t, uint32_t>> device_ends_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> order_;  // each after those that it follows
  std::vector<uint32_t> sinks_;
};

/// Events that the window launched, however late they run, and what runs in it for reasons from
/// before.
void PathFinder::collect_devices() {
  constexpr size_t kGiveUp = 10'000;  // events in a row that were launched after the window
  for (const auto& [device, events] : index_.devices()) {
    size_t later = 0;
    for (const auto& [start, event, launch] : events) {
      if (trace_.end(event) <= begin_) continue;
      const bool known = launch != kNoEvent;
      const bool inside = known && trace_.start[launch] >= begin_ && trace_.start[launch] < end_;
      if (start >= end_ && !inside) {
        if (++later > kGiveUp) break;
        continue;
      }
      later = 0;
      if (known && trace_.start[launch] >= end_) continue;
      devices_.push_back({event, inside ? launch : kNoEvent, kNone});
      if (inside) launches_.insert(launch);
    }
  }
  std::sort(devices_.begin(), devices_.end(), [&](const DeviceNode& a, const DeviceNode& b) {
    return trace_.start[a.event] != trace_.start[b.event]
               ? trace_.start[a.event] < trace_.start[b.event]
               : a.event < b.event;
  });
}

void PathFinder::collect_threads() {
  std::vector<size_t> of(trace_.tracks.size(), SIZE_MAX);
  const auto take = [&](TrackId track) {
    if (track == kNoEvent || of[track] != SIZE_MAX || threads_.size() >= kMostThreads) return;
    of[track] = threads_.size();
    threads_.push_back({track, {}, {}, {}});
  };
  take(training_thread(index_));
  for (const DeviceNode& d : devices_) {
    if (d.launch != kNoEvent) take(trace_.track[d.launch]);
  }
  struct Slices {
    std::vector<Interval64> plain, python, backward;
  };
  std::vector<Slices> slices(threads_.size());
  for (size_t i = 0; i < trace_.size(); ++i) {
    const auto e = static_cast<EventId>(i);
    if (of[trace_.track[i]] == SIZE_MAX || trace_.start[i] >= end_ || trace_.end(e) < begin_)
      continue;
    const size_t thread = of[trace_.track[i]];
    const Interval64 time{std::max(trace_.start[i], begin_), std::min(trace_.end(e), end_)};
    switch (trace_.kind[i]) {
      case EventKind::kRuntime:
        if (trace_.start[i] >= begin_) threads_[thread].calls.push_back(e);
        slices[thread].plain.push_back(time);
        break;
      case EventKind::kOp:
        slices[thread].plain.push_back(time);
        break;
      case EventKind::kPython:
        // While another thread runs the backward pass, the one that asked for it only waits.
        (trace_.name_of(e).find("run_backward") != std::string_view::npos ? slices[thread].backward
                                                                          : slices[thread].python)
            .push_back(time);
        break;
      default:
        break;
    }
  }
  for (size_t t = 0; t < threads_.size(); ++t) {
    Slices& s = slices[t];
    const Intervals python = unite(std::move(s.python)), backward = unite(std::move(s.backward));
    auto hole = backward.all().begin();
    for (const Interval64& piece : python.all()) {
      int64_t from = piece.begin;
      while (hole != backward.all().end() && hole->end <= from) ++hole;
      for (auto h = hole; h != backward.all().end() && h->begin < piece.end; ++h) {
        if (h->begin > from) s.plain.push_back({from, h->begin});
        from = std::max(from, h->end);
      }
      if (from < piece.end) s.plain.push_back({from, piece.end});
    }
    for (const Interval64& piece : index_.input().all()) {
      // Waiting for a batch is what the thread does, not a wait for its neighbour.
      if (t == 0 && piece.begin < end_ && piece.end > begin_)
        s.plain.push_back({std::max(piece.begin, begin_), std::min(piece.end, end_)});
    }
    threads_[t].active = unite(std::move(s.plain));
    std::sort(threads_[t].calls.begin(), threads_[t].calls.end(), [&](EventId a, EventId b) {
      return trace_.start[a] != trace_.start[b] ? trace_.start[a] < trace_.start[b] : a < b;
    });
  }
}

/// Calls that end when a device is ready: those that are named so, copies that were waited for, and
/// launches that found the queue full.
void PathFinder::find_waits(Thread& thread) {
  std::unordered_map<EventId, int64_t> copy_ends;
  std::vector<int64_t> begins;  // of all device events
  for (const DeviceNode& d : devices_) {
    begins.push_back(trace_.start[d.event]);
    if (d.launch != kNoEvent && trace_.kind[d.event] == EventKind::kMemcpy)
      copy_ends[d.launch] = trace_.end(d.event);
  }
  size_t launched = 0;
  int64_t free = begin_;  // the end of the last call that waited: nested calls wait once
  for (const EventId call : thread.calls) {
    const bool launches = launches_.contains(call);
    if (launches) {
      thread.moments.push_back({.time = trace_.start[call], .call = call});
      ++launched;
    }
    const int64_t end = trace_.end(call);
    if (trace_.start[call] < free || end > end_) continue;
    const auto copy = copy_ends.find(call);
    const bool waited_for_copy = copy != copy_ends.end() && copy->second <= end;
    bool full = false;
    if (launches && trace_.duration[call] > kBlocked) {
      const auto begun =
          std::upper_bound(begins.begin(), begins.end(), trace_.start[call]) - begins.begin();
      full = launched > static_cast<size_t>(begun) + kFullQueue;
    }
    if (!waits(trace_.name_of(call)) && !waited_for_copy && !full) continue;
    thread.moments.push_back({.time = trace_.start[call]});
    thread.moments.push_back({.time = end, .kind = Moment::Kind::kWaited, .call = call});
    free = end;
  }
}

/// Where a thread that had nothing to do goes on: after whoever worked last.
void PathFinder::find_hand_overs() {
  for (size_t t = 0; t < threads_.size(); ++t) {
    const auto& pieces = threads_[t].active.all();
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int64_t begin = pieces[i].begin;
      const int64_t idle_since = i > 0 ? pieces[i - 1].end : t > 0 ? INT64_MIN : begin_;
      if (i > 0 && begin - idle_since < kHandOver) continue;
      size_t other = t;
      int64_t latest = idle_since;
      for (size_t u = 0; u < threads_.size(); ++u) {
        if (u == t) continue;
        const int64_t end = last_active(threads_[u].active, begin);
        if (end > latest) {
          latest = end;
          other = u;
        }
      }
      if (other == t || begin == begin_) continue;
      threads_[t].moments.push_back(
          {.time = begin, .kind = Moment::Kind::kWoke, .other = other, .other_end = latest});
      threads_[other].moments.push_back({.time = latest});
    }
  }
}

void PathFinder::find_moments() {
  for (Thread& thread : threads_) find_waits(thread);
  find_hand_overs();
  threads_.front().moments.push_back({.time = end_});
  for (Thread& thread : threads_) {
    // What a thread was held up by comes before what it does at the same time.
    std::stable_sort(thread.moments.begin(), thread.moments.end(),
                     [](const Moment& a, const Moment& b) {
                       return a.time != b.time ? a.time < b.time : a.kind > b.kind;
                     });
  }
}

void PathFinder::make_points() {
  for (Thread& thread : threads_) {
    uint32_t before = 0;
    for (Moment& m : thread.moments) {
      m.node = static_cast<uint32_t>(nodes_.size());
      Node node;
      node.end = m.time;
      node.track = thread.track;
      node.follow(before, 0);
      // Of what was waited for the length is told when all points are there.
      if (m.kind == Moment::Kind::kPassed) {
        node.works = true;
        node.length = m.time - nodes_[before].end;
        if (&thread == &threads_.front())
          node.input = overlap(index_.input(), nodes_[before].end, m.time);
        if (m.call != kNoEvent) points_[m.call] = m.node;
      }
      nodes_.push_back(node);
      before = m.node;
    }
  }
}

void PathFinder::make_devices() {
  struct Last {
    uint32_t node;
    int64_t end;
  };
  // What a launch and what the way to the next event take at the least, for those that waited for
  // the other.
  int64_t launch_lag = INT64_MAX, next_lag = kLongDelay;
  std::unordered_map<TrackId, Last> streams;
  const auto each = [&](auto&& visit) {
    streams.clear();
    for (DeviceNode& d : devices_) {
      // What runs already when the window begins is looked at from there on.
      const int64_t start = std::max(trace_.start[d.event], begin_);
      const auto last = streams.find(trace_.track[d.event]);
      const bool follows = last != streams.end() && last->second.end <= start + kOverlap;
      const auto point = d.launch != kNoEvent ? points_.find(d.launch) : points_.end();
      const bool launched = point != points_.end() && nodes_[point->second].end <= start;
      visit(d, start, follows ? &last->second : nullptr, launched ? point->second : kNone);
      streams[trace_.track[d.event]] = {d.node, trace_.end(d.event)};
    }
  };
  each([&](DeviceNode&, int64_t start, const Last* last, uint32_t point) {
    if (point != kNone) launch_lag = std::min(launch_lag, start - nodes_[point].end);
    if (last != nullptr) next_lag = std::min(next_lag, start - last->end);
  });
  std::vector<std::pair<int64_t, uint32_t>> ends;  // so far, in order
  each([&](DeviceNode& d, int64_t start, const Last* last, uint32_t point) {
    d.node = static_cast<uint32_t>(nodes_.size());
    Node node;
    node.event = d.event;
    node.end = trace_.end(d.event);
    node.length = node.end - start;
    int64_t ready = begin_;
    if (last != nullptr) ready = std::max(ready, last->end);
    if (point != kNone) ready = std::max(ready, nodes_[point].end);
    // Later than its launch and its stream explain: it may have waited for another stream's work.
    uint32_t cause = kNone;
    if (start - ready > kLongDelay) {
      auto at = std::upper_bound(ends.begin(), ends.end(), std::pair(start, kNone));
      if (at != ends.begin() && (--at)->first > ready && start - at->first <= kStreamWait)
        cause = at->second;
    }
    if (cause != kNone) node.follow(cause, start - nodes_[cause].end);
    // The later one held it up for as long as was measured; the other would have let it begin
    // earlier.
    const bool by_launch = point != kNone && (last == nullptr || nodes_[point].end + launch_lag >=
                                                                     last->end + next_lag);
    if (last != nullptr) {
      const int64_t lag = start - last->end;
      node.follow(last->node, by_launch || cause != kNone ? std::min(next_lag, lag) : lag);
    }
    if (point != kNone) {
      const int64_t lag = start - nodes_[point].end;
      node.follow(point, by_launch && cause == kNone ? lag : std::min(launch_lag, lag));
    }
    if (node.after[0].node == kNone) node.follow(0, start - begin_);
    nodes_.push_back(node);
    // Ends come nearly in order: what runs beside others is moved by a few places.
    const std::pair entry(node.end, d.node);
    ends.insert(std::upper_bound(ends.begin(), ends.end(), entry), entry);
    // What was launched before the window is no part of its result.
    if (d.launch != kNoEvent || index_.launch_of(d.event) == kNoEvent) sinks_.push_back(d.node);
  });
  device_ends_ = std::move(ends);
}

void PathFinder::join_waits() {
  for (Thread& thread : threads_) {
    for (const Moment& m : thread.moments) {
      Node& node = nodes_[m.node];
      const int64_t before = nodes_[node.after[0].node].end;
      if (m.kind == Moment::Kind::kWoke) {
        const Thread& other = threads_[m.other];
        const auto at =
            std::lower_bound(other.moments.begin(), other.moments.end(), m.other_end,
                             [](const Moment& a, int64_t time) { return a.time < time; });
        node.follow(at->node, m.time - m.other_end);
      }
      if (m.kind == Moment::Kind::kWaited) {
        auto at =
            std::upper_bound(device_ends_.begin(), device_ends_.end(), std::pair(m.time, kNone));
        const int64_t ready = at != device_ends_.begin() ? (at - 1)->first : before;
        // What is left once the device is ready is the call's own.
        node.length = m.time - std::max(ready, before);
        node.works = true;
        const bool all_streams =
            trace_.name_of(m.call).find("DeviceSynchronize") != std::string_view::npos;
        if (!all_streams) {
          if (ready > before) node.follow((at - 1)->second, 0);
          continue;
        }
        // Each stream's last work was waited for, and would have been where it ended early, too.
        constexpr size_t kMostStreams = 3, kLookBack = 256;
        std::vector<TrackId> streams;
        for (size_t i = 0;
             i < kLookBack && at != device_ends_.begin() && streams.size() < kMostStreams; ++i) {
          --at;
          const TrackId stream = trace_.track[nodes_[at->second].event];
          if (std::find(streams.begin(), streams.end(), stream) != streams.end()) continue;
          streams.push_back(stream);
          node.follow(at->second, 0);
        }
      }
    }
  }
  if (!threads_.front().moments.empty()) sinks_.push_back(threads_.front().moments.back().node);
}

/// False where the graph has a ring: clocks that contradict each other.
bool PathFinder::sort() {
  std::vector<uint8_t> open(nodes_.size());
  std::vector<std::vector<uint32_t>> next(nodes_.size());
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    for (const Node::After& a : nodes_[n].after) {
      if (a.node == kNone) continue;
      next[a.node].push_back(n);
      ++open[n];
    }
  }
  order_.push_back(0);
  for (size_t i = 0; i < order_.size(); ++i) {
    for (const uint32_t n : next[order_[i]])
      if (--open[n] == 0) order_.push_back(n);
  }
  return order_.size() == nodes_.size();
}

/// The time at which all is over, with other lengths of the nodes' work.
int64_t PathFinder::play(const Lengths& length, std::vector<int64_t>* ends) const {
  std::vector<int64_t> own;
  std::vector<int64_t>& end = ends != nullptr ? *ends : own;
  end.assign(nodes_.size(), begin_);
  for (size_t i = 1; i < order_.size(); ++i) {
    const Node& node = nodes_[order_[i]];
    int64_t start = begin_;
    for (const Node::After& a : node.after)
      if (a.node != kNone) start = std::max(start, end[a.node] + a.lag);
    end[order_[i]] = start + length(node);
  }
  int64_t last = begin_;
  for (const uint32_t sink : sinks_) last = std::max(last, end[sink]);
  return last;
}

PathPart PathFinder::part_of(const Node& node) const {
  if (node.event == kNoEvent) return PathPart::kHost;
  if (trace_.kind[node.event] == EventKind::kMemcpy) return PathPart::kCopies;
  switch (index_.type(node.event)) {
    case KernelType::kCommunication:
      return PathPart::kCommunication;
    case KernelType::kMemory:
      return PathPart::kCopies;
    case KernelType::kCompute:
      break;
  }
  return PathPart::kCompute;
}

/// From the end back, each time to what was waited for the longest.
void PathFinder::walk(const std::vector<int64_t>& ends, CriticalPath& path) const {
  std::map<std::pair<PathPart, std::string_view>, int64_t> names;
  std::map<TrackId, std::vector<Interval64>> work;  // of the host, on the path
  const auto add = [&](PathPart part, std::string_view name, int64_t time) {
    if (time == 0) return;
    path.parts[static_cast<size_t>(part)] += time;
    names[{part, name}] += time;
  };
  uint32_t at = *std::max_element(sinks_.begin(), sinks_.end(),
                                  [&](uint32_t a, uint32_t b) { return ends[a] < ends[b]; });
  while (at != 0) {
    const Node& node = nodes_[at];
    const Node::After* cause = nullptr;
    for (const Node::After& a : node.after) {
      if (a.node != kNone &&
          (cause == nullptr || ends[a.node] + a.lag > ends[cause->node] + cause->lag))
        cause = &a;
    }
    if (node.event != kNoEvent) {
      add(part_of(node), trace_.name_of(node.event), node.length);
      const Node& before = nodes_[cause->node];
      const bool unknown = cause->lag > kLongDelay && before.track == kNoEvent;
      add(unknown ? PathPart::kUnknown : PathPart::kDelay,
          unknown                    ? "idle, and what it waited for was not recorded"
          : before.track != kNoEvent ? "from a launch to its begin"
                                     : "from one kernel to the next",
          cause->lag);
    } else {
      add(PathPart::kInput, "waiting for a batch", node.input);
      if (node.length > node.input) {
        path.parts[static_cast<size_t>(PathPart::kHost)] += node.length - node.input;
        work[node.track].push_back({node.end - node.length, node.end});
      }
      add(PathPart::kDelay, "from one thread to another", cause->lag);
    }
    at = cause->node;
  }
  for (const auto& [key, time] : names)
    path.pieces.push_back({key.first, std::string(key.second), time});
  for (auto& [track, pieces] : work) {
    // What it did meanwhile, by its innermost slices; less where a batch was asked for.
    std::vector<Interval64> rest;
    const Intervals worked = unite(std::move(pieces));
    for (const Interval64& piece : worked.all()) {
      int64_t from = piece.begin;
      for (const Interval64& input : index_.input().all()) {
        if (input.end <= from) continue;
        if (input.begin >= piece.end || track != threads_.front().track) break;
        if (input.begin > from) rest.push_back({from, input.begin});
        from = std::min(input.end, piece.end);
      }
      if (from < piece.end) rest.push_back({from, piece.end});
    }
    const HostUse use = host_use(index_, track, {begin_, end_}, unite(std::move(rest)));
    for (const HostBlame& slice : use.slices)
      path.pieces.push_back({PathPart::kHost, slice.name, slice.time});
    if (use.nothing > 0)
      path.pieces.push_back({PathPart::kHost, "between recorded slices", use.nothing});
  }
  std::stable_sort(path.pieces.begin(), path.pieces.end(),
                   [](const auto& a, const auto& b) { return a.time > b.time; });
}

void PathFinder::ask(CriticalPath& path) const {
  const auto add = [&](PathPart part, const std::string& name, const Lengths& length) {
    const int64_t left = play(length) - begin_;
    if (path.length - left > path.length / 100) path.what_if.push_back({part, name, left});
  };
  const auto has = [&](PathPart part) { return path.parts[static_cast<size_t>(part)] > 0; };
  if (has(PathPart::kInput))
    add(PathPart::kInput, "", [](const Node& n) { return n.length - n.input; });
  if (has(PathPart::kHost))
    add(PathPart::kHost, "", [](const Node& n) { return n.works ? n.input : n.length; });
  for (const PathPart part : {PathPart::kCompute, PathPart::kCommunication, PathPart::kCopies}) {
    if (!has(part)) continue;
    add(part, "",
        [&](const Node& n) { return n.event != kNoEvent && part_of(n) == part ? 0 : n.length; });
  }
  size_t asked = 0;
  for (const CriticalPath::Piece& piece : path.pieces) {
    if (piece.part != PathPart::kCompute && piece.part != PathPart::kCommunication) continue;
    if (++asked > kMostKernels) break;
    const StringId name = trace_.strings.find(piece.name);
    add(piece.part, piece.name, [&](const Node& n) {
      return n.event != kNoEvent && trace_.name[n.event] == name ? 0 : n.length;
    });
  }
  std::stable_sort(path.what_if.begin(), path.what_if.end(),
                   [](const auto& a, const auto& b) { return a.length < b.length; });
}

std::optional<CriticalPath> PathFinder::answer() const {
  CriticalPath path;
  path.begin = begin_;
  std::vector<int64_t> ends;
  path.length = play([](const Node& n) { return n.length; }, &ends) - begin_;
  walk(ends, path);
  ask(path);
  if (path.pieces.size() > kMostPieces) path.pieces.resize(kMostPieces);
  return path;
}

}  // namespace

std::optional<CriticalPath> critical_path(const TraceIndex& index, int64_t begin, int64_t end) {
  if (begin >= end) return std::nullopt;
  return PathFinder(index, begin, end).find();
}

std::optional<CriticalPath> critical_path(const TraceIndex& index) {
  if (index.devices().empty()) return std::nullopt;
  if (index.steps().empty()) {
    const Window window = closer_look(index);
    return critical_path(index, window.begin, window.end);
  }
  std::vector<const TraceStep*> steps;
  for (const TraceStep& step : index.steps()) steps.push_back(&step);
  const auto middle = steps.begin() + static_cast<int64_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end(), [](const TraceStep* a, const TraceStep* b) {
    return a->wall() != b->wall() ? a->wall() < b->wall() : a < b;
  });
  auto path = critical_path(index, (*middle)->begin, (*middle)->end);
  if (path) path->step = (*middle)->name;
  return path;
}

}  // namespace flatout::timeline
