// A run of a trial as JSON: how it comes back from the process that recorded it.
#pragma once

#include <string>

#include "base/result.h"
#include "remedy/trial.h"

namespace flatout::remedy {

std::string to_json(const TrialRun& run);
/// Errors: kBadInput.
Result<TrialRun> trial_from_json(const std::string& text);

}  // namespace flatout::remedy
