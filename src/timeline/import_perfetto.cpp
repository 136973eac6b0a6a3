#include "timeline/import_perfetto.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/contains.h"
#include "base/protobuf.h"
#include "base/text.h"
#include "timeline/perfetto_fields.h"

namespace flatout::timeline {

using model::EventKind;
namespace pf = perfetto;

namespace {

// A clock of one sequence that counts on from packet to packet.
struct IncrementalClock {
  int64_t value_ns = 0;
  int64_t unit_ns = 1;
};

struct Sequence {
  std::unordered_map<uint64_t, std::string_view> names, categories, annotation_names, strings;
  std::map<uint64_t, IncrementalClock> clocks;
  uint64_t default_clock = 0, default_track = 0;
};

struct TrackInfo {
  std::string_view name;
  int64_t pid = -1, tid = -1;
  std::string_view process_name, thread_name;
  uint64_t parent = 0;
  // As an event of the track said; those after it need not say it again.
  std::optional<int64_t> device, stream;
};

struct Pending {
  ImportedSlice slice;
  std::optional<int64_t> source;  // device that a copy came from
};

// Slices were added as they ended. Of those of a thread that are alike to the nanosecond the outer
// one has to come first, as in other formats: nothing else tells which is within which.
void put_outer_first(model::Trace& trace) {
  std::vector<std::vector<model::EventId>> alike(trace.tracks.size());
  const auto reverse = [&](std::vector<model::EventId>& run) {
    for (size_t i = 0, k = run.size(); i + 1 < k; ++i) {
      --k;
      std::swap(trace.name[run[i]], trace.name[run[k]]);
      std::swap(trace.kind[run[i]], trace.kind[run[k]]);
      std::swap(trace.category[run[i]], trace.category[run[k]]);
      std::swap(trace.correlation[run[i]], trace.correlation[run[k]]);
      std::swap(trace.args[run[i]], trace.args[run[k]]);
    }
    run.clear();
  };
  for (model::EventId e = 0; e < trace.size(); ++e) {
    if (model::on_device(trace.kind[e])) continue;
    auto& run = alike[trace.track[e]];
    if (!run.empty() && (trace.start[e] != trace.start[run.back()] ||
                         trace.duration[e] != trace.duration[run.back()])) {
      reverse(run);
    }
    run.push_back(e);
  }
  for (auto& run : alike) reverse(run);
}

class PerfettoImporter {
 public:
  explicit PerfettoImporter(TraceBuilder& builder) : builder_(builder) {}

  bool read(std::string_view bytes) {
    ProtoReader r(bytes);
    while (r.next()) {
      if (r.number() == pf::kTracePacket) packet(r.bytes());
    }
    for (auto& [uuid, stack] : open_) {
      for (Pending& pending : stack) {
        ++builder_.trace().damage.unpaired;
        pending.slice.duration_ns = std::max<int64_t>(0, last_ - pending.slice.time_ns);
        emit(uuid, pending);
      }
    }
    put_outer_first(builder_.trace());
    if (other_packets_ > 0 && events_ == 0)
      builder_.trace().damage.text = fmt::format("{} packets hold no track events", other_packets_);
    return r.ok();
  }

 private:
  void packet(std::string_view bytes) {
    uint64_t timestamp = 0, clock = 0, sequence_id = 0, flags = 0;
    bool has_clock = false;
    std::string_view interned, defaults, snapshot, descriptor, event;
    ProtoReader r(bytes);
    while (r.next()) {
      switch (r.number()) {
        case pf::kTimestamp:
          timestamp = r.value();
          break;
        case pf::kTimestampClock:
          clock = r.value();
          has_clock = true;
          break;
        case pf::kSequenceId:
          sequence_id = r.value();
          break;
        case pf::kSequenceFlags:
          flags = r.value();
          break;
        case pf::kInternedData:
          interned = r.bytes();
          break;
        case pf::kPacketDefaults:
          defaults = r.bytes();
          break;
        case pf::kClockSnapshot:
          snapshot = r.bytes();
          break;
        case pf::kTrackDescriptor:
          descriptor = r.bytes();
          break;
        case pf::kTrackEvent:
          event = r.bytes();
          break;
        default:
          break;
      }
    }
    Sequence& sequence = sequences_[sequence_id];
    if ((flags & 1) != 0) sequence = Sequence{};
    if (!defaults.empty()) read_defaults(defaults, sequence);
    if (!interned.empty()) read_interned(interned, sequence);
    if (!snapshot.empty()) read_clocks(snapshot, sequence);
    if (!descriptor.empty()) read_track(descriptor);
    if (event.empty()) {
      if (descriptor.empty() && snapshot.empty() && interned.empty() && defaults.empty())
        ++other_packets_;
      return;
    }
    ++events_;
    if (!has_clock) clock = sequence.default_clock;
    auto now = static_cast<int64_t>(timestamp);
    const auto counting = sequence.clocks.find(clock);
    if (counting != sequence.clocks.end()) {
      IncrementalClock& c = counting->second;
      // Hostile steps must not overflow: a trace of 100 years is none.
      const auto step = static_cast<int64_t>(std::min<uint64_t>(timestamp, uint64_t{1} << 42));
      c.value_ns = std::min<int64_t>(c.value_ns + step * c.unit_ns, int64_t{1} << 61);
      now = c.value_ns;
    }
    track_event(event, now, sequence);
  }

