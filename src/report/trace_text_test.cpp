#include "report/trace_text.h"

#include <gtest/gtest.h>

#include <vector>

namespace flatout::report {
namespace {

TEST(TraceText, OnlyAHealthyTraceHasATick) {
  const std::vector<model::TraceSummary> traces(1);
  model::TraceDiagnosis d;
  d.headline = "Most of the time passes where the trace records nothing";
  d.verdict = "none";
  EXPECT_TRUE(render_trace_summary(traces, d, {}).starts_with("? Most"));
  d.verdict = "healthy";
  EXPECT_TRUE(render_trace_summary(traces, d, {}).starts_with("✓ Most"));
  d.verdict = "cpu.python_bound";
  d.findings.resize(1);
  EXPECT_TRUE(render_trace_summary(traces, d, {}).starts_with("▲ Most"));
}

}  // namespace
}  // namespace flatout::report
