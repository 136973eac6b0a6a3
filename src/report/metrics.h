// The metrics of `flatout serve` in Prometheus' text format 0.0.4 and in OpenMetrics 1.0.
// Formats: prometheus.io/docs/instrumenting/exposition_formats, openmetrics.io.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/finding.h"
#include "model/run.h"

namespace flatout::report {

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram, kInfo };

enum class MetricId : uint16_t {
#define FLATOUT_METRIC(id, name, type, labels, help) id,
#define FLATOUT_SIGNAL_METRIC(signal, name, scale, label) signal,
#include "report/metrics.def"
#undef FLATOUT_METRIC
#undef FLATOUT_SIGNAL_METRIC
  kCount
};

/// What has been counted of a run's steps since it was first looked at: it only grows, as counters
/// must, also where the Run itself is thinned.
struct StepTotals {
  static constexpr std::array<double, 18> kBounds = {
      0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500};
  std::array<uint64_t, kBounds.size() + 1> counts{};  // of steps up to each bound; then the longer
  double seconds = 0;
  std::array<double, model::kPartCount> part_seconds{};
  int64_t steps = 0;
  TimePoint until{};  // the end of the last step that is counted
};

/// Counts the steps of `run` that ended after those counted before.
void add_steps(const model::Run& run, StepTotals& totals);

struct Sample {
  MetricId metric{};
  std::string_view suffix;  // after the name: "_total", "_bucket", ""
  std::string labels;       // as they stand between the braces
  double value = 0;
};

/// The samples of one run, in the order of metrics.def. `signals`: the machine's and the job's own
/// readings too, which mean something only while the run is live.
std::vector<Sample> run_samples(std::string_view id, const model::Run& run,
                                const model::Diagnosis& diagnosis, const StepTotals& totals,
                                bool live);
/// Of the server itself.
std::vector<Sample> build_samples(std::string_view version);

enum class Exposition : uint8_t { kPrometheus, kOpenMetrics };
std::string_view content_type(Exposition exposition);
/// All samples of a metric stand together, whichever list they come from.
std::string render_metrics(std::span<const std::vector<Sample>* const> lists,
                           Exposition exposition);

}  // namespace flatout::report
