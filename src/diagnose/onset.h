// Since when a cause has been there, where it was not from the start.
#pragma once

#include <vector>

#include "diagnose/view.h"
#include "model/finding.h"

namespace flatout::diagnose {

/// Says of each finding with a line of the training thread's from which step on that takes time,
/// where it hardly did in the first quarter of the run or longer.
void tell_onsets(const RunView& view, std::vector<model::Finding>& findings);

}  // namespace flatout::diagnose
