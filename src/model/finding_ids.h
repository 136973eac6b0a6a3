// The vocabulary of findings: every id that Flatout can report, in the order of docs/findings.
#pragma once

#include <string_view>
#include <vector>

namespace flatout::model {

/// tools/check_docs.py holds them against the pages in docs/findings.
const std::vector<std::string_view>& finding_ids();

}  // namespace flatout::model
