// The steps of two runs under comparison, with bootstrap intervals.
#pragma once

#include <array>
#include <vector>

#include "base/stats.h"
#include "diagnose/fact_kinds.h"
#include "diagnose/view.h"

namespace flatout::diagnose {

/// Steady steps, in milliseconds.
struct StepTimes {
  std::vector<double> lengths;
  std::vector<std::array<double, model::kPartCount>> parts;
};
StepTimes step_times(const RunView& view);

struct TypicalStep {
  double median = 0, mean = 0;
  std::array<double, model::kPartCount> parts{};  // of the mean step
  double length(bool by_mean) const { return by_mean ? mean : median; }
  /// A part of the mean step, or of that brought to the median's length, as the breakdown has it.
  double part(size_t p, bool by_mean) const {
    return by_mean || mean <= 0 ? parts[p] : parts[p] * median / mean;
  }
  /// Mean time in some parts; the whole step where they are all of them, or took no time.
  double in(Parts which) const;
};
TypicalStep typical_step(const StepTimes& steps);

/// The typical steps of resampled runs. Deterministic for equal input and seed.
std::vector<TypicalStep> resample(const StepTimes& steps, uint64_t seed);

/// 95 % of what `value` gives for the resampled runs.
template <class Value>
Interval interval_of(const std::vector<TypicalStep>& draws, Value value) {
  std::vector<double> values;
  values.reserve(draws.size());
  for (const TypicalStep& draw : draws) values.push_back(value(draw));
  return {quantile(values, 0.025), quantile(values, 0.975)};
}

/// The same of two runs that know nothing of each other; `value` gets one of each.
template <class Value>
Interval interval_of(const std::vector<TypicalStep>& before, const std::vector<TypicalStep>& now,
                     Value value) {
  std::vector<double> values;
  for (size_t i = 0; i < before.size() && i < now.size(); ++i) {
    values.push_back(value(before[i], now[i]));
  }
  return {quantile(values, 0.025), quantile(values, 0.975)};
}

}  // namespace flatout::diagnose
