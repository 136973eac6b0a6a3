#include "timeline/trace_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <unordered_map>

#include "base/text.h"
#include "timeline/trace_gaps.h"
#include "timeline/trace_host.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr size_t kMostTracks = 48;
constexpr size_t kReach = 256;        // events
constexpr size_t kMostRows = 24;      // of a track
constexpr int64_t kLongestBlock = 4;  // times the resolution
constexpr size_t kPlaces = 5;         // of a kind
constexpr int64_t kMargin = 4;        // a place is looked at with a quarter of it on either side

constexpr std::array<std::string_view, 6> kIdleNames = {
    "input wait",           "waits for the host, which waited for the device",
    "waits for the host",   "between kernels",
    "waits for other work", "unknown: its launch was not recorded"};

/// A slice as the tracks hand it out.
struct Mark {
  int64_t begin, end;
  StringId name;  // of the trace; of an idle track the number of kIdleNames
  size_t row;
};
using Visit = std::function<bool(const Mark&)>;  // false: no more

/// One track of the picture and what is on it, in order of the begins.
struct Source {
  PictureTrack track;
  std::vector<Mark> gaps;       // of an idle track; else empty
  std::vector<EventId> events;  // of another
  std::vector<uint8_t> rows;    // of these
  std::vector<int64_t>
      reach;  // by block of kReach events: the latest end of all until the block's last
  bool idle() const { return track.kind == PictureTrack::Kind::kIdle; }
};

size_t idle_name(const DeviceGap& gap) {
  if (gap.input * 2 > gap.end - gap.begin) return 0;
  return 1 + static_cast<size_t>(gap.blame);
}

/// Slices nest by time; one that overlaps another without nesting goes below it.
void stack_up(const Trace& trace, Source& source) {
  std::sort(source.events.begin(), source.events.end(), [&](EventId a, EventId b) {
    if (trace.start[a] != trace.start[b]) return trace.start[a] < trace.start[b];
    return trace.duration[a] != trace.duration[b] ? trace.duration[a] > trace.duration[b] : a < b;
  });
  std::array<int64_t, kMostRows> ends;  // of what lies in each row
  ends.fill(INT64_MIN);
  source.rows.reserve(source.events.size());
  for (const EventId e : source.events) {
    const int64_t begin = trace.start[e];
    size_t row = kMostRows;
    while (row > 0 && ends[row - 1] <= begin) --row;
    // Deeper than what is drawn: in the last row, where it joins what is there.
    source.rows.push_back(static_cast<uint8_t>(std::min(row, kMostRows - 1)));
    if (row < kMostRows) ends[row] = trace.end(e);
    if ((source.rows.size() - 1) % kReach == 0)
      source.reach.push_back(source.reach.empty() ? INT64_MIN : source.reach.back());
    source.reach.back() = std::max(source.reach.back(), trace.end(e));
  }
}

class Painter {
 public:
  Painter(const TraceIndex& index, size_t most_slices) : index_(index), most_(most_slices) {}

  TracePicture paint(const TraceSummary& summary) {
    const Trace& trace = index_.trace();
    picture_.file = trace.file;
    picture_.rank = trace.rank;
    find_sources();
    begin_ = INT64_MAX;
    int64_t end = INT64_MIN;
    for (const Source& source : sources_) {
      for (const EventId e : source.events) {
        begin_ = std::min(begin_, trace.start[e]);
        end = std::max({end, trace.end(e), trace.start[e] + 1});
      }
    }
    if (begin_ >= end) return std::move(picture_);
    picture_.begin = begin_;
    picture_.length = end - begin_;
    for (const Source& source : sources_) picture_.tracks.push_back(source.track);
    find_places(summary);
    picture_.levels.push_back(look(begin_, end, most_ / 2));
    if (picture_.levels.front().resolution > 0) look_closer();
    return std::move(picture_);
  }

 private:
  void find_sources();
  void find_places(const TraceSummary& summary);
  void look_closer();
  PictureLevel look(int64_t begin, int64_t end, size_t most);
  bool fill(PictureLevel& level, size_t most);
  void visit(const Source& source, const PictureLevel& level, const Visit& f) const;
  uint32_t name_of(const Source& source, StringId name);

  const TraceIndex& index_;
  size_t most_;
  int64_t begin_ = 0;
  std::vector<Source> sources_;
  TracePicture picture_;
  std::unordered_map<uint64_t, uint32_t> names_;  // of the trace, and idle ones -> picture_.names
};

