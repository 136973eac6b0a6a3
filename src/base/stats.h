// The few statistics the program needs, all robust to outliers or with an interval.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace flatout {

/// Linear interpolation between order statistics (type 7). q in 0..1. NaN for no values.
double quantile(std::span<const double> values, double q);
double median(std::span<const double> values);
double mean(std::span<const double> values);
/// Median absolute deviation times 1.4826: the standard deviation of normal data.
double mad_sigma(std::span<const double> values);

struct Interval {
  double low = 0;
  double high = 0;
};
/// Percentile bootstrap of the median's ratio a/b. Deterministic for equal input and seed.
Interval bootstrap_median_ratio(std::span<const double> a, std::span<const double> b, double level,
                                uint64_t seed = 1, int rounds = 1000);

/// Theil-Sen line through (x, y): the median of pairwise slopes (pairs sampled beyond 300 points).
struct Line {
  double slope = 0;
  double intercept = 0;
};
Line theil_sen(std::span<const double> x, std::span<const double> y);

}  // namespace flatout
