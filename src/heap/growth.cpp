#include "heap/growth.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace flatout::heap {
namespace {

// For each: to be certain, and to be worth a word.
struct Demand {
  double samples;              // that the growth consists of
  double late;                 // that came after the first half
  double chance, late_chance;  // standard deviations of the level that these are, too
  size_t rises;  // moments at which it rose for good: what is loaded comes at one or two
};
constexpr Demand kCertain{6, 2, 4, 2.6, 4}, kUnclear{2, 1, 3, 2, 2};
// Of what would come after the first half if the growth were even, so much does. A cache that is
// full is still.
constexpr double kStill = 0.45;
constexpr double kBegun = 0.2;  // of even growth was there after the first half
constexpr double kSeen = 5;     // samples: a part that so many are to be expected in has one

// The floors at the beginnings of the quarters, and in the end, each of an eighth of the run: what
// is freed at the end of every step does not count. In samples.
struct Floors {
  double at[5];
  static constexpr double kWhere[5] = {0, 0.25, 0.5, 0.75, 0.875};  // where it is if all grows
};

struct Trend {
  double grown, late, noise;
  double late_even;  // what would be late if all were even
  size_t rises;
  bool everywhere;
};

// From the quarter `from` on.
Trend trend_of(const std::vector<double>& level, const Floors& floors, size_t from) {
  Trend out{};
  const double first = floors.at[from], half = floors.at[2], last = floors.at[4];
  out.grown = last - first;
  out.late = last - half;
  double fallen = 0, floor = level.back();
  for (size_t i = level.size() - 1; i > level.size() * from / 4; --i) {
    const double fall = std::max(0.0, level[i - 1] - level[i]);
    fallen += fall * fall;
    if (level[i - 1] < floor) {
      floor = level[i - 1];
      ++out.rises;
    }
  }
  // What was never freed is known for sure; of what comes and goes, the level is.
  out.noise = std::min(std::sqrt(std::max(0.0, last)), std::sqrt(2 * fallen));
  const double all = Floors::kWhere[4] - Floors::kWhere[from];
  const auto even = [&](size_t a, size_t b) {
    return out.grown * (Floors::kWhere[b] - Floors::kWhere[a]) / all;
  };
  out.late_even = even(2, 4);
  out.everywhere = half - first >= kBegun * even(from, 2);
  for (size_t q = from; q < 4; ++q) {
    const double part = floors.at[q + 1] - floors.at[q];
    if (even(q, q + 1) >= kSeen ? part <= 0 : part < -2 * out.noise) out.everywhere = false;
  }
  return out;
}

bool meets(const Trend& t, const Demand& d) {
  double still = kStill * t.late_even;
  // Of few samples less may be late by chance.
  if (&d == &kUnclear)
    still = std::min(still, t.late_even - 2 * std::sqrt(std::max(0.0, t.late_even)));
  return t.everywhere && t.late >= still && t.grown >= std::max(d.samples, d.chance * t.noise) &&
         t.late >= std::max(d.late, d.late_chance * t.noise) && t.rises >= d.rises;
}

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
  std::vector<double> level;
  for (const uint64_t bytes : at_moment) {
    level.push_back(static_cast<double>(bytes) / sample_bytes);
  }
  Floors floors{};
  const auto lowest = [&](size_t begin, size_t end) {
    return *std::min_element(level.begin() + static_cast<std::ptrdiff_t>(begin),
                             level.begin() + static_cast<std::ptrdiff_t>(end));
  };
  const size_t window = std::max<size_t>(2, n / 8);
  for (size_t q = 0; q < 4; ++q) floors.at[q] = lowest(n * q / 4, n * q / 4 + window);
  floors.at[4] = lowest(n - window, n);
  // What the program loads at its start is no growth: the first quarter may count or not.
  for (const bool certain : {true, false}) {
    for (const size_t from : {size_t{0}, size_t{1}}) {
      if (!meets(trend_of(level, floors, from), certain ? kCertain : kUnclear)) continue;
      std::vector<double> x, y;
      for (size_t i = n / 2; i < n; ++i) {
        x.push_back(static_cast<double>(i));
        y.push_back(static_cast<double>(at_moment[i]));
      }
      const double grown = lowest(n - 2, n) - floors.at[from];
      return Growth{grown * sample_bytes, slope(x, y), certain};
    }
  }
  return std::nullopt;
}

std::optional<Growth> growth_over_time(const std::vector<uint64_t>& at_moment,
                                       const std::vector<uint64_t>& at_ns, double sample_bytes) {
  constexpr size_t kPoints = 32;
  constexpr size_t kLastMoments = 8;  // it still grows in the last one of so many
  const size_t n = std::min(at_moment.size(), at_ns.size());
  if (n < kLeastMoments || at_ns[n - 1] <= at_ns[0]) return std::nullopt;
  // What was loaded before something else was done is still in many moments, however short.
  const size_t tail = n - std::max<size_t>(1, n / kLastMoments);
  if (*std::min_element(at_moment.begin() + static_cast<std::ptrdiff_t>(tail),
                        at_moment.begin() + static_cast<std::ptrdiff_t>(n)) >= at_moment[n - 1])
    return std::nullopt;
  std::vector<uint64_t> even;
  size_t last = 0, distinct = 1;
  for (size_t k = 0; k < kPoints; ++k) {
    const double share = static_cast<double>(k) / (kPoints - 1);
    const auto until =
        at_ns[0] + static_cast<uint64_t>(static_cast<double>(at_ns[n - 1] - at_ns[0]) * share);
    const size_t before = last;
    while (last + 1 < n && (at_ns[last + 1] <= until || k + 1 == kPoints)) ++last;
    distinct += last != before ? 1 : 0;
    even.push_back(at_moment[last]);
  }
  if (distinct < kLeastMoments) return std::nullopt;
  const auto growth = steady_growth(even, sample_bytes);
  return growth && growth->certain ? growth : std::nullopt;
}

}  // namespace flatout::heap
