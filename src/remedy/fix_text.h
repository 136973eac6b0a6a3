// The outcome of `flatout fix` for people.
#pragma once

#include <string>
#include <vector>

#include "remedy/search.h"

namespace flatout::remedy {

/// `fix_path`: where fix.json was written; "" nowhere.
std::string render_fix(const std::vector<std::string>& command, const Outcome& outcome,
                       const std::string& fix_path);

}  // namespace flatout::remedy
