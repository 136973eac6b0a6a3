// fix.html: what `flatout fix` tried, as a page with the step times of all runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "remedy/search.h"

namespace flatout::remedy {

/// Stands in each of them.
inline constexpr std::string_view kFixPageMark = "Made by flatout fix;";

/// One file that loads nothing. `fix_path`: fix.json, as --with takes it; empty: it was not
/// written.
std::string fix_page(const std::vector<std::string>& command, const Outcome& outcome,
                     const std::string& fix_path);

}  // namespace flatout::remedy
