#include <fmt/format.h>

#include <algorithm>

#include "base/number_range.h"
#include "base/text.h"
#include "timeline/trace_convert.h"
#include "timeline/trace_index.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

Result<TimeWindow> steps_window(const Trace& trace, std::string_view steps) {
  const auto wanted = parse_range<int64_t>(steps);
  if (!wanted) {
    return Error{Code::kBadInput, fmt::format("'{}' names no steps", escape_terminal(steps)),
                 "--step 3 or --step 3-5"};
  }
  TimeWindow window{INT64_MAX, INT64_MIN};
  std::string known;
  const TraceIndex index(trace);
  int64_t nth = 0;
  for (const TraceStep& step : index.steps()) {
    // Steps that have no number of their own are counted from 0.
    const size_t digits = step.name.find_last_not_of("0123456789") + 1;
    const auto number =
        std::optional(parse_number<int64_t>(step.name.substr(digits)).value_or(nth));
    ++nth;
    if (known.size() < 60) known += fmt::format("{}{}", known.empty() ? "" : ", ", *number);
    if (*number < wanted->first || *number > wanted->second) continue;
    window.begin_ns = std::min(window.begin_ns, step.begin);
    window.end_ns = std::max(window.end_ns, step.end);
  }
  if (window.begin_ns > window.end_ns) {
    return Error{Code::kNotFound, fmt::format("the trace has no step {}", escape_terminal(steps)),
                 known.empty() ? "it has no steps: use --from and --to" : "it has " + known};
  }
  return window;
}

}  // namespace flatout::timeline