/// Devices first, why they were idle above their streams; then threads, the training one first.
void Painter::find_sources() {
  const Trace& trace = index_.trace();
  std::vector<Source> all(trace.tracks.size());
  for (size_t i = 0; i < trace.size(); ++i) {
    if (trace.kind[i] == EventKind::kSpan) continue;
    all[trace.track[i]].events.push_back(static_cast<EventId>(i));
  }
  std::vector<TrackId> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  const TrackId training = training_thread(index_);
  const auto key = [&](TrackId id) {
    const TraceTrack& t = trace.tracks[id];
    const int64_t rank = t.is_stream ? 0 : id == training ? 1 : 2;
    return std::tuple(rank, t.is_stream ? t.device : 0,
                      t.is_stream ? t.stream : -static_cast<int64_t>(all[id].events.size()), id);
  };
  std::sort(order.begin(), order.end(), [&](TrackId a, TrackId b) { return key(a) < key(b); });
  int64_t device = -1;
  for (const TrackId id : order) {
    const TraceTrack& t = trace.tracks[id];
    Source& source = all[id];
    if (source.events.empty()) continue;
    if (sources_.size() >= kMostTracks) {
      ++picture_.hidden_tracks;
      picture_.hidden_slices += source.events.size();
      continue;
    }
    const auto events = t.is_stream ? index_.devices().find(t.device) : index_.devices().end();
    if (events != index_.devices().end() && (device != t.device || sources_.empty())) {
      device = t.device;
      Source idle;
      idle.track = {PictureTrack::Kind::kIdle, fmt::format("device {}", device), "why it is idle",
                    0};
      for_each_gap(index_, events->second, [&](const DeviceGap& gap) {
        idle.gaps.push_back({gap.begin, gap.end, static_cast<StringId>(idle_name(gap)), 0});
      });
      idle.track.slices = idle.gaps.size();
      if (!idle.gaps.empty()) sources_.push_back(std::move(idle));
    }
    source.track = {t.is_stream ? PictureTrack::Kind::kStream : PictureTrack::Kind::kThread,
                    t.is_stream ? fmt::format("device {}", t.device) : t.process,
                    !t.thread.empty() ? t.thread
                    : t.is_stream     ? fmt::format("stream {}", t.stream)
                                      : "thread " + t.tid,
                    source.events.size()};
    if (source.track.process.empty()) source.track.process = "process " + t.pid;
    stack_up(trace, source);
    sources_.push_back(std::move(source));
  }
}

/// What is in the level's window.
void Painter::visit(const Source& source, const PictureLevel& level, const Visit& f) const {
  const auto gap = std::partition_point(source.gaps.begin(), source.gaps.end(),
                                        [&](const Mark& m) { return m.end <= level.begin; });
  for (auto g = gap; g != source.gaps.end() && g->begin < level.end; ++g)
    if (!f(*g)) return;
  // What lies before the window is passed over by blocks.
  const auto block = std::partition_point(source.reach.begin(), source.reach.end(),
                                          [&](int64_t end) { return end < level.begin; });
  const Trace& trace = index_.trace();
  bool more = true;
  for (size_t i = static_cast<size_t>(block - source.reach.begin()) * kReach;
       more && i < source.events.size(); ++i) {
    const EventId e = source.events[i];
    if (trace.start[e] >= level.end) break;
    if (trace.end(e) > level.begin || trace.start[e] >= level.begin)
      more = f({trace.start[e], trace.end(e), trace.name[e], source.rows[i]});
  }
}

uint32_t Painter::name_of(const Source& source, StringId name) {
  const uint64_t key = uint64_t{source.idle()} << 32 | name;
  const auto [at, fresh] = names_.try_emplace(key, static_cast<uint32_t>(picture_.names.size()));
  if (fresh) {
    picture_.names.emplace_back(source.idle() ? kIdleNames[name] : index_.trace().strings[name]);
  }
  return at->second;
}

/// False where there would be more than `most`. Names are still the trace's.
bool Painter::fill(PictureLevel& level, size_t most) {
  level.tracks.clear();
  size_t count = 0;
  for (const Source& source : sources_) {
    auto& rows = level.tracks.emplace_back();
    std::vector<int64_t> longest;  // slice of the block that ends each row
    visit(source, level, [&](const Mark& mark) {
      if (rows.size() <= mark.row) rows.resize(mark.row + 1), longest.resize(mark.row + 1);
      auto& row = rows[mark.row];
      const int64_t begin = std::max(mark.begin, level.begin) - begin_;
      const int64_t end = std::min(mark.end, level.end) - begin_;
      const int64_t length = end - begin;
      const bool is_short = length < level.resolution;
      if (!row.empty() && begin < row.back().end + level.resolution) {
        PictureSlice& last = row.back();
        // Joined: what is short with a short neighbour, and what overlaps, which a row cannot show.
        const bool joins = is_short && last.end - last.begin < kLongestBlock * level.resolution &&
                           (last.count > 1 || last.end - last.begin < level.resolution);
        if (joins || begin < last.end) {
          last.end = std::max(last.end, end);
          ++last.count;
          if (length > longest[mark.row]) {
            longest[mark.row] = length;
            last.name = mark.name;
          }
          return true;
        }
      }
      row.push_back({begin, end, mark.name, 1});
      longest[mark.row] = length;
      return ++count <= most;
    });
    if (count > most) return false;
  }
  return true;
}