  static void read_defaults(std::string_view bytes, Sequence& sequence) {
    ProtoReader r(bytes);
    while (r.next()) {
      if (r.number() == pf::kTimestampClock) sequence.default_clock = r.value();
      if (r.number() != pf::kTrackEventDefaults) continue;
      ProtoReader d(r.bytes());
      while (d.next())
        if (d.number() == pf::kTrackUuid) sequence.default_track = d.value();
    }
  }

  static void read_interned(std::string_view bytes, Sequence& sequence) {
    ProtoReader r(bytes);
    while (r.next()) {
      auto* const table = r.number() == pf::kInternedCategories    ? &sequence.categories
                          : r.number() == pf::kInternedNames       ? &sequence.names
                          : r.number() == pf::kInternedAnnotations ? &sequence.annotation_names
                          : r.number() == pf::kInternedStrings     ? &sequence.strings
                                                                   : nullptr;
      if (table == nullptr) continue;
      uint64_t id = 0;
      std::string_view name;
      ProtoReader entry(r.bytes());
      while (entry.next()) {
        if (entry.number() == 1) id = entry.value();
        if (entry.number() == 2) name = entry.bytes();
      }
      (*table)[id] = name;
    }
  }

  static void read_clocks(std::string_view bytes, Sequence& sequence) {
    struct Clock {
      uint64_t id = 0, time = 0, unit_ns = 1;
      bool counting = false;
    };
    std::vector<Clock> clocks;
    ProtoReader r(bytes);
    while (r.next()) {
      if (r.number() != 1) continue;
      Clock clock;
      ProtoReader c(r.bytes());
      while (c.next()) {
        if (c.number() == 1) clock.id = c.value();
        if (c.number() == 2) clock.time = c.value();
        if (c.number() == 3) clock.counting = c.value() != 0;
        if (c.number() == 4) clock.unit_ns = c.value();
      }
      clocks.push_back(clock);
    }
    // What the sequence's own clock shows now, in the time of a clock that all share.
    const auto shared =
        std::find_if(clocks.begin(), clocks.end(), [](const Clock& c) { return c.id < 64; });
    for (const Clock& clock : clocks) {
      if (clock.id < 64 || !clock.counting) continue;
      const auto unit = static_cast<int64_t>(std::clamp<uint64_t>(clock.unit_ns, 1, 1'000'000));
      const uint64_t now = shared != clocks.end() ? shared->time : clock.time * clock.unit_ns;
      sequence.clocks[clock.id] = {static_cast<int64_t>(std::min<uint64_t>(now, uint64_t{1} << 61)),
                                   unit};
    }
  }

  void read_track(std::string_view bytes) {
    uint64_t uuid = 0;
    TrackInfo info;
    ProtoReader r(bytes);
    while (r.next()) {
      switch (r.number()) {
        case pf::kUuid:
          uuid = r.value();
          break;
        case pf::kTrackName:
          info.name = r.bytes();
          break;
        case pf::kParentUuid:
          info.parent = r.value();
          break;
        case pf::kProcess: {
          ProtoReader p(r.bytes());
          while (p.next()) {
            if (p.number() == 1) info.pid = p.signed_value();
            if (p.number() == 6) info.process_name = p.bytes();
          }
          break;
        }
        case pf::kThread: {
          ProtoReader t(r.bytes());
          while (t.next()) {
            if (t.number() == 1) info.pid = t.signed_value();
            if (t.number() == 2) info.tid = t.signed_value();
            if (t.number() == 5) info.thread_name = t.bytes();
          }
          break;
        }
        default:
          break;
      }
    }
    tracks_[uuid] = info;
    if (!info.name.empty()) by_name_.insert_or_assign({info.parent, info.name}, uuid);
  }

