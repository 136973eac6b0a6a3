// What completion and manual pages are made of.
#pragma once

#include <vector>

#include "cli/options.h"

namespace flatout::cli {

/// How each command is called, in the order of the program's own list.
std::vector<Usage> all_usages();

}  // namespace flatout::cli
