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
  for (const EventId step : index.steps()) {
    const std::string_view name = trace.name_of(step);
    const size_t hash = name.find('#');
    const auto number =
        parse_number<int64_t>(name.substr(hash == std::string_view::npos ? name.size() : hash + 1));
    if (!number) continue;
    if (known.size() < 60) known += fmt::format("{}{}", known.empty() ? "" : ", ", *number);
    if (*number < wanted->first || *number > wanted->second) continue;
    window.begin_ns = std::min(window.begin_ns, trace.start[step]);
    window.end_ns = std::max(window.end_ns, trace.end(step));
  }
  if (window.begin_ns > window.end_ns) {
    return Error{Code::kNotFound, fmt::format("the trace has no step {}", escape_terminal(steps)),
                 known.empty() ? "it has no steps: use --from and --to" : "it has " + known};
  }
  return window;
}

}  // namespace flatout::timeline
