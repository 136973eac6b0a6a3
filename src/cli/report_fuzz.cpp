// Any bytes as the recording of a run folder, which may come from anybody: it is judged, and every
// report of it can be made.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/outputs.h"
#include "cli/ranks.h"
#include "report/json.h"
#include "report/metrics.h"
#include "report/status.h"
#include "report/text.h"
#include "timeline/run_decoder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout;  // NOLINT: a program of its own
  timeline::RunDecoder decoder;
  decoder.feed(std::string_view(reinterpret_cast<const char*>(data), size));
  model::Run& run = decoder.run();
  const model::Diagnosis diagnosis = cli::judge(run);
  FLATOUT_CHECK(!diagnosis.verdict.empty());
  for (const model::Finding& finding : diagnosis.findings) FLATOUT_CHECK(!finding.id.empty());
  for (const char* format : {"text", "json", "html", "svg", "speedscope"}) {
    const auto report = cli::render(format, run, diagnosis);
    FLATOUT_CHECK(report.ok() && !report->empty());
  }
  report::run_json(run);
  report::render_stacks(run, {});
  report::status_line(run, diagnosis, {});
  cli::stacks_json(run);
  report::StepTotals totals;
  report::add_steps(run, totals);
  const auto samples = report::run_samples("id", run, diagnosis, totals, true);
  const std::vector<report::Sample>* lists[] = {&samples};
  report::render_metrics(lists, report::Exposition::kOpenMetrics);
  std::vector<model::Rank> ranks = {cli::rank_of(run), cli::rank_of(run)};
  cli::settle(ranks);
  return 0;
}