PictureLevel Painter::look(int64_t begin, int64_t end, size_t most) {
  PictureLevel level;
  level.begin = begin;
  level.end = end;
  // Coarser than the window each row is one block: fewer than rows there cannot be.
  while (!fill(level, level.resolution < end - begin ? most : SIZE_MAX))
    level.resolution = std::max<int64_t>(level.resolution * 2, 1 << 8);
  for (size_t t = 0; t < sources_.size(); ++t) {
    for (auto& row : level.tracks[t])
      for (PictureSlice& slice : row) slice.name = name_of(sources_[t], slice.name);
  }
  level.begin -= begin_;
  level.end -= begin_;
  return level;
}

void Painter::find_places(const TraceSummary& summary) {
  const auto longest = [&](std::vector<PicturePlace>& all) {
    std::stable_sort(all.begin(), all.end(), [](const PicturePlace& a, const PicturePlace& b) {
      return a.end - a.begin > b.end - b.begin;
    });
    if (all.size() > kPlaces) all.resize(kPlaces);
    picture_.places.insert(picture_.places.end(), all.begin(), all.end());
  };
  std::vector<PicturePlace> gaps;
  for (const auto& of_device : index_.devices()) {
    const int64_t device = of_device.first;
    int64_t least = 0;  // a gap that is shorter is none of the longest
    for_each_gap(index_, of_device.second, [&](const DeviceGap& gap) {
      if (gap.end - gap.begin <= least) return;
      gaps.push_back(
          {fmt::format("device {} idle for {}: {}", device,
                       format_duration(Nanos(gap.end - gap.begin)), kIdleNames[idle_name(gap)]),
           gap.begin - begin_, gap.end - begin_});
      if (gaps.size() < 8 * kPlaces) return;
      std::nth_element(gaps.begin(), gaps.begin() + kPlaces, gaps.end(),
                       [](const PicturePlace& a, const PicturePlace& b) {
                         return a.end - a.begin > b.end - b.begin;
                       });
      gaps.resize(kPlaces + 1);
      least = gaps.back().end - gaps.back().begin;
    });
  }
  longest(gaps);
  std::vector<PicturePlace> steps;
  for (const TraceStepSummary& step : summary.steps) {
    steps.push_back({fmt::format("{}: {}", step.name, format_duration(Nanos(step.wall))),
                     step.begin - begin_, step.begin + step.wall - begin_});
  }
  longest(steps);
}

void Painter::look_closer() {
  std::vector<PicturePlace> windows = picture_.places;
  const Window middle = closer_look(index_);
  windows.push_back({"", middle.begin - begin_, middle.end - begin_});
  for (const PicturePlace& place : windows) {
    const int64_t margin = std::max<int64_t>((place.end - place.begin) / kMargin, 1);
    const int64_t begin = std::max<int64_t>(place.begin - margin, 0);
    const int64_t end = std::min(place.end + margin, picture_.length);
    const bool seen = std::any_of(
        picture_.levels.begin() + 1, picture_.levels.end(),
        [&](const PictureLevel& level) { return level.begin <= begin && level.end >= end; });
    if (seen || end - begin >= picture_.length) continue;
    picture_.levels.push_back(look(begin_ + begin, begin_ + end, most_ / 2 / windows.size()));
  }
}

}  // namespace

TracePicture draw(const TraceIndex& index, const TraceSummary& summary, size_t most_slices) {
  return Painter(index, most_slices).paint(summary);
}

void align(std::vector<TracePicture>& pictures, const std::vector<TraceSummary>& traces) {
  const bool unix_time = std::all_of(traces.begin(), traces.end(),
                                     [](const TraceSummary& t) { return t.epoch_times; });
  for (size_t i = 1; i < pictures.size(); ++i) {
    const auto& mine = traces[i].collectives;
    const auto& first = traces[0].collectives;
    std::vector<int64_t> differences;
    for (size_t k = 0; k < mine.size() && mine.size() == first.size(); ++k) {
      if (mine[k].name == first[k].name) differences.push_back(mine[k].end - first[k].end);
    }
    const int64_t begin = pictures[i].begin - pictures[0].begin;
    if (!differences.empty() && differences.size() * 2 > mine.size()) {
      const auto middle = differences.begin() + static_cast<int64_t>(differences.size() / 2);
      std::nth_element(differences.begin(), middle, differences.end());
      pictures[i].offset = begin - *middle;
    } else if (unix_time) {
      pictures[i].offset = begin;
    }
  }
}

}  // namespace flatout::timeline
