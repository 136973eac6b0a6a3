// Comparison: why one run was slower than another (`flatout compare OLD NEW`). Made by
// diagnose/compare, rendered by report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/stats.h"
#include "model/finding.h"
#include "model/step.h"

namespace flatout::model {

/// Something that differs between the two runs and may explain a difference in speed.
struct Change {
  std::string what;           // the fact's key or a signal: "torch.version", "mem.cached_bytes"
  std::string before, after;  // for people: "2.12.0", "31.2 GiB"; "" where there was none
  std::optional<double> share_ms;  // its part of the difference per step; nullopt: not known
};

/// Time per step that went to one part, in the median step of each run.
struct PartChange {
  Part part{};
  double old_ms = 0, new_ms = 0;
};

struct Comparison {
  std::string old_name, new_name;  // the folders
  // "slower", "faster", "no_difference" (the interval holds 1), "unknown" (too few steps)
  std::string verdict = "unknown";
  std::string headline;  // one sentence for people
  int64_t old_steps = 0, new_steps = 0;
  double old_median_ms = 0, new_median_ms = 0;
  double ratio = 1;         // new / old step time: above 1 is slower
  Interval ratio_interval;  // 95 %
  std::vector<PartChange> parts;
  std::vector<Finding> appeared, vanished;  // findings only in the new run, only in the old one
  std::vector<Change> changes;              // largest known share first
  double unexplained_ms = 0;                // of new_median - old_median, beyond all shares
};

}  // namespace flatout::model
