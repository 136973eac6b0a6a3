// Traces from one format to another, or a window of one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "model/trace.h"
#include "timeline/byte_sink.h"
#include "timeline/byte_source.h"

namespace flatout::timeline {

/// What is kept: events that overlap [begin, end), on the trace's own clock; all names of tracks.
struct TimeWindow {
  int64_t begin_ns = INT64_MIN, end_ns = INT64_MAX;
  bool operator==(const TimeWindow&) const = default;
};

struct Converted {
  uint64_t events = 0;    // written
  uint64_t names = 0;     // of these, names of tracks, which no window leaves out
  uint64_t repaired = 0;  // of these, their text was no valid JSON
  bool cut_off = false;   // the input is
};

/// Chrome JSON to Chrome JSON, event by event as they stand: nothing is lost, what is malformed is
/// mended (control characters, bytes that are not UTF-8, NaN, a missing end). Memory does not grow
/// with the trace.
Result<Converted> copy_chrome(ByteSource& from, ByteSink& to, const TimeWindow& window = {});

/// Any trace as Chrome JSON: what the columns hold, so arguments only of device events.
Result<Converted> write_chrome(const model::Trace& trace, ByteSink& to,
                               const TimeWindow& window = {});

/// Any trace as Perfetto's protobuf (.pftrace). Slices that overlap without nesting get lanes. At
/// most 45 bytes a slice, names apart.
Result<Converted> write_perfetto(const model::Trace& trace, ByteSink& to,
                                 const TimeWindow& window = {});

/// The window of steps "3", "3-5" (as ProfilerStep numbers them) of a trace. Errors: kNotFound,
/// with the steps there are.
Result<TimeWindow> steps_window(const model::Trace& trace, std::string_view steps);

/// JSON text made valid: for events with raw control characters, bad UTF-8 or NaN. `changed` says
/// whether it had to be.
std::string mend_json(std::string_view text, bool& changed);

}  // namespace flatout::timeline
