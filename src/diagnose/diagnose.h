// From a Run to its ranked findings: what makes the job slow, erratic or crash.
#pragma once

#include "model/finding.h"
#include "model/run.h"

namespace flatout::diagnose {

/// Pure: no files, no clock, no randomness. run.steps must be filled in (timeline::find_steps).
/// Works on a run that still goes on as on a finished one.
model::Diagnosis diagnose(const model::Run& run);

}  // namespace flatout::diagnose
