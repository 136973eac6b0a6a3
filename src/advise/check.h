// What of this machine will hold a training job up, or stop it: rules over the machine's state.
#pragma once

#include "advise/machine.h"
#include "model/advice.h"

namespace flatout::advise {

model::CheckUp check_up(const Machine& machine);

/// What Flatout itself can measure here, and what the rest would take.
model::CheckUp check_self(const Machine& machine);

}  // namespace flatout::advise
