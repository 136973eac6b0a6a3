// What differs between two traces of a job: operators and kernels, matched by name (and shape,
// where it was recorded).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flatout::model {

struct TraceChange {
  std::string name;
  std::string kind;      // "kernel", "copy", "operator", "python", "runtime", "module", "input"
  std::string place;     // what calls it: a module, or a line of the user's; empty where no stacks
                         // were recorded
  int64_t a = 0, b = 0;  // ns a step (in all, where there are no steps): of operators and Python,
                         // without what they call
  uint64_t count_a = 0, count_b = 0;  // in all
  int64_t difference() const { return b - a; }
};

struct TraceDiff {
  uint64_t steps_a = 0, steps_b = 0;
  int64_t step_a = 0, step_b = 0;           // ns, mean
  std::vector<TraceChange> slower, faster;  // largest difference first
};

}  // namespace flatout::model
