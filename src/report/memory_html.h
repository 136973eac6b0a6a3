// Device memory over a job's requests by call site, as one self-contained HTML file.
#pragma once

#include <string>
#include <vector>

#include "model/memory_history.h"

namespace flatout::report {

/// `histories`: at least one.
std::string render_memory_html(const std::vector<model::MemoryHistory>& histories);

}  // namespace flatout::report