  // Slices of one thread that overlap without nesting lie on several tracks, which `flatout trace
  // convert` calls "thread 7", "thread 7 (2)" and so on: the first of them.
  uint64_t first_lane(uint64_t uuid, const TrackInfo& track) const {
    const size_t open = track.name.rfind(" (");
    if (open == std::string_view::npos || !track.name.ends_with(')')) return uuid;
    if (!parse_number<int64_t>(track.name.substr(open + 2, track.name.size() - open - 3)))
      return uuid;
    const auto first = by_name_.find({track.parent, track.name.substr(0, open)});
    return first != by_name_.end() ? first->second : uuid;
  }

  static void annotation(std::string_view bytes, const Sequence& sequence, Pending& pending) {
    ImportedSlice& slice = pending.slice;
    std::string_view name, text;
    uint64_t number = 0;
    ProtoReader r(bytes);
    while (r.next()) {
      switch (r.number()) {
        case 1: {
          const auto at = sequence.annotation_names.find(r.value());
          if (at != sequence.annotation_names.end()) name = at->second;
          break;
        }
        case 10:
          name = r.bytes();
          break;
        case 3:
        case 4:
          number = r.value();
          break;
        case 6:
          text = r.bytes();
          break;
        default:
          break;
      }
    }
    // "corr_id", "copy_bytes", "src_agent": AMD's rocprofv3.
    if (name == "correlation" || name == "corr_id") slice.correlation = number;
    if (name == "device") slice.device = static_cast<int64_t>(number);
    if (name == "stream") slice.stream = static_cast<int64_t>(number);
    if (name == "bytes" || name == "copy_bytes") slice.bytes = number;
    // 1, or "Agent-1".
    if (name == "src_agent" && text.empty()) pending.source = static_cast<int64_t>(number);
    if (name == "src_agent" && !text.empty())
      pending.source = parse_number<int64_t>(text.substr(text.find_last_of('-') + 1));
  }

  void track_event(std::string_view bytes, int64_t now, const Sequence& sequence) {
    uint64_t type = 0, track = sequence.default_track, legacy_phase = 0;
    int64_t legacy_duration_us = 0;
    Pending pending;
    ImportedSlice& slice = pending.slice;
    slice.name = "(no name)";
    ProtoReader r(bytes);
    while (r.next()) {
      switch (r.number()) {
        case pf::kEventType:
          type = r.value();
          break;
        case pf::kTrackUuid:
          track = r.value();
          break;
        case pf::kEventName:
          slice.name = r.bytes();
          break;
        case pf::kEventNameId: {
          const auto at = sequence.names.find(r.value());
          if (at != sequence.names.end()) slice.name = at->second;
          break;
        }
        case pf::kEventCategory:
          slice.category = r.bytes();
          break;
        case pf::kEventCategoryId: {
          const auto at = sequence.categories.find(r.value());
          if (at != sequence.categories.end()) slice.category = at->second;
          break;
        }
        case pf::kDebugAnnotation:
          annotation(r.bytes(), sequence, pending);
          break;
        case pf::kLegacyEvent: {
          ProtoReader legacy(r.bytes());
          while (legacy.next()) {
            if (legacy.number() == 2) legacy_phase = legacy.value();
            if (legacy.number() == 3) legacy_duration_us = legacy.signed_value();
          }
          break;
        }
        default:
          break;
      }
    }
    if (slice.device || slice.stream) {
      TrackInfo& info = tracks_[track];
      if (slice.device) info.device = slice.device;
      if (slice.stream) info.stream = slice.stream;
    }
    last_ = std::max(last_, now);
    slice.time_ns = now;
    if (legacy_phase == 'X') {
      slice.duration_ns = std::clamp<int64_t>(legacy_duration_us, 0, int64_t{1} << 50) * 1000;
      emit(track, pending);
    } else if (type == pf::kTypeBegin || legacy_phase == 'B') {
      open_[track].push_back(pending);
    } else if (type == pf::kTypeEnd || legacy_phase == 'E') {
      auto& stack = open_[track];
      if (stack.empty()) {
        ++builder_.trace().damage.unpaired;
        return;
      }
      Pending done = stack.back();
      stack.pop_back();
      done.slice.duration_ns = std::max<int64_t>(0, now - done.slice.time_ns);
      emit(track, done);
    }
  }

  // rocprofv3's tracks say what they are: "COMPUTE AGENT [1] STREAM [2] (GPU)", "COPY to AGENT [0]
  // (CPU)". Of a copy to the host the device is its source.
  static void place_by_track(std::string_view track, const Pending& pending, ImportedSlice& slice) {
    if (slice.category != "kernel_dispatch" && slice.category != "memory_copy") return;
    const auto number = [&](std::string_view word) -> std::optional<int64_t> {
      const size_t at = track.find(word), end = track.find(']', at == track.npos ? 0 : at);
      if (at == track.npos || end == track.npos) return std::nullopt;
      return parse_number<int64_t>(track.substr(at + word.size(), end - at - word.size()));
    };
    slice.device = contains(track, "(CPU)") ? pending.source : number("AGENT [");
    slice.stream = number("STREAM [");
    if (!slice.stream) slice.stream = number("QUEUE [");
    // As PyTorch names them.
    if (slice.name == "MEMORY_COPY_HOST_TO_DEVICE") slice.name = "CopyHostToDevice";
    if (slice.name == "MEMORY_COPY_DEVICE_TO_HOST") slice.name = "CopyDeviceToHost";
    if (slice.name == "MEMORY_COPY_DEVICE_TO_DEVICE") slice.name = "CopyDeviceToDevice";
  }

