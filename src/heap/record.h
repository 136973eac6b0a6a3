// What libflatout_malloc.so writes of a process's heap (malloc/profile.cpp, dump_heap()): a text of
// one line an entry. Any input may be hostile: the process that wrote it is the user's.
//
//   flatout-heap 1
//   pid 4121
//   interval 524288                    bytes between samples in the mean; 0 and 1: every allocation
//   written 123456789                  CLOCK_MONOTONIC ns
//   forked 12345678                    CLOCK_MONOTONIC ns, where a process has its parent's past
//   at-end                             where the process ended by itself: nothing came after
//   live 1234567                       bytes now
//   peak 2345678                       bytes at most
//   moments 10 20 30                   CLOCK_MONOTONIC ns
//   stack LIVE_BYTES LIVE_COUNT TOTAL_BYTES TOTAL_COUNT PEAK_BYTES SAMPLES SAMPLE_BYTES : LIVE... @
//       PC... pID...                   (one line)
//   python ID <tab> LINE <tab> FUNCTION <tab> FILE
//   was MAPPING                        a line of maps that was true before a library was closed
//   maps                               from here on /proc/PID/maps
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace flatout::heap {

struct PythonPlace {
  std::string function, file;
  uint32_t line = 0;
};

struct RecordStack {
  // Estimates of bytes and blocks: in use now, ever, and in use at the process's peak.
  uint64_t live_bytes = 0, live_count = 0, total_bytes = 0, total_count = 0, peak_bytes = 0;
  uint64_t samples = 0;             // that these are made of
  uint64_t sample_bytes = 0;        // that one of live_bytes stands for; the mean by bytes
  std::vector<uint64_t> at_moment;  // live bytes; as many as Record::moments_ns
  std::vector<uint64_t> native;     // return addresses, innermost first
  std::vector<uint32_t> python;     // ids of Record::places, innermost first
};

struct Record {
  int32_t pid = 0;
  uint64_t interval = 0, live_bytes = 0, peak_bytes = 0;
  uint64_t written_ns = 0;
  uint64_t forked_ns = 0;  // what was before is its parent's; 0: it has all by itself
  bool at_end = false;     // false: the process went on, nobody knows how
  std::vector<uint64_t> moments_ns;
  std::vector<RecordStack> stacks;
  std::unordered_map<uint32_t, PythonPlace> places;
  std::string maps;            // with what was closed, where nothing else lies now
  bool objects_apart = false;  // a free-threaded Python's, in an allocator of its own: not seen

  bool exact() const { return interval <= 1; }
};

/// Errors: kBadInput. A record that is cut off gives what is whole.
Result<Record> parse_record(std::string_view text);

}  // namespace flatout::heap
