// Perfetto's protobuf as the output of `flatout trace convert`.
// Each track (and each lane of one) is a sequence of packets of its own, so that times are steps
// from packet to packet: a slice takes about 30 bytes. Names are interned a sequence.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/text.h"
#include "timeline/perfetto_fields.h"
#include "timeline/trace_convert.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room
namespace pf = perfetto;

namespace {

constexpr uint64_t kOwnClock =
    64;  // the first number that a sequence may give a meaning of its own
constexpr uint64_t kBoottime = 6;

void varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}
void number(std::string& out, uint32_t field, uint64_t value) {
  varint(out, uint64_t{field} << 3);
  varint(out, value);
}
void bytes(std::string& out, uint32_t field, std::string_view value) {
  varint(out, uint64_t{field} << 3 | 2);
  varint(out, value.size());
  out.append(value);
}

class PerfettoWriter {
 public:
  PerfettoWriter(const Trace& trace, ByteSink& to, const TimeWindow& window)
      : trace_(trace), to_(to), window_(window) {}

  Result<Converted> write() {
    std::vector<std::vector<EventId>> by_track(trace_.tracks.size());
    origin_ = INT64_MAX;
    for (size_t i = 0; i < trace_.size(); ++i) {
      const auto e = static_cast<EventId>(i);
      if (trace_.start[i] >= window_.end_ns || trace_.end(e) < window_.begin_ns) continue;
      origin_ = std::min(origin_, trace_.start[i]);
      by_track[trace_.track[i]].push_back(e);
    }
    // Perfetto's times are unsigned: a trace that begins before its clock's zero is moved there.
    if (origin_ > 0) origin_ = 0;
    processes();
    for (TrackId track = 0; track < by_track.size(); ++track) write_track(track, by_track[track]);
    to_.write(out_);
    FLATOUT_TRY_STATUS(to_.finish());
    done_.cut_off = trace_.damage.cut_off;
    return done_;
  }

 private:
  void packet(std::string_view body) {
    bytes(out_, pf::kTracePacket, body);
    if (out_.size() > (1 << 18)) {
      to_.write(out_);
      out_.clear();
    }
  }

