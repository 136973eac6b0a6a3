#include "base/stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace flatout {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double quantile_in_place(std::vector<double>& v, double q) {
  if (v.empty()) return kNan;
  const double position = q * static_cast<double>(v.size() - 1);
  const size_t low = static_cast<size_t>(position);
  const auto nth = v.begin() + static_cast<std::ptrdiff_t>(low);
  std::nth_element(v.begin(), nth, v.end());
  const double a = *nth;
  if (low + 1 >= v.size()) return a;
  const double b = *std::min_element(nth + 1, v.end());
  return a + (b - a) * (position - static_cast<double>(low));
}

// SplitMix64 (Steele, Lea, Flood 2014): small and good enough to resample.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return static_cast<size_t>(next() % n); }

 private:
  uint64_t state_;
};

double resampled_median(std::span<const double> v, Random& random, std::vector<double>& scratch) {
  scratch.resize(v.size());
  for (double& x : scratch) x = v[random.below(v.size())];
  return quantile_in_place(scratch, 0.5);
}

}  // namespace

double quantile(std::span<const double> values, double q) {
  std::vector<double> v(values.begin(), values.end());
  return quantile_in_place(v, q);
}

double median(std::span<const double> values) { return quantile(values, 0.5); }

double mean(std::span<const double> values) {
  if (values.empty()) return kNan;
  double sum = 0;
  for (const double x : values) sum += x;
  return sum / static_cast<double>(values.size());
}

double mad_sigma(std::span<const double> values) {
  const double m = median(values);
  std::vector<double> d;
  d.reserve(values.size());
  for (const double x : values) d.push_back(std::fabs(x - m));
  return 1.4826 * quantile_in_place(d, 0.5);
}

Interval bootstrap_median_ratio(std::span<const double> a, std::span<const double> b, double level,
                                uint64_t seed, int rounds) {
  if (a.empty() || b.empty()) return {kNan, kNan};
  Random random(seed);
  std::vector<double> draws, scratch;
  for (int i = 0; i < rounds; ++i) {
    const double top = resampled_median(a, random, scratch);
    draws.push_back(top / resampled_median(b, random, scratch));
  }
  return {quantile_in_place(draws, (1 - level) / 2), quantile_in_place(draws, (1 + level) / 2)};
}

Line theil_sen(std::span<const double> x, std::span<const double> y) {
  const size_t n = std::min(x.size(), y.size());
  if (n < 2) return {0, n == 1 ? y[0] : kNan};
  std::vector<double> slopes;
  const auto add = [&](size_t i, size_t j) {
    if (x[i] != x[j]) slopes.push_back((y[j] - y[i]) / (x[j] - x[i]));
  };
  if (n <= 300) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = i + 1; j < n; ++j) add(i, j);
    }
  } else {
    Random random(1);
    for (int k = 0; k < 45'000; ++k) add(random.below(n), random.below(n));
  }
  if (slopes.empty()) return {0, median(y)};
  const double slope = quantile_in_place(slopes, 0.5);
  std::vector<double> rest;
  rest.reserve(n);
  for (size_t i = 0; i < n; ++i) rest.push_back(y[i] - slope * x[i]);
  return {slope, quantile_in_place(rest, 0.5)};
}

}  // namespace flatout
