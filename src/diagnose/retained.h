// Backward passes that go again through what earlier ones of the same step went through.
#pragma once

#include "diagnose/findings.h"

namespace flatout::diagnose {

void detect_retained(const RunView& view, Findings& findings);

}  // namespace flatout::diagnose
