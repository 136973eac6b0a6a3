// What a job asked of device memory, in order: the common form of all that can be replayed, and the
// readers of each format.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "devmem/driver.h"

namespace flatout::devmem {

struct Op {
  enum Kind : uint8_t { kAllocate, kFree, kMark };  // kMark: a step begins
  Kind kind = kMark;
  uint32_t block = 0;  // of kAllocate and kFree: numbered from 0 in order of allocation
  Bytes size = 0;      // of kAllocate, more than 0
  Stream stream = 0;   // of kAllocate
};

struct Trace {
  std::string name;
  std::vector<Op> ops;  // each block is allocated once, and freed at most once, later
  uint32_t blocks = 0;
  uint64_t steps = 0;
  uint64_t skipped = 0;  // records that do not fit: a free of nothing, size 0 or beyond belief
  Bytes peak_live = 0;   // as requested
  Bytes before = 0;      // what of it was live before the recording began; 0, too: not told

  std::vector<std::string> sites = {""};  // who asked; the first: not known
  std::vector<uint32_t> site_of;          // by block

  /// A request that was refused when the trace was recorded, before the operation `op`.
  struct Failure {
    size_t op = 0;
    Bytes size = 0;
    std::string site;
  };
  std::vector<Failure> failures;
};

/// Reads a file's bytes, known by their content: our JSON lines, a PyTorch memory snapshot
/// (pickle), a torch.profiler trace with memory events (Chrome JSON), a log of RMM (CSV), or a
/// job's log with dumps of TensorFlow's arena. A trace for each device that did anything, and for
/// each dump; they are named `name`, with the device where there are several. Errors: kBadInput.
Result<std::vector<Trace>> read_traces(std::string_view bytes, std::string_view name);

/// The readers for each format; read_traces() picks one.
Result<Trace> read_json_lines(std::string_view bytes, std::string_view name);
Result<std::vector<Trace>> read_profiler_trace(std::string_view bytes, std::string_view name);
Result<std::vector<Trace>> read_snapshot(std::string_view bytes, std::string_view name);
Result<Trace> read_rmm_log(std::string_view bytes, std::string_view name);
/// A trace for each dump in a job's log: the chunks in use, as TensorFlow rounded them, and then
/// the request that did not fit.
Result<std::vector<Trace>> read_bfc_dumps(std::string_view bytes, std::string_view name);
/// Whether there is one.
bool has_bfc_dump(std::string_view bytes);

/// Builds a trace from records that name blocks by a key: an address, an id.
class TraceBuilder {
 public:
  explicit TraceBuilder(std::string_view name) { trace_.name = name; }

  /// A live block of that key was freed unseen: it is freed first.
  void allocate(uint64_t key, Bytes size, Stream stream, std::string_view site = {});
  /// It was live before the recording began; all such come first.
  void allocate_before(uint64_t key, Bytes size, Stream stream, std::string_view site = {});
  Bytes bytes_before() const { return trace_.before; }
  /// Such a request was refused now.
  void refuse(Bytes size, std::string_view site = {});
  /// False, and counted as skipped, if no such block is live.
  bool free(uint64_t key);
  void mark();
  void skip() { ++trace_.skipped; }
  bool is_live(uint64_t key) const { return live_.contains(key); }
  bool empty() const { return trace_.blocks == 0; }
  void rename(std::string_view name) { trace_.name = name; }
  Trace take() { return std::move(trace_); }

 private:
  struct Block {
    uint32_t number;
    Bytes size;
  };
  Trace trace_;
  uint32_t number_of_site(std::string_view site);
  std::unordered_map<std::string, uint32_t> sites_;
  std::unordered_map<uint64_t, Block> live_;
  Bytes live_bytes_ = 0;
};

/// The most that is believed of a request, and of all live ones; beyond it a file is damaged.
inline constexpr Bytes kMostBytes = Bytes{1} << 45;

}  // namespace flatout::devmem
