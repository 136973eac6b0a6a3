// Work that grows with every step: what a job has gathered is gone through again each time.
#pragma once

#include <optional>

#include "diagnose/view.h"
#include "model/finding.h"

namespace flatout::diagnose {

/// The line (all of its function, but for the loop's own) at which steps do more than they did
/// before, by far.
struct LongerLine {
  model::Where where;
  double before = 0, after = 0;  // seconds per step
  double share = 0;              // of the fast steps
  int64_t readings = 0;          // after
  bool with_model = false;       // the model has more to do, too: rollouts, generated texts
};

/// That of the training thread, where it makes up most of what the `slow` steps of a run take
/// longer than the `fast` ones, and the rest of the step takes as long as it did.
std::optional<LongerLine> longer_line(const RunView& fast, const RunView& slow);

/// Steps take longer little by little, for that line does. What the line costs beyond what it took
/// at first: nullopt where that is not worth saying.
std::optional<model::Finding> growing_work(const RunView& view, const LongerLine& line);

/// Says of a finding at that line that it grows.
void add_growth(model::Finding& finding, const LongerLine& line);

}  // namespace flatout::diagnose
