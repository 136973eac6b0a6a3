// What all steps of a run say together: warm-up, summary, changes of speed.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "model/run.h"

namespace flatout::timeline {

/// Marks the first steps as warm-up until their length settles: at least one, at most ten or a
/// tenth of them.
void mark_warmup(std::vector<model::Step>& steps);

/// `samples_per_step`: 0 where not known.
model::StepSummary summarise(std::span<const model::Step> steps, double samples_per_step);

/// Where the steps' length changes for good by at least a tenth: not by single slow steps, not
/// periodically, not by a slow drift (see find_drift).
std::vector<model::SpeedChange> find_speed_changes(std::span<const model::Step> steps);

/// A steady trend of at least a tenth over the run that explains the lengths better than changes.
std::optional<model::SpeedDrift> find_drift(std::span<const model::Step> steps);

}  // namespace flatout::timeline
