// Yesterday against today: how two runs differ in speed, and what changed between them.
#pragma once

#include "model/comparison.h"
#include "model/run.h"

namespace flatout::diagnose {

/// Pure. Both runs with their steps found.
model::Comparison compare(const model::Run& before, const model::Run& now);

}  // namespace flatout::diagnose
