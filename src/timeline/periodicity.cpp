#include "timeline/periodicity.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/stats.h"

namespace flatout::timeline {
namespace {

constexpr int64_t kMinSeen = 3;
constexpr int64_t kMaxFold = 64;
constexpr double kRegular = 0.7;
constexpr size_t kMaxSteps = 5000;
constexpr double kMinExtra = 0.05;  // of a usual step

int64_t mod(int64_t a, int64_t n) { return ((a % n) + n) % n; }

struct Candidate {
  Period period;
  double score = 0;
};

// How well "every `period`-th step from `phase` on is slow" fits. nullopt if it does not.
std::optional<Candidate> judge(std::span<const int64_t> index, const std::vector<double>& length,
                               int64_t period, int64_t phase) {
  std::vector<double> on, off;
  for (size_t i = 0; i < index.size(); ++i) {
    (mod(index[i], period) == phase ? on : off).push_back(length[i]);
  }
  if (static_cast<int64_t>(on.size()) < kMinSeen || off.size() < on.size()) return std::nullopt;
  const double usual = median(off), slow = median(on);
  const double noise = mad_sigma(off);
  const double extra = slow - usual;
  if (extra < kMinExtra * usual || extra < 4 * noise / std::sqrt(static_cast<double>(on.size())) ||
      extra < noise) {
    return std::nullopt;
  }
  const double limit = usual + extra / 2;
  const auto above = [&](double l) { return l > limit; };
  const auto hits = std::ranges::count_if(on, above);
  const auto misses = std::ranges::count_if(off, above);
  const double precision = static_cast<double>(hits) / static_cast<double>(on.size());
  const double recall = static_cast<double>(hits) / static_cast<double>(hits + misses);
  if (precision < kRegular || recall < kRegular) return std::nullopt;
  Candidate candidate;
  candidate.period = {period, phase, nanos(extra), hits, recall};
  candidate.score = precision + recall;
  return candidate;
}

}  // namespace

std::optional<Period> find_period(std::span<const int64_t> index, std::span<const Nanos> length) {
  size_t n = std::min(index.size(), length.size());
  if (n < 8) return std::nullopt;
  // The latest of very many: enough for any period that is worth naming.
  const size_t skip = n > kMaxSteps ? n - kMaxSteps : 0;
  n -= skip;
  index = index.subspan(skip, n);
  length = length.subspan(skip, n);
  std::vector<double> lengths;
  for (size_t i = 0; i < n; ++i) lengths.push_back(static_cast<double>(length[i].count()));
  const int64_t range = index[n - 1] - index[0] + 1;

  std::map<std::pair<int64_t, int64_t>, bool> tried;
  Candidate best;
  const auto attempt = [&](int64_t period, int64_t phase) {
    if (period < 2 || period * kMinSeen > range ||
        !tried.emplace(std::pair(period, phase), true).second) {
      return;
    }
    const auto candidate = judge(index, lengths, period, phase);
    // Of equally good ones the shortest: its multiples fit too, but miss slow steps.
    if (candidate && candidate->score > best.score + 1e-9) best = *candidate;
  };

  const double usual = median(lengths);
  // Short periods by folding: half of all steps may be slow.
  for (int64_t period = 2; period <= std::min(kMaxFold, range / kMinSeen); ++period) {
    std::vector<std::vector<double>> phases(static_cast<size_t>(period));
    for (size_t i = 0; i < n; ++i) {
      phases[static_cast<size_t>(mod(index[i], period))].push_back(lengths[i]);
    }
    size_t slowest = 0;
    double most = -1;
    for (size_t p = 0; p < phases.size(); ++p) {
      const double m = phases[p].empty() ? -1 : median(phases[p]);
      if (m > most) {
        most = m;
        slowest = p;
      }
    }
    if (most > (1 + kMinExtra / 2) * usual) attempt(period, static_cast<int64_t>(slowest));
  }
  // Long ones by the distances between the slow steps.
  const double limit = usual + std::max(5 * mad_sigma(lengths), 0.1 * usual);
  std::vector<int64_t> slow;
  for (size_t i = 0; i < n; ++i) {
    if (lengths[i] > limit) slow.push_back(index[i]);
  }
  std::map<int64_t, size_t> distances;
  for (size_t i = 0; i < slow.size(); ++i) {
    for (size_t j = i + 1; j < std::min(i + 4, slow.size()); ++j) ++distances[slow[j] - slow[i]];
  }
  std::vector<std::pair<size_t, int64_t>> common;
  for (const auto& [distance, count] : distances) {
    if (count >= 2) common.emplace_back(count, distance);
  }
  std::ranges::sort(common, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  if (common.size() > 8) common.resize(8);
  for (const auto& [count, distance] : common) {
    std::map<int64_t, size_t> phases;
    for (const int64_t step : slow) ++phases[mod(step, distance)];
    const auto most = std::ranges::max_element(phases, {}, [](const auto& p) { return p.second; });
    attempt(distance, most->first);
  }
  if (best.score <= 0) return std::nullopt;
  return best.period;
}

std::optional<Nanos> find_time_period(std::span<const TimePoint> times) {
  if (times.size() < 4) return std::nullopt;
  std::vector<double> distances;
  for (size_t i = 1; i < times.size(); ++i) {
    distances.push_back(static_cast<double>((times[i] - times[i - 1]).count()));
  }
  const double usual = median(distances);
  const auto regular = std::ranges::count_if(
      distances, [&](double d) { return d > 0.8 * usual && d < 1.2 * usual; });
  if (usual <= 0 ||
      static_cast<double>(regular) < kRegular * static_cast<double>(distances.size())) {
    return std::nullopt;
  }
  return nanos(usual);
}

}  // namespace flatout::timeline
