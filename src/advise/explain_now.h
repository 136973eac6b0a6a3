// What bears on a failure on this machine now: it changes how sure an answer is, not the answer.
#pragma once

#include "advise/log_rules.h"
#include "advise/machine.h"
#include "model/advice.h"

namespace flatout::advise {

/// Adds to `answer` what of the machine bears on it, who holds what ran out, and how sure that
/// makes it.
void look_at_machine(Look what, const Machine& machine, model::Explanation& answer);

}  // namespace flatout::advise
