#include "diagnose/compare_steps.h"

#include <algorithm>
#include <random>

namespace flatout::diagnose {
namespace {

constexpr int kRounds = 500;
// Steps of each run that are resampled, evenly spaced: more would hardly narrow the intervals.
constexpr size_t kMostSteps = 2000;

StepTimes thinned(const StepTimes& steps) {
  if (steps.lengths.size() <= kMostSteps) return steps;
  StepTimes out;
  for (size_t i = 0; i < kMostSteps; ++i) {
    const size_t row = i * steps.lengths.size() / kMostSteps;
    out.lengths.push_back(steps.lengths[row]);
    out.parts.push_back(steps.parts[row]);
  }
  return out;
}

}  // namespace

StepTimes step_times(const RunView& view) {
  StepTimes out;
  for (const model::Step* step : view.steps().steady) {
    out.lengths.push_back(to_ms(step->length()));
    std::array<double, model::kPartCount> parts{};
    for (size_t p = 0; p < parts.size(); ++p) parts[p] = to_ms(step->parts[p]);
    out.parts.push_back(parts);
  }
  return out;
}

double TypicalStep::in(Parts which) const {
  double sum = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    if ((which & bit(static_cast<model::Part>(p))) != 0) sum += parts[p];
  }
  return which == kAllParts || sum <= 0 ? mean : sum;
}

TypicalStep typical_step(const StepTimes& steps) {
  TypicalStep out;
  if (steps.lengths.empty()) return out;
  out.median = median(steps.lengths);
  out.mean = mean(steps.lengths);
  for (const auto& parts : steps.parts) {
    for (size_t p = 0; p < out.parts.size(); ++p) out.parts[p] += parts[p];
  }
  for (double& part : out.parts) part /= static_cast<double>(steps.parts.size());
  return out;
}

std::vector<TypicalStep> resample(const StepTimes& steps, uint64_t seed) {
  const StepTimes from = thinned(steps);
  if (from.lengths.empty()) return {};
  std::mt19937_64 random(seed);
  StepTimes drawn = from;
  std::vector<TypicalStep> out;
  out.reserve(kRounds);
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < from.lengths.size(); ++i) {
      const size_t row = random() % from.lengths.size();
      drawn.lengths[i] = from.lengths[row];
      drawn.parts[i] = from.parts[row];
    }
    out.push_back(typical_step(drawn));
  }
  return out;
}

}  // namespace flatout::diagnose
