// The pages of `flatout serve`: the list of runs, and a run's report that keeps itself up to date.
// Their scripts ask the server that they came from and nobody else.
#pragma once

#include <cstdint>
#include <string_view>

#include "report/html_page.h"

namespace flatout::report {

/// The list of runs, their history and what to compare; its contents come from runs.json.
Page runs_page();

/// A report (report_body()) within that page's frame. `id`: of the run, as in its path. `live`: it
/// asks for newer ones.
Page live_page(std::string_view id, std::string_view body, uint64_t revision, bool live);

}  // namespace flatout::report
