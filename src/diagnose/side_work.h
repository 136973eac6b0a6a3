// What a step does besides training: metrics, statistics, averages, checks, copies.
#pragma once

#include <string_view>
#include <unordered_set>

#include "diagnose/after_backward.h"
#include "diagnose/findings.h"
#include "diagnose/view.h"

namespace flatout::diagnose {

/// The training thread's lines that the loop comes to after its backward pass and that train
/// nothing themselves, and those of callbacks of a trainer's, wherever in the step it calls them.
class SideWork {
 public:
  SideWork(const RunView& view, const AfterBackward& order);
  /// Whether it is on a core for such a line.
  bool holds(const Cell& c) const;

 private:
  void look_at_stacks(const RunView& view);
  void look_at_order(const RunView& view, const AfterBackward& order);

  std::unordered_set<model::FrameId> lines_, callbacks_, trains_, after_;
};

inline constexpr std::string_view kValidationTitle = "Validation in each step takes much of it";
/// Validation that each step does by itself: told by that title. The user's lines that mostly run
/// in it, metrics of it among them; none where it is not told.
std::unordered_set<model::FrameId> detect_side_validation(const RunView& view,
                                                          const AfterBackward& order,
                                                          Findings& findings);

/// Whether this is work beside the training, or validation in each step.
bool is_side_work(const model::Finding& finding);

/// What detect_side_work() has told of; nothing where it found none.
Profile::Filter told_side_work(const RunView& view, const Findings& findings);

}  // namespace flatout::diagnose
