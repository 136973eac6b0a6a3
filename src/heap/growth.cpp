#include "heap/growth.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace flatout::heap {
namespace {

constexpr size_t kLeastMoments = 8;
constexpr double kLeastSamples = 6;  // that the growth consists of
constexpr double kChance = 4;        // standard deviations of a level of so many samples
constexpr double kStill = 0.12;      // of all growth is in the last quarter, at least; evenly: 0.33
constexpr double kKept = 0.75;       // of the last quarter's level is there at the end

}  // namespace

double slope(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  double mean_x = 0, mean_y = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    mean_x += x[i] / n;
    mean_y += y[i] / n;
  }
  double up = 0, down = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    up += (x[i] - mean_x) * (y[i] - mean_y);
    down += (x[i] - mean_x) * (x[i] - mean_x);
  }
  return down > 0 ? up / down : 0;
}

std::optional<Growth> steady_growth(const std::vector<uint64_t>& at_moment, double sample_bytes) {
  const size_t n = at_moment.size();
  if (n < kLeastMoments || sample_bytes <= 0) return std::nullopt;
  // The floor of each quarter: what is freed at the end of every step does not count.
  double floor[4];
  for (size_t q = 0; q < 4; ++q) {
    const auto begin = at_moment.begin() + static_cast<std::ptrdiff_t>(n * q / 4);
    const auto end = at_moment.begin() + static_cast<std::ptrdiff_t>(n * (q + 1) / 4);
    floor[q] = static_cast<double>(*std::min_element(begin, end));
  }
  const double grown = floor[3] - floor[0];
  const bool steady = floor[1] >= floor[0] && floor[2] > floor[1] && floor[3] > floor[2];
  if (!steady || floor[3] - floor[2] < kStill * grown) return std::nullopt;
  if (static_cast<double>(at_moment.back()) < kKept * floor[3]) return std::nullopt;
  const double chance = kChance * std::sqrt(floor[3] / sample_bytes);
  if (grown / sample_bytes < std::max(kLeastSamples, chance)) return std::nullopt;
  std::vector<double> x, y;
  for (size_t i = n / 2; i < n; ++i) {
    x.push_back(static_cast<double>(i));
    y.push_back(static_cast<double>(at_moment[i]));
  }
  return Growth{grown, slope(x, y)};
}

}  // namespace flatout::heap
