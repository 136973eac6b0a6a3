// Variables of the environment that make a job slow by what they are for.
#pragma once

#include <string>
#include <string_view>

#include "model/run.h"

namespace flatout::diagnose {

/// "Set in the environment: MALLOC_PERTURB_=165 (...)."; "" where nothing of the kind is. Nobody
/// can tell from one run what it costs, so it is no finding.
std::string environment_remark(const model::Run& run);

/// Whether a fact of a run ("env.MALLOC_PERTURB_") has such a value.
bool slows_by_purpose(std::string_view fact, std::string_view value);

}  // namespace flatout::diagnose
