// How many rounds each loop of a thread has begun, from readings of its iterators.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "probe/python_reader.h"

namespace flatout::probe {

struct LoopRounds {
  uint32_t code = 0, depth = 0, slot = 0;  // as in PythonLoop
  int64_t rounds = 0;                      // begun since the loop was first seen, all its runs
};

/// The loops that do not run within an iterator's __next__: what does makes one item for a loop
/// around it, as a data loader makes a batch sample by sample.
std::span<const PythonLoop> outside_iterators(const PythonThread& thread,
                                              const PythonReader& python);

/// An inner loop begins anew in each round of the outer one. What it did between two readings is
/// counted as long as its lengths are known, or the outer loop came round at most once.
class LoopCounter {
 public:
  /// `loops`: of one thread in one reading, outermost first. The loops whose rounds are known.
  std::span<const LoopRounds> update(std::span<const PythonLoop> loops);

 private:
  struct State {
    PythonLoop last;
    int64_t rounds = 0;
    int64_t outer = 0;  // rounds of the loop around it when it was last seen
    uint64_t seen = 0;  // reading in which it was last there
    bool lost = false;  // rounds went by unseen: not counted any more
  };
  State& state_of(const PythonLoop& loop, int64_t outer);

  std::vector<State> states_;
  std::vector<LoopRounds> out_;
  uint64_t readings_ = 0;
};

}  // namespace flatout::probe
