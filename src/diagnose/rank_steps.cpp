#include "diagnose/rank_steps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/stats.h"

namespace flatout::diagnose {

using model::Rank;

namespace {

constexpr size_t kFewSteps = 10;
// Steps of ranks that wait for each other have the same length but for the optimizer's own.
constexpr double kSpread = 0.3;
// A rank's lateness is judged by the means of so many blocks of its steps, each of this length or
// more: what disturbs one step disturbs the next, and which core a thread has lasts longer still.
constexpr size_t kBlocks = 10;
constexpr double kBlockSeconds = 0.4;
// Steps are of two kinds where those of each spread by less than this part of what lies between the
// kinds; a finding is that difference where its cost is as large but for this part.
constexpr double kOneKind = 0.25, kSameCost = 0.3;

}  // namespace

CommonSteps common_steps(const std::vector<Rank>& ranks) {
  std::vector<int64_t> indices;
  for (size_t r = 0; r < ranks.size(); ++r) {
    std::vector<int64_t> mine;
    for (const model::RankStep& s : ranks[r].judged) mine.push_back(s.index);
    if (r == 0) {
      indices = std::move(mine);
      continue;
    }
    std::vector<int64_t> both;
    std::set_intersection(indices.begin(), indices.end(), mine.begin(), mine.end(),
                          std::back_inserter(both));
    indices = std::move(both);
  }
  CommonSteps out;
  out.length.resize(indices.size());
  std::vector<double> spread(indices.size());
  std::vector<double> shortest(indices.size(), std::numeric_limits<double>::max());
  for (const Rank& rank : ranks) {
    std::vector<double>& own = out.own.emplace_back();
    std::vector<double>& waiting = out.waiting.emplace_back();
    size_t at = 0;
    for (const model::RankStep& s : rank.judged) {
      if (at == indices.size() || s.index != indices[at]) continue;
      own.push_back(to_s(s.own()));
      waiting.push_back(to_s(s.waiting));
      const double length = to_s(s.length);
      out.length[at] += length / static_cast<double>(ranks.size());
      shortest[at] = std::min(shortest[at], length);
      spread[at] = std::max(spread[at], length);
      ++at;
    }
  }
  for (size_t k = 0; k < indices.size(); ++k) {
    spread[k] = out.length[k] > 0 ? (spread[k] - shortest[k]) / out.length[k] : 0;
  }
  // Ranks that do not keep step have nothing in common.
  if (indices.size() < kFewSteps || median(spread) > kSpread) return {};
  return out;
}

Sure surely_above(std::span<const double> values, double length) {
  const double seconds = length * static_cast<double>(values.size());
  const size_t blocks =
      std::min({kBlocks, values.size() / 2, static_cast<size_t>(seconds / kBlockSeconds)});
  if (blocks < 3) return Sure::kNo;
  std::vector<double> means;
  for (size_t b = 0; b < blocks; ++b) {
    const size_t from = values.size() * b / blocks, to = values.size() * (b + 1) / blocks;
    means.push_back(mean(values.subspan(from, to - from)));
  }
  const double all = mean(means);
  double squares = 0;
  for (const double m : means) squares += (m - all) * (m - all);
  const double n = static_cast<double>(blocks);
  const double error = std::sqrt(squares / (n - 1) / n);
  // For 3 to 10 blocks: two to nine degrees of freedom.
  static constexpr std::array<double, kBlocks - 2> kHundred = {6.96, 4.54, 3.75, 3.36,
                                                               3.14, 3.00, 2.90, 2.82};
  static constexpr std::array<double, kBlocks - 2> kThousand = {22.3, 10.2, 7.17, 5.89,
                                                                5.21, 4.79, 4.50, 4.30};
  if (all > kThousand[blocks - 3] * error) return Sure::kOneInThousand;
  return all > kHundred[blocks - 3] * error ? Sure::kOneInHundred : Sure::kNo;
}

std::optional<Struck> struck_by(std::span<const double> steps, double cost) {
  std::vector<double> sorted(steps.begin(), steps.end());
  std::sort(sorted.begin(), sorted.end());
  double low = sorted[sorted.size() / 4], high = sorted[sorted.size() * 98 / 100];
  std::vector<double> short_ones, long_ones;
  for (int round = 0; round < 10; ++round) {
    short_ones.clear();
    long_ones.clear();
    for (const double s : sorted) (s < (low + high) / 2 ? short_ones : long_ones).push_back(s);
    if (short_ones.size() < 2 || long_ones.size() < 2) return std::nullopt;
    low = mean(short_ones);
    high = mean(long_ones);
  }
  Struck out;
  out.by = high - low;
  for (const std::vector<double>& kind : {short_ones, long_ones}) {
    double squares = 0;
    const double middle = mean(kind);
    for (const double s : kind) squares += (s - middle) * (s - middle);
    if (std::sqrt(squares / static_cast<double>(kind.size())) > kOneKind * out.by)
      return std::nullopt;
  }
  const double share = static_cast<double>(long_ones.size()) / static_cast<double>(steps.size());
  if (std::fabs(share * out.by - cost) > kSameCost * cost) return std::nullopt;
  for (const double s : steps) out.steps.push_back(s >= (low + high) / 2);
  return out;
}

}  // namespace flatout::diagnose
