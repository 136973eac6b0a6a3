// The ways to explain why making a batch takes as long as it does, each with what would be saved
// without it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnose/input.h"

namespace flatout::diagnose {

/// One way to explain the input's cost.
struct InputCause {
  std::string id, title;
  Relief relief;
  double weight = 0;  // seconds per batch that it explains
  Profile::Filter cells;

  /// Producers and the step take turns.
  bool in_turns() const { return id == "input.too_few_workers" && relief.uneven > 0; }
};

/// Every cause that explains some of a batch's time, in no order.
std::vector<InputCause> input_causes(const RunView& view, const BatchTimes& times,
                                     const WhatIf& whatif);
/// The cause that lies in handing batches over; nullopt where that takes nothing.
std::optional<InputCause> passing_cause(const RunView& view, const BatchTimes& times);
/// CPU time per batch among a part of the producers' time: a part of all that they use.
double cpu_among(const RunView& view, const BatchTimes& times, double seconds);
/// Whether there are fewer than could work side by side. Threads that need the interpreter's lock
/// could not.
bool few_workers(const RunView& view, const BatchTimes& times);
/// Whether cores idle on which more workers would find room.
bool has_idle_cores(const RunView& view);
/// Seconds per step that the training thread takes over the memory of batches that have come: they
/// were made in time, and their descriptors are asked for one by one.
double taken_over(const RunView& view);
/// Batches that a loader made, of each step; 1 where they were not counted.
double batches_per_step(const RunView& view);
/// What to do about a finding that was made from one of them.
void add_input_remedies(model::Finding& finding, const RunView& view, const BatchTimes& times,
                        bool in_turns);

}  // namespace flatout::diagnose
