// Where threads spend their time: stack readings summed by who (role), when (part of the step), at
// which stage of making a batch, doing what, on which of the user's lines.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "diagnose/stacks.h"
#include "model/run.h"

namespace flatout::diagnose {

enum class Role : uint8_t {
  kTrainer,       // the training thread
  kPool,          // native threads of its process that compute for it
  kProducer,      // makes batches: loader workers, feeder threads
  kProducerPool,  // native threads of worker processes that compute for their producer
  kHelper,        // any other thread of the job
};

/// Stage of a thread's work on batches, from its own slices.
enum class Stage : uint8_t { kNone, kFetch, kCollate, kHandover };

/// What a thread did in a reading, by the kind of remedy rather than by its OS state.
enum class Act : uint8_t {
  kPython,    // on CPU in the interpreter
  kNative,    // on CPU in native code
  kKernel,    // on CPU in the kernel, the call not known
  kMemory,    // on CPU or blocked in mapping, unmapping, zeroing memory
  kRunQueue,  // wants a core
  kGil,       // wants the interpreter lock
  kLock,
  kRead,      // waits for storage
  kMetadata,  // opens, stats, lists files, blocked or not
  kSeek,      // looks for a place in an archive or stream
  kWrite,     // writes or syncs a file, pipe or terminal
  kSleep,
  kPoll,     // waits for another process, thread or a socket
  kNetwork,  // receives from or sends to a socket
  kChild,    // starts a process or waits for one
  kReclaim,  // waits for memory
  kGc,       // collects garbage
  kIdle,     // has nothing to do
  kUnknown,
  kCount
};

bool on_cpu(Act act);
/// On a core in the kernel, as far as it is not known to be for files or the network.
bool in_kernel(Act act);
/// On a core or at what the job needs done; neither idle nor waiting for others.
bool works(Act act);
/// Does something itself, rather than waiting for somebody.
bool waits_for_nobody(Act act);
/// "waiting for a lock".
std::string_view words(Act act);

struct Cell {
  Role role{};
  Stage stage{};
  Act act{};
  model::Part part = model::Part::kCount;  // of the training thread at that time; kCount: no step
  bool slow_step = false;                  // in a step far longer than usual
  bool aside = false;                      // in another process than the training thread's
  model::FrameId user = 0;                 // the user's line
  Traits traits = 0;
  double seconds = 0;
  int64_t readings = 0;
};

/// Without a stack: that of Python which runs fast cannot always be read. Such time is spread as
/// the rest is.
bool is_unread(const Cell& cell);
/// The same for all lines of a function; frame 0's where the run has no such frame.
uint64_t function_key(const model::Run& run, model::FrameId frame);
/// Whether native code takes or releases a lock of the job's, or waits for one; not malloc's.
bool at_lock_of_jobs(const Cell& cell);

/// A place in the job with the time spent there.
struct Hot {
  model::FrameId frame = 0;
  double seconds = 0;
};

class Profile {
 public:
  void add(const Cell& one);  // sums into the cell of equal keys

  using Filter = std::function<bool(const Cell&)>;
  double seconds(const Filter& filter) const;
  int64_t readings(const Filter& filter) const;
  /// The user's line with the most of this time; lines of one function count together, the
  /// function's hottest line is named. nullopt where no cell has a line. `before`: what is taken
  /// off, `times` over, so that what has grown counts.
  std::optional<Hot> hottest(const Filter& filter, const model::Run& run,
                             const Profile* before = nullptr, double times = 0) const;
  const std::vector<Cell>& cells() const { return cells_; }

 private:
  std::vector<Cell> cells_;
  std::unordered_map<uint64_t, uint32_t> index_;
};

/// What a reading says; `traits` of its stack.
Act act_of(const model::StackReading& reading, Traits traits);

}  // namespace flatout::diagnose
