// Python stacks of another process, read from outside while it runs.
//
// Nothing in the target is stopped or changed, so a reading may catch it in the middle of a change:
// depth and counts are bounded, every code object is checked, and a stack that does not add up is
// dropped (PythonThread::torn). Works for CPython 3.8 to 3.15, with and without GIL.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "base/result.h"
#include "probe/python_finder.h"
#include "probe/python_offsets.h"
#include "probe/remote_memory.h"
#include "symbols/python_lines.h"

namespace flatout::probe {

struct PythonFrame {
  uint32_t code = 0;  // PythonReader::code()
  uint32_t line = 0;
  bool generator = false;  // a generator's or coroutine's; false where that cannot be told
  bool operator==(const PythonFrame&) const = default;
};

/// A `for` loop in progress: how far its iterator has come. Iterators that do not count
/// (generators, dictionaries, files) are not to be seen.
struct PythonLoop {
  uint32_t code = 0;      // PythonReader::code() of the function whose loop it is
  uint32_t depth = 0;     // that many Python frames lie outside of it
  uint32_t slot = 0;      // place on the frame's value stack: inner loops lie above outer ones
  uint64_t iterator = 0;  // address of the iterator
  int64_t begun = 0;      // rounds so far, the one that runs included
  int64_t length = -1;    // rounds in all; -1: not known
};

struct PythonThread {
  uint64_t address = 0;     // of its PyThreadState
  uint64_t pthread_id = 0;  // threading.get_ident()
  int32_t tid = 0;          // as the process itself sees it; 0: not known
  bool holds_gil = false;
  // Holds the lock or, free-threaded, is attached to the interpreter: what the collector takes from
  // all threads but its own.
  bool attached = false;
  bool torn = false;                // no stack in this reading
  bool cut = false;                 // deeper than is read; the outermost frames are missing
  std::vector<PythonFrame> frames;  // innermost first; empty: no Python on this thread now
  std::vector<PythonLoop> loops;    // outermost first; only of the thread of read_loops_of()
};

struct PythonReading {
  std::vector<PythonThread> threads;
  bool gc_running = false;  // the collector of some interpreter is at work
  bool gil_locked = false;
  bool cut = false;            // more threads than are read
  std::vector<uint64_t> gils;  // addresses of the locks: a thread in futex() there waits for one
};

struct PythonCode {
  std::string function, file;
  int first_line = 0;
};

class PythonReader {
 public:
  /// Errors: kNotFound (not a Python process, or not started yet), kDenied, kGone, kUnsupported.
  static Result<std::unique_ptr<PythonReader>> open(const fs::Root& root, int32_t pid,
                                                    PythonFinder& finder);
  /// On any memory (tests, fuzzers). place.minor chooses the offsets where the memory does not.
  static Result<std::unique_ptr<PythonReader>> open(std::unique_ptr<RemoteMemory> memory,
                                                    const PythonPlace& place);

  /// Reads all threads into `out`, whose capacity is reused. `tids`: the process's threads, as it
  /// sees them itself; needed up to 3.10 to tell which is which.
  /// Errors: kDenied, kGone, kTorn (try again later).
  Status read(PythonReading& out, std::span<const int32_t> tids = {});

  /// From the reading after the next on also the loops of the outermost frames of thread `tid` (as
  /// the process sees it itself; 0: of none).
  void read_loops_of(int32_t tid) { loops_of_ = tid; }

  const PythonCode& code(uint32_t id) const { return codes_[id]; }
  int minor() const { return offsets_.minor; }
  uint64_t runtime() const { return place_.runtime; }
  bool free_threaded() const { return offsets_.free_threaded; }
  uint64_t system_calls() const { return snapshot_.calls(); }

 private:
  // What an iterator holds; kItems: none, but has its index beside it.
  enum class Counting : uint8_t { kNot, kRange, kIndex, kSequence, kItems };
  struct KnownCode {
    uint32_t id = 0;
    uint64_t name = 0, file = 0, table = 0;  // the objects it refers to
    int first_line = 0;
    uint32_t locals = 0, stack = 0;  // words that its frames have for each
    uint64_t checked = 0;            // reading in which the code object was last looked at
    symbols::PythonLines lines;
  };

  PythonReader(std::unique_ptr<RemoteMemory> memory, const PythonPlace& place);
  Status choose_offsets();
  bool walk_matches(const PythonOffsets& offsets);
  Status read_once(PythonReading& out);
  bool read_interpreter(uint64_t interp, PythonReading& out);
  bool read_thread(const char* block, PythonThread& thread);
  void fetch_data_stack(const char* block);
  bool read_frames(uint64_t frame, PythonThread& thread);
  void read_loops(PythonThread& thread);
  void read_loops(uint64_t frame, const KnownCode& code, PythonLoop loop, PythonThread& thread);
  bool read_iterator(PythonLoop& loop);
  bool read_items(uint64_t address, PythonLoop& loop);
  Counting counting_of(uint64_t type_address);
  int64_t instruction(const char* block, uint64_t code);
  KnownCode* find_code(uint64_t address, bool distrust);
  bool is_code_type(uint64_t type);
  bool read_string(uint64_t address, std::string& out);
  bool read_bytes(uint64_t address, std::string& out);
  uint32_t intern(const std::string& function, const std::string& file, int line);
  void find_tids(PythonReading& out, std::span<const int32_t> tids);
  void learn_tid_offset(const PythonReading& out, std::span<const int32_t> tids);

  std::unique_ptr<RemoteMemory> memory_;
  RemoteSnapshot snapshot_;
  PythonPlace place_;
  PythonOffsets offsets_;
  size_t thread_block_ = 0, frame_block_ = 0, code_block_ = 0;  // bytes read of each
  uint64_t readings_ = 0;
  size_t count_ = 0, frames_ = 0;                  // threads and frames in this reading so far
  std::unordered_map<uint64_t, KnownCode> known_;  // by address
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<PythonCode> codes_;
  int tid_offset_ = -1;  // of the tid in libc's struct pthread, until 3.10
  int32_t loops_of_ = 0;
  uint64_t loops_thread_ = 0;  // address of its PyThreadState
  std::vector<std::pair<uint64_t, const KnownCode*>>
      stack_;                                     // frames of loops_of_, innermost first
  std::unordered_map<uint64_t, Counting> types_;  // by address
};

}  // namespace flatout::probe
