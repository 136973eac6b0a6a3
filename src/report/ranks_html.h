// The ranks of a job in the HTML report: all of them in one strip, the telling ones in a table.
#pragma once

#include <string>

#include "model/rank.h"

namespace flatout::report {

std::string ranks_html(const model::RankReport& report);

}  // namespace flatout::report
