// Trace: what a profiler recorded, one row an event, as columns (39 bytes an event and interned
// names). Importers (timeline/import_trace.h) fill it, whatever the format; times are integer
// nanoseconds on the trace's own clock.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/column.h"
#include "model/string_table.h"

namespace flatout::model {

using EventId = uint32_t;  // a row of a Trace
using TrackId = uint32_t;  // Trace::tracks
inline constexpr uint32_t kNoEvent = 0xFFFFFFFF;

enum class EventKind : uint8_t {
  kOther,
  kOp,          // an operator on the host (cpu_op)
  kPython,      // a Python function
  kAnnotation,  // a range that the program named: ProfilerStep#3
  kRuntime,     // a call of CUDA, HIP or another device's runtime or driver
  kKernel,
  kMemcpy,
  kMemset,
  kDeviceAnnotation,  // a range drawn on a device's track: no work
  kSync,              // waiting for a device
  kOverhead,
  kSpan,  // the whole recording
};
/// Whether the device works for it.
constexpr bool on_device(EventKind kind) {
  return kind == EventKind::kKernel || kind == EventKind::kMemcpy || kind == EventKind::kMemset;
}
constexpr bool on_host(EventKind kind) {
  return kind == EventKind::kOp || kind == EventKind::kPython || kind == EventKind::kAnnotation ||
         kind == EventKind::kRuntime || kind == EventKind::kOther;
}

/// A thread of a process, or a stream of a device.
struct TraceTrack {
  std::string process, thread;  // names, may be empty
  std::string pid, tid;         // as the file says
  bool is_stream = false;
  int64_t device = -1, stream = -1;  // of a stream
};

/// What an importer could not use. Shown, so that nobody trusts numbers of half a trace.
struct TraceDamage {
  bool cut_off = false;      // the file ends within the list of events
  uint64_t bad_events = 0;   // not readable: skipped
  uint64_t bad_numbers = 0;  // NaN and the like
  uint64_t unpaired = 0;     // a begin without its end or the other way round
  uint64_t dropped = 0;      // short host slices that were left out to bound memory
  std::string text;          // what the format itself says is missing
  bool any() const { return cut_off || bad_events + bad_numbers + unpaired > 0 || !text.empty(); }
};

struct Trace {
  // One row an event.
  Column<int64_t> start, duration;  // ns
  Column<uint64_t> args;            // byte offset of its arguments in the (unpacked) file, 0: none
  Column<StringId> name;
  Column<TrackId> track;
  Column<uint32_t> correlation;  // joins a runtime call with what it launched; 0: none
  Column<uint16_t> category;     // categories
  Column<EventKind> kind;

  StringTable strings;
  std::vector<std::string> categories;
  std::vector<TraceTrack> tracks;

  struct Copy {
    EventId event;
    uint64_t bytes;
    double gb_per_s = 0;  // as the recorder says; 0: it does not
  };
  std::vector<Copy> copies;  // copies whose size is known, by event

  /// A collective on a device: who takes part, and how much is sent.
  struct Collective {
    EventId event;
    StringId name, group;  // "_allgather_base", the process group's name
    uint64_t bytes = 0;
  };
  std::vector<Collective> collectives;  // by event

  std::string file,
      format;  // "chrome", "flatout" (a run folder's), "tf1", "xplane", "perfetto", "nsight"
  int64_t base_time_ns = 0;  // add for Unix time; 0: not known, or times are Unix time already
  int rank = -1, world_size = -1;
  std::map<int64_t, std::string> device_names;
  bool epoch_times =
      false;  // microseconds since 1970: written by programs that keep them as doubles
  uint64_t bytes_read = 0;   // unpacked
  uint64_t events_seen = 0;  // of any phase
  std::map<char, uint64_t> phases;
  std::map<std::string, uint64_t> slices_by_category;  // slices seen, kept or not
  TraceDamage damage;

  size_t size() const { return start.size(); }
  int64_t end(EventId e) const { return start[e] + duration[e]; }
  std::string_view name_of(EventId e) const { return strings[name[e]]; }
  const TraceTrack& track_of(EventId e) const { return tracks[track[e]]; }
  size_t bytes() const {
    return start.bytes() + duration.bytes() + args.bytes() + name.bytes() + track.bytes() +
           correlation.bytes() + category.bytes() + kind.bytes() + strings.bytes();
  }
  /// `count` more rows, their values not set. The first one's number.
  size_t extend(size_t count) {
    const size_t first = size();
    start.extend(count);
    duration.extend(count);
    args.extend(count);
    name.extend(count);
    track.extend(count);
    correlation.extend(count);
    category.extend(count);
    kind.extend(count);
    return first;
  }
  void push_back(int64_t start_ns, int64_t duration_ns, StringId name_id, TrackId track_id,
                 EventKind event_kind, uint16_t category_id, uint32_t correlation_id = 0,
                 uint64_t args_at = 0) {
    start.push_back(start_ns);
    duration.push_back(duration_ns);
    args.push_back(args_at);
    name.push_back(name_id);
    track.push_back(track_id);
    correlation.push_back(correlation_id);
    category.push_back(category_id);
    kind.push_back(event_kind);
  }
};

}  // namespace flatout::model
