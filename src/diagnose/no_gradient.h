// A word on work of the forward pass that the backward pass hardly goes through.
#pragma once

#include <string>

#include "diagnose/view.h"

namespace flatout::diagnose {

/// "Line ... takes 90 % of each step ..."; "" where the backward pass takes as long as it does
/// behind such a forward pass. No finding: what changes from step to step cannot be made once, and
/// nobody can tell from outside.
std::string work_without_gradient(const RunView& view);

}  // namespace flatout::diagnose
