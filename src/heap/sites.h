// A heap record by places of the program: which line allocated what is there, at the end and at the
// peak, and which lines' memory only grows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "heap/growth.h"
#include "heap/record.h"
#include "symbols/native_symbols.h"
#include "symbols/process_maps.h"

namespace flatout::heap {

struct Frame {
  std::string function, file;  // the file's binary where there is no line
  uint32_t line = 0;
  bool python = false;
};

/// Whether a file is of a library, an installed package or the compiler's own, not the user's.
bool is_library_file(std::string_view file);

/// The frames of a record's stacks: the allocator's own left out, inlined functions put in, and
/// Python's in the place of the interpreter's.
class FrameReader {
 public:
  /// Without `symbols` native frames have no names. Both must outlive this.
  FrameReader(const Record& record, symbols::NativeSymbols* symbols);
  /// Innermost first.
  std::vector<Frame> frames(const RecordStack& stack);

 private:
  struct Call {
    std::vector<Frame> frames;
    bool allocator = false, interpreter = false;
  };
  const Call& call_at(uint64_t pc);

  const Record& record_;
  symbols::NativeSymbols* symbols_;
  std::vector<symbols::Mapping> maps_;
  std::unordered_map<uint64_t, Call> calls_;
};

/// The frame to name: the innermost of the user's own code, else the innermost.
size_t blamed_frame(const std::vector<Frame>& frames);

/// Whether the blamed frame is importing a module, or is what imports do: a module is loaded once,
/// so that what it takes is no leak however long it goes on.
bool is_importing(const std::vector<Frame>& frames, size_t blamed);

struct Site {
  std::string function, file;
  uint32_t line = 0;
  uint64_t live_bytes = 0, live_count = 0, total_bytes = 0, total_count = 0, peak_bytes = 0;
  uint64_t samples = 0;
  std::vector<uint64_t> at_moment;
  double sample_bytes = 0;               // that a sample of live_bytes stands for
  std::optional<Growth> growth;          // what it has only grows, or it may be so
  std::optional<double> bytes_per_step;  // where there are steps
  std::vector<Frame> stack;              // one that leads to it: of its largest
};

/// Whether growth is looked for by steps.
bool has_steps(const std::vector<uint64_t>& step_ends_ns);
/// Which of the record's moments growth is looked for in, the index of the first: where the job has
/// steps, not what it loads before the first has ended; of a forked process nothing of its
/// parent's.
size_t first_moment(const Record& record, const std::vector<uint64_t>& step_ends_ns);

/// By peak_bytes, largest first. `step_ends_ns`: CLOCK_MONOTONIC, in order; may be empty.
std::vector<Site> find_sites(const Record& record, symbols::NativeSymbols* symbols,
                             const std::vector<uint64_t>& step_ends_ns);

/// Those that grow, the fastest first; or else those that may, but with too few samples to tell.
std::vector<const Site*> leaks_of(const std::vector<Site>& sites, bool certain = true);

}  // namespace flatout::heap