  void emit(uint64_t uuid, const Pending& pending) {
    ImportedSlice slice = pending.slice;
    slice.kind = kind_of_category(slice.category);
    // Up to the process that a track belongs to; a few levels, for hostile ones are circles.
    TrackInfo info;
    if (const auto own = tracks_.find(uuid); own != tracks_.end()) {
      if (!slice.device) slice.device = own->second.device;
      if (!slice.stream) slice.stream = own->second.stream;
      place_by_track(own->second.name, pending, slice);
    }
    uint64_t at = uuid;
    if (const auto own = tracks_.find(uuid); own != tracks_.end())
      at = uuid = first_lane(uuid, own->second);
    for (int level = 0; level < 8; ++level) {
      const auto found = tracks_.find(at);
      if (found == tracks_.end()) break;
      const TrackInfo& here = found->second;
      if (info.name.empty()) info.name = here.name;
      if (info.thread_name.empty()) info.thread_name = here.thread_name;
      if (info.process_name.empty()) info.process_name = here.process_name;
      if (info.tid < 0) info.tid = here.tid;
      if (info.pid < 0) info.pid = here.pid;
      if (here.parent == 0 || info.pid >= 0) break;
      at = here.parent;
    }
    const std::string pid = std::to_string(std::max<int64_t>(info.pid, 0));
    const std::string tid =
        info.tid >= 0 ? std::to_string(info.tid) : fmt::format("track {}", uuid);
    slice.pid = pid;
    slice.tid = tid;
    if (slice.kind == EventKind::kAnnotation || !model::on_device(slice.kind)) slice.device.reset();
    if (model::on_device(slice.kind) && !slice.device) slice.device = 0;
    const model::TrackId track =
        model::on_device(slice.kind) ? model::kNoEvent : builder_.track(pid, tid);
    builder_.add(slice);
    if (track != model::kNoEvent) {
      model::TraceTrack& shown = builder_.trace().tracks[track];
      shown.thread = info.thread_name.empty() ? info.name : info.thread_name;
      shown.process = info.process_name;
    }
  }

  TraceBuilder& builder_;
  std::unordered_map<uint64_t, Sequence> sequences_;
  std::unordered_map<uint64_t, TrackInfo> tracks_;
  std::map<std::pair<uint64_t, std::string_view>, uint64_t> by_name_;  // of a parent
  std::map<uint64_t, std::vector<Pending>> open_;
  int64_t last_ = 0;
  uint64_t events_ = 0, other_packets_ = 0;
};

}  // namespace

bool looks_like_perfetto(std::string_view head) {
  // A packet: field 1 of the trace, whose own fields are of few kinds. Long packets are read as far
  // as they are at hand.
  size_t at = 0;
  int packets = 0;
  while (at + 2 < head.size() && packets < 8) {
    if (head[at] != '\x0A') return false;
    uint64_t size = 0;
    int shift = 0;
    ++at;
    while (at < head.size() && shift < 35) {
      const auto byte = static_cast<unsigned char>(head[at++]);
      size |= static_cast<uint64_t>(byte & 0x7F) << shift;
      shift += 7;
      if (byte < 0x80) break;
    }
    const std::string_view packet = head.substr(at, static_cast<size_t>(size));
    ProtoReader r(packet);
    while (r.next()) {
      // Its wire types are fixed: a timestamp is a number, a descriptor is bytes.
      switch (r.number()) {
        case pf::kTimestamp:
        case pf::kSequenceId:
        case pf::kTimestampClock:
        case pf::kSequenceFlags:
          if (r.wire() != Wire::kVarint) return false;
          ++packets;
          break;
        case pf::kTrackEvent:
        case pf::kTrackDescriptor:
        case pf::kClockSnapshot:
          if (!r.is_bytes()) return false;
          ++packets;
          break;
        default:
          break;
      }
    }
    at += std::min<uint64_t>(size, head.size());
  }
  return packets >= 1;
}

bool import_perfetto(std::string_view bytes, TraceBuilder& builder) {
  return PerfettoImporter(builder).read(bytes);
}

}  // namespace flatout::timeline
