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
  std::string text{};              // what it is, for people: "PyTorch"
};

/// What may have made a part longer (or shorter): a finding or a change.
struct Reason {
  bool finding = false;
  std::string what;  // the finding's id, or Change::what
  std::string text;  // for people: "Decoding images bounds the loader"
  std::optional<double> share_ms;
};

/// Time per step that went to one part, in the typical step of each run.
struct PartChange {
  Part part{};
  double old_ms = 0, new_ms = 0;
  Interval moved_ms{};  // new_ms - old_ms, 95 %
  double share = 0;     // of the difference between the runs; negative: it moved against it
  std::vector<Reason> reasons{};  // likeliest first; each stands at one part only
};

/// What a cause cost in each run; nullopt where it was not found, or has no cost per step.
struct FindingChange {
  std::string id, title;
  std::optional<double> old_ms, new_ms;
  Interval old_interval{}, new_interval{};  // 95 %
};

struct Comparison {
  std::string old_name, new_name;  // the folders
  // Of jobs of several ranks: the one that is compared, and whether the others wait for it.
  std::optional<int32_t> rank;
  bool rank_late = false;
  // "slower", "faster", "no_difference" (the interval holds 1), "unknown" (too few steps)
  std::string verdict = "unknown";
  std::string headline;  // one sentence for people
  int64_t old_steps = 0, new_steps = 0;
  double old_median_ms = 0, new_median_ms = 0;
  Interval old_interval{}, new_interval{};  // of the medians, 95 %
  double ratio = 1;                         // new / old median: above 1 is slower
  Interval ratio_interval{};                // 95 %
  // The same of the means, which see what happens now and then, and are at the mercy of it.
  double old_mean_ms = 0, new_mean_ms = 0;
  double mean_ratio = 1;
  Interval mean_ratio_interval{};
  bool by_mean = false;  // they decided, and difference, parts and shares are of the mean step
  double difference_ms = 0;
  Interval difference{};                    // 95 %
  std::vector<PartChange> parts;            // what explains most first
  std::vector<FindingChange> findings;      // of either run
  std::vector<Finding> appeared, vanished;  // findings only in the new run, only in the old one
  std::vector<Change> changes;              // largest known share first, then the most telling
  std::vector<Change> other;                // facts that differ and explain nothing
  double unexplained_ms = 0;                // of difference_ms, beyond all shares

  double deciding_ratio() const { return by_mean ? mean_ratio : ratio; }
};

}  // namespace flatout::model
