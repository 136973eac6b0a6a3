// What two runs had of the machine: cores, clocks, storage, memory, as measured while they ran.
#pragma once

#include <vector>

#include "diagnose/view.h"
#include "model/comparison.h"

namespace flatout::diagnose {

/// What moved by more than noise, with its part of the difference of the median step (milliseconds)
/// where that can be told.
std::vector<model::Change> machine_changes(const RunView& before, const RunView& now,
                                           double difference_ms);

}  // namespace flatout::diagnose
