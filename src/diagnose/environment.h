// Variables of the environment that make a job slow by what they are for.
#pragma once

#include <string>

#include "model/run.h"

namespace flatout::diagnose {

/// "Set in the environment: MALLOC_PERTURB_=165 (...)."; "" where nothing of the kind is. Nobody
/// can tell from one run what it costs, so it is no finding.
std::string environment_remark(const model::Run& run);

}  // namespace flatout::diagnose
