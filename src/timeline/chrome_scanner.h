// Reads Chrome's trace JSON ("Trace Event Format", Google, 2016) of any size as a stream: one event
// at a time, in bounded memory. A list of events alone, or an object with "traceEvents"; cut off
// anywhere. Events that cannot be read are counted and skipped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "timeline/byte_source.h"

namespace flatout::timeline {

/// One event; views are valid during the call alone.
struct ChromeEvent {
  char phase = 0;
  bool has_time = false, bad_number = false;
  bool name_escaped = false, category_escaped = false;
  int64_t time_ns = 0, duration_ns = 0;
  std::string_view name, category;  // content of the strings as they stand in the file
  std::string_view pid, tid, id;    // as they stand, without quotes
  std::string_view args;            // "{...}"; empty: none
  // What is asked for most in `args`, as it stands there without quotes, and empty where it is not;
  // so only with `arguments_known`.
  std::string_view correlation, device, stream, bytes, bandwidth;
  bool arguments_known = false;
  std::string_view text;  // the whole event
  uint64_t offset = 0;    // of the event in the unpacked file
  uint64_t args_offset() const { return offset + static_cast<uint64_t>(args.data() - text.data()); }
};

class ChromeSink {
 public:
  virtual ~ChromeSink() = default;
  virtual void event(const ChromeEvent& event) = 0;
  /// Another member of the outermost object ("distributedInfo"); values longer than 1 MiB are left
  /// out.
  virtual void member(std::string_view key, std::string_view value) = 0;
  /// Asked now and then: true ends the scan.
  virtual bool enough() const { return false; }
};

struct ScanReport {
  uint64_t bytes = 0, events = 0;
  uint64_t bad_events = 0;
  bool has_list = false;    // a list of events was there
  bool complete = false;    // and its end
  bool cut_inside = false;  // the file ends within an event
  uint64_t list_end = 0;    // offset of the byte after the last event
};

enum class ScanFrom : uint8_t {
  kStart,   // of a file
  kInList,  // the first byte of an event; what follows the list is read, too
};

/// Errors: what the source says, and kFull for a single value larger than 256 MiB.
Result<ScanReport> scan_chrome(ByteSource& source, ChromeSink& sink,
                               ScanFrom from = ScanFrom::kStart, uint64_t offset = 0);

/// The same of text in memory, where it is read in place: it must be padded (json_scan.h).
ScanReport scan_chrome_text(std::string_view padded, ChromeSink& sink,
                            ScanFrom from = ScanFrom::kStart, uint64_t offset = 0);

/// Whether text that begins so may be a Chrome trace.
bool looks_like_chrome(std::string_view head);

}  // namespace flatout::timeline