  void processes() {
    for (const TraceTrack& track : trace_.tracks) {
      const std::string key = process_key(track);
      const auto [at, is_new] = processes_.try_emplace(key, next_uuid_);
      if (!is_new) continue;
      ++next_uuid_;
      std::string process, descriptor, body;
      // Devices get numbers that no process has.
      const auto pid = parse_number<int64_t>(track.pid);
      number(process, 1,
             track.is_stream ? (uint64_t{1} << 22) + static_cast<uint64_t>(track.device & 0xFFFF)
                             : static_cast<uint64_t>(pid.value_or(0)) & 0x7FFF'FFFF);
      std::string name = track.process;
      if (track.is_stream) {
        const auto known = trace_.device_names.find(track.device);
        name = fmt::format("device {} {}", track.device,
                           known != trace_.device_names.end() ? known->second : "");
      } else if (name.empty()) {
        name = track.pid;
      }
      bytes(process, 6, to_utf8(name));
      number(descriptor, pf::kUuid, at->second);
      bytes(descriptor, pf::kProcess, process);
      bytes(body, pf::kTrackDescriptor, descriptor);
      packet(body);
    }
  }
  static std::string process_key(const TraceTrack& track) {
    return track.is_stream ? fmt::format("device {}", track.device) : "pid " + track.pid;
  }

  // Slices on one track must nest: those that do not go to further lanes of it.
  void write_track(TrackId id, std::vector<EventId>& events) {
    if (events.empty()) return;
    std::sort(events.begin(), events.end(), [&](EventId a, EventId b) {
      if (trace_.start[a] != trace_.start[b]) return trace_.start[a] < trace_.start[b];
      if (trace_.duration[a] != trace_.duration[b]) return trace_.duration[a] > trace_.duration[b];
      return a < b;
    });
    struct Lane {
      std::vector<int64_t> open;  // ends of what is open, innermost last
      std::vector<EventId> events;
    };
    std::vector<Lane> lanes;
    for (const EventId e : events) {
      const int64_t start = trace_.start[e], end = trace_.end(e);
      size_t i = 0;
      for (;; ++i) {
        if (i == lanes.size()) lanes.emplace_back();
        Lane& lane = lanes[i];
        while (!lane.open.empty() && lane.open.back() <= start) lane.open.pop_back();
        if (lane.open.empty() || end <= lane.open.back() || i > 256) break;
      }
      lanes[i].open.push_back(end);
      lanes[i].events.push_back(e);
    }
    for (size_t i = 0; i < lanes.size(); ++i) write_lane(trace_.tracks[id], i, lanes[i].events);
  }

  void write_lane(const TraceTrack& track, size_t lane, const std::vector<EventId>& events) {
    const uint64_t uuid = next_uuid_++;
    sequence_ = next_sequence_++;
    names_.clear();
    categories_.clear();
    annotations_known_ = false;
    // The lane's descriptor.
    std::string descriptor, body;
    number(descriptor, pf::kUuid, uuid);
    number(descriptor, pf::kParentUuid, processes_.at(process_key(track)));
    std::string name = track.is_stream ? fmt::format("stream {}", track.stream) : track.thread;
    if (name.empty()) name = "thread " + track.tid;
    if (lane > 0) name += fmt::format(" ({})", lane + 1);
    bytes(descriptor, pf::kTrackName, to_utf8(name));
    bytes(body, pf::kTrackDescriptor, descriptor);
    packet(body);
    // Its clock begins at its first event, its packets belong to its track.
    now_ = trace_.start[events.front()] - origin_;
    std::string clocks, clock, defaults, event_defaults;
    number(clock, 1, kOwnClock);
    number(clock, 2, 0);
    number(clock, 3, 1);
    bytes(clocks, 1, clock);
    clock.clear();
    number(clock, 1, kBoottime);
    number(clock, 2, static_cast<uint64_t>(now_));
    bytes(clocks, 1, clock);
    number(event_defaults, pf::kTrackUuid, uuid);
    bytes(defaults, pf::kTrackEventDefaults, event_defaults);
    number(defaults, pf::kTimestampClock, kOwnClock);
    body.clear();
    number(body, pf::kSequenceId, sequence_);
    number(body, pf::kSequenceFlags, pf::kStateCleared);
    bytes(body, pf::kClockSnapshot, clocks);
    bytes(body, pf::kPacketDefaults, defaults);
    packet(body);
    std::vector<int64_t> open;
    const auto close_until = [&](int64_t time) {
      while (!open.empty() && open.back() <= time) {
        end_packet(open.back());
        open.pop_back();
      }
    };
    for (const EventId e : events) {
      close_until(trace_.start[e]);
      begin_packet(e, track);
      open.push_back(trace_.end(e));
    }
    close_until(INT64_MAX);
  }

  void timestamp(int64_t time) {
    const int64_t at = std::max(time - origin_, now_);
    number(body_, pf::kTimestamp, static_cast<uint64_t>(at - now_));
    now_ = at;
    number(body_, pf::kSequenceId, sequence_);
  }

  void begin_packet(EventId e, const TraceTrack& track) {
    body_.clear();
    event_.clear();
    interned_.clear();
    const uint64_t name =
        intern(names_, trace_.name[e], pf::kInternedNames, trace_.strings[trace_.name[e]]);
    const uint64_t category = intern(categories_, trace_.category[e], pf::kInternedCategories,
                                     trace_.categories[trace_.category[e]]);
    number(event_, pf::kEventType, pf::kTypeBegin);
    number(event_, pf::kEventNameId, name);
    number(event_, pf::kEventCategoryId, category);
    if (track.is_stream || trace_.correlation[e] != 0) annotate(e, track);
    timestamp(trace_.start[e]);
    number(body_, pf::kSequenceFlags, pf::kNeedsState);
    if (!interned_.empty()) bytes(body_, pf::kInternedData, interned_);
    bytes(body_, pf::kTrackEvent, event_);
    packet(body_);
    ++done_.events;
  }

  void end_packet(int64_t time) {
    body_.clear();
    timestamp(time);
    // type: end, and nothing else
    bytes(body_, pf::kTrackEvent, std::string_view("\x48\x02", 2));
    packet(body_);
  }

  void annotate(EventId e, const TraceTrack& track) {
    const bool first = !annotations_known_;
    if (first) {
      annotations_known_ = true;
      uint64_t id = 1;
      for (const std::string_view name : {"correlation", "device", "stream", "bytes"}) {
        std::string entry;
        number(entry, 1, id++);
        bytes(entry, 2, name);
        bytes(interned_, pf::kInternedAnnotations, entry);
      }
    }
    const auto add = [&](uint64_t name, uint64_t value) {
      std::string annotation;
      number(annotation, 1, name);
      number(annotation, 3, value);
      bytes(event_, pf::kDebugAnnotation, annotation);
    };
    if (trace_.correlation[e] != 0) add(1, trace_.correlation[e]);
    // A lane's events are all of one stream: said once.
    if (track.is_stream && first) {
      add(2, static_cast<uint64_t>(track.device));
      add(3, static_cast<uint64_t>(track.stream));
    }
    const auto copy =
        std::lower_bound(trace_.copies.begin(), trace_.copies.end(), e,
                         [](const Trace::Copy& c, EventId wanted) { return c.event < wanted; });
    if (copy != trace_.copies.end() && copy->event == e) add(4, copy->bytes);
  }

  uint64_t intern(std::unordered_map<uint32_t, uint64_t>& known, uint32_t id, uint32_t field,
                  std::string_view text) {
    const auto [at, is_new] = known.try_emplace(id, known.size() + 1);
    if (is_new) {
      std::string entry;
      number(entry, 1, at->second);
      bytes(entry, 2, to_utf8(text));
      bytes(interned_, field, entry);
    }
    return at->second;
  }

  const Trace& trace_;
  ByteSink& to_;
  TimeWindow window_;
  Converted done_;
  std::string out_, body_, event_, interned_;
  std::unordered_map<std::string, uint64_t> processes_;
  std::unordered_map<uint32_t, uint64_t> names_, categories_;
  bool annotations_known_ = false;
  uint64_t next_uuid_ = 1, next_sequence_ = 1, sequence_ = 0;
  int64_t origin_ = 0, now_ = 0;
};

}  // namespace

Result<Converted> write_perfetto(const Trace& trace, ByteSink& to, const TimeWindow& window) {
  return PerfettoWriter(trace, to, window).write();
}

}  // namespace flatout::timeline
