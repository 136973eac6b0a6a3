// flatout trace: analysis of traces that other profilers wrote.
#include <fmt/format.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "report/trace_json.h"
#include "timeline/import_trace.h"
#include "timeline/trace_analysis.h"

namespace flatout::cli {
namespace {

const Usage kSummary{
    "trace summary",
    "FILE... [options]",
    "Says what holds a job up, from its trace alone; of several ranks, who waits for whom.",
    "  flatout trace summary trace.json.gz             # PyTorch, TensorFlow, Perfetto: known by content\n"
    "  flatout trace summary rank*.json.gz             # the ranks of one job together\n"
    "  flatout trace summary trace.json --json         # every figure, for scripts",
    {"verbose"},
    true,
    false,
    false,
    1,
    100'000};

int fail(const Error& error) {
  log_error(error.message, error.hint);
  return error.code == Code::kBadInput ? 2 : 1;
}

int summary(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kSummary, arguments, code);
  if (!settings) return code;
  std::vector<model::TraceSummary> traces;
  for (const std::string& file : settings->positional) {
    auto trace = timeline::import_trace(file);
    if (!trace.ok()) return fail(trace.error());
    const timeline::TraceIndex index(*trace);
    traces.push_back(timeline::summarize(index));
  }
  model::TraceDiagnosis diagnosis;
  const Status put = write_text("", report::trace_summary_json(traces, diagnosis));
  return put.ok() ? 0 : fail(put.error());
}

}  // namespace

int trace(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments[0] == "summary")
    return summary({arguments.begin() + 1, arguments.end()});
  return 2;
}

}  // namespace flatout::cli
