// A job's device memory over its requests, by who asked for it: what a page can draw, however long
// the job was. Bytes are as requested, so this is what every allocator has to hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace flatout::model {

/// One call site, or all that are not shown by themselves.
struct MemoryBand {
  std::string label;
  std::vector<uint64_t> bytes;  // by column of the history
  uint64_t at_peak = 0;         // when most was live in all
  uint64_t peak = 0;            // its own
};

/// A request that was refused.
struct MemoryFailure {
  size_t column = 0;
  uint64_t bytes = 0, live = 0;
  std::string label;  // who asked; "" where that is not known
};

struct MemoryHistory {
  std::string name;
  uint64_t operations = 0;        // allocations and frees, spread evenly over the columns
  std::vector<MemoryBand> bands;  // the largest at the peak first; of a column, when most was live
  std::vector<size_t> steps;      // columns in which one begins
  size_t peak_column = 0;
  uint64_t peak = 0;
  std::vector<MemoryFailure> failures;
  uint64_t card = 0;                      // bytes; 0: none is named
  std::optional<size_t> beyond_the_card;  // the first column with more live than it has
};

}  // namespace flatout::model
