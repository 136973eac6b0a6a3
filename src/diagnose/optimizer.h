// An optimizer that updates operation by operation.
#pragma once

#include "diagnose/findings.h"

namespace flatout::diagnose {

void detect_optimizer(const RunView& view, Findings& findings);

}  // namespace flatout::diagnose
