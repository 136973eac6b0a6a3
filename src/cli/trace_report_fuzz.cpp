// Any bytes as a trace: its verdict, text, JSON and page can be made.
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "diagnose/trace_findings.h"
#include "report/trace_html.h"
#include "report/trace_json.h"
#include "report/trace_text.h"
#include "timeline/import_trace.h"
#include "timeline/trace_analysis.h"
#include "timeline/trace_convert.h"
#include "timeline/trace_diff.h"
#include "timeline/trace_hta.h"
#include "timeline/trace_picture.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout;  // NOLINT: a program of its own
  timeline::TraceOptions options;
  options.shapes = true;
  auto trace = timeline::import_trace_bytes(
      std::string_view(reinterpret_cast<const char*>(data), size), "trace", options);
  if (!trace.ok()) return 0;
  timeline::snap_epoch_times(*trace);
  const timeline::TraceIndex index(*trace);
  // Twice the same: two ranks.
  std::vector<model::TraceSummary> traces(2, timeline::summarize(index));
  std::vector<model::TracePicture> pictures(2, timeline::draw(index, traces[0], 1000));
  traces[0].hta = timeline::hta_summary(index);
  timeline::align(pictures, traces);
  const model::TraceDiagnosis diagnosis = diagnose::diagnose_traces(traces);
  FLATOUT_CHECK(!report::render_trace_summary(traces, diagnosis, {}).empty());
  FLATOUT_CHECK(!report::trace_summary_json(traces, diagnosis).empty());
  FLATOUT_CHECK(!report::render_trace_html(traces, diagnosis, pictures).empty());
  const model::TraceDiff difference = timeline::diff_traces(*trace, *trace);
  FLATOUT_CHECK(!report::render_trace_diff(difference, {}).empty());
  report::trace_diff_json(difference);
  (void)timeline::steps_window(*trace, "1-3");
  return 0;
}
