// What the charts of the HTML report draw, as one bounded JSON document.
#pragma once

#include <string>

#include "model/finding.h"
#include "model/run.h"
#include "report/profile.h"

namespace flatout::report {

/// Steps (thinned with minima and maxima kept), parts over time, events, curves, thread states,
/// lanes. Escaped so that it can stand inside a <script> element: ASCII, without '<', '>' and '&'.
std::string chart_data(const model::Run& run, const Profile& profile);

}  // namespace flatout::report
