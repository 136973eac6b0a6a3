#include "timeline/step_summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/stats.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

constexpr size_t kMinSegment = 8;       // steps on each side of a change
constexpr double kMinChange = 0.1;      // of the step
constexpr double kSignificance = 1e-3;  // by chance, per split
constexpr size_t kMaxPoints = 4000;     // longer runs are looked at in blocks of steps

double length_of(const Step& step) { return static_cast<double>(step.length().count()); }

// Judged steps, a long run in blocks: the median of each.
struct Points {
  std::vector<double> length;
  std::vector<size_t> step;  // of the first in the block, index into the steps
};

Points points_of(std::span<const Step> steps) {
  Points all;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].judged()) continue;
    all.length.push_back(length_of(steps[i]));
    all.step.push_back(i);
  }
  const size_t block = all.length.size() / kMaxPoints + 1;
  if (block == 1) return all;
  Points out;
  for (size_t i = 0; i + block <= all.length.size(); i += block) {
    out.length.push_back(median(std::span(all.length).subspan(i, block)));
    out.step.push_back(all.step[i]);
  }
  return out;
}

// Pettitt's test (1979): the split at which the ranks of both sides differ most, and how likely
// such a difference is by chance. Robust to outliers, free of any distribution.
struct Split {
  size_t at = 0;
  double p = 1;
};

Split best_split(std::span<const double> v) {
  const size_t n = v.size();
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return v[i]; });
  std::vector<double> rank(n);
  for (size_t i = 0; i < n;) {
    size_t j = i;
    while (j < n && v[order[j]] == v[order[i]]) ++j;
    for (size_t k = i; k < j; ++k) rank[order[k]] = (static_cast<double>(i + j) + 1) / 2;
    i = j;
  }
  const double count = static_cast<double>(n);
  double sum = 0, best = -1;
  Split split;
  for (size_t k = 1; k < n; ++k) {
    sum += rank[k - 1];
    if (k < kMinSegment || n - k < kMinSegment) continue;
    const double u = std::fabs(2 * sum - static_cast<double>(k) * (count + 1));
    if (u > best) {
      best = u;
      split.at = k;
    }
  }
  if (best >= 0) split.p = 2 * std::exp(-6 * best * best / (count * count * count + count * count));
  return split;
}

void find_splits(std::span<const double> v, size_t offset, std::vector<size_t>& out) {
  if (v.size() < 2 * kMinSegment || out.size() >= 32) return;
  const Split split = best_split(v);
  if (split.p > kSignificance) return;
  find_splits(v.subspan(0, split.at), offset, out);
  out.push_back(offset + split.at);
  find_splits(v.subspan(split.at), offset + split.at, out);
}

// Removes the splits whose sides do not differ enough, the weakest first.
void drop_weak(const std::vector<double>& v, std::vector<size_t>& splits) {
  while (!splits.empty()) {
    double weakest = 1e300;
    size_t which = 0;
    for (size_t i = 0; i < splits.size(); ++i) {
      const size_t from = i == 0 ? 0 : splits[i - 1];
      const size_t to = i + 1 < splits.size() ? splits[i + 1] : v.size();
      const std::span<const double> a = std::span(v).subspan(from, splits[i] - from);
      const std::span<const double> b = std::span(v).subspan(splits[i], to - splits[i]);
      const double before = median(a), after = median(b);
      const double noise = (mad_sigma(a) + mad_sigma(b)) / 2;
      double strength = std::fabs(after - before) / (kMinChange * std::min(before, after));
      // Within the noise of single steps a change needs more of them to count.
      const double steps = static_cast<double>(std::min(a.size(), b.size()));
      strength = std::min(strength, std::fabs(after - before) * std::sqrt(steps) / (4 * noise + 1));
      if (strength < weakest) {
        weakest = strength;
        which = i;
      }
    }
    if (weakest >= 1) return;
    splits.erase(splits.begin() + static_cast<std::ptrdiff_t>(which));
  }
}

// Up and down again at equal distances, and each time back to where it was, is a period (each
// epoch's start, a phase of each save), not a change.
bool alternates(const std::vector<double>& v, const std::vector<size_t>& splits) {
  if (splits.size() < 4) return false;
  std::vector<double> level;
  for (size_t i = 0; i <= splits.size(); ++i) {
    const size_t from = i == 0 ? 0 : splits[i - 1];
    const size_t to = i < splits.size() ? splits[i] : v.size();
    level.push_back(median(std::span(v).subspan(from, to - from)));
  }
  for (size_t i = 2; i < level.size(); ++i) {
    const double there = level[i - 1] - level[i - 2], back = level[i] - level[i - 1];
    if (there * back >= 0 || std::fabs(there + back) > 0.5 * std::fabs(there)) return false;
  }
  std::vector<double> distance;
  for (size_t i = 2; i < splits.size(); ++i) {
    distance.push_back(static_cast<double>(splits[i] - splits[i - 2]));
  }
  return mad_sigma(distance) < 0.25 * median(distance);
}

std::vector<size_t> splits_of(const std::vector<double>& v) {
  std::vector<size_t> splits;
  find_splits(v, 0, splits);
  drop_weak(v, splits);
  if (alternates(v, splits)) splits.clear();
  return splits;
}

}  // namespace

void mark_warmup(std::vector<Step>& steps) {
  if (steps.empty()) return;
  const size_t most = std::clamp<size_t>(steps.size() / 10, 1, 10);
  std::vector<double> rest;
  for (size_t i = most; i < steps.size(); ++i) {
    if (!steps[i].validation && !steps[i].after_gap) rest.push_back(length_of(steps[i]));
  }
  size_t warm = 1;
  if (!rest.empty()) {
    const double usual = median(rest);
    const double limit = usual + std::max(3 * mad_sigma(rest), 0.25 * usual);
    const auto settled = [&](size_t from) {
      for (size_t i = from; i < std::min(from + 3, steps.size()); ++i) {
        if (!steps[i].validation && length_of(steps[i]) > limit) return false;
      }
      return true;
    };
    while (warm < most && !settled(warm)) ++warm;
    if (!settled(warm)) warm = 1;  // it never settles: that is no warm-up
  }
  for (size_t i = 0; i < warm; ++i) steps[i].warmup = true;
}

StepSummary summarise(std::span<const Step> steps, double samples_per_step) {
  StepSummary summary;
  if (steps.empty()) return summary;
  summary.count = steps.back().index - steps.front().index + 1;
  std::vector<const Step*> judged;
  for (const Step& step : steps) {
    summary.warmup += step.warmup;
    if (step.judged()) judged.push_back(&step);
  }
  if (judged.empty()) {
    for (const Step& step : steps) judged.push_back(&step);
  }
  std::vector<double> lengths;
  lengths.reserve(judged.size());
  for (const Step* step : judged) lengths.push_back(length_of(*step));
  summary.median = nanos(median(lengths));
  summary.mean = nanos(mean(lengths));
  summary.p95 = nanos(quantile(lengths, 0.95));
  if (summary.mean.count() > 0) {
    summary.samples_per_s = samples_per_step / to_s(summary.mean);
  }

  // Of the mean step, without a few that are longer than all others by far: one hiccup of the
  // machine must not change the picture, while the first steps of many epochs belong to it.
  const size_t few = std::max<size_t>(lengths.size() / 40, 1);
  std::ranges::sort(lengths);
  const double limit =
      lengths.size() > few ? 2 * lengths[lengths.size() - 1 - few] : lengths.back();
  Nanos total{};
  std::array<Nanos, kPartCount> parts{};
  for (const Step* step : judged) {
    if (length_of(*step) > limit) continue;
    total += step->length();
    for (size_t p = 0; p < kPartCount; ++p) parts[p] += step->parts[p];
  }
  if (total.count() > 0) {
    for (size_t p = 0; p < kPartCount; ++p) summary.breakdown[p] = to_s(parts[p]) / to_s(total);
  }
  return summary;
}

std::vector<SpeedChange> find_speed_changes(std::span<const Step> steps) {
  const Points points = points_of(steps);
  const std::vector<size_t> splits = splits_of(points.length);
  std::vector<SpeedChange> changes;
  for (size_t i = 0; i < splits.size(); ++i) {
    const size_t from = i == 0 ? 0 : splits[i - 1];
    const size_t to = i + 1 < splits.size() ? splits[i + 1] : points.length.size();
    const std::span<const double> all(points.length);
    const Step& first = steps[points.step[splits[i]]];
    changes.push_back({first.index, first.begin, nanos(median(all.subspan(from, splits[i] - from))),
                       nanos(median(all.subspan(splits[i], to - splits[i])))});
  }
  return changes;
}

std::optional<SpeedDrift> find_drift(std::span<const Step> steps) {
  const Points points = points_of(steps);
  const std::vector<double>& y = points.length;
  if (y.size() < 4 * kMinSegment) return std::nullopt;
  std::vector<double> x;
  for (const size_t step : points.step) x.push_back(static_cast<double>(steps[step].index));
  const Line line = theil_sen(x, y);
  const double first = line.intercept + line.slope * x.front();
  const double last = line.intercept + line.slope * x.back();
  if (first <= 0 || last <= 0 || std::fabs(last - first) < kMinChange * std::min(first, last)) {
    return std::nullopt;
  }
  // Each quarter must go on in the same direction: one jump does not.
  double previous = 0;
  for (size_t q = 0; q < 4; ++q) {
    const size_t from = y.size() * q / 4, to = y.size() * (q + 1) / 4;
    const double level = median(std::span(y).subspan(from, to - from));
    if (q > 0 &&
        (level - previous) * line.slope <= 0.1 * std::fabs(last - first) * std::fabs(line.slope)) {
      return std::nullopt;
    }
    previous = level;
  }
  // And the line must fit better than levels do, even with as many as there are splits.
  const std::vector<size_t> splits = splits_of(y);
  double by_line = 0, by_levels = 0;
  size_t from = 0;
  for (size_t i = 0; i <= std::min<size_t>(splits.size(), 1); ++i) {
    const size_t to = i < splits.size() && splits.size() == 1 ? splits[i] : y.size();
    const double level = median(std::span(y).subspan(from, to - from));
    for (size_t k = from; k < to; ++k) by_levels += std::fabs(y[k] - level);
    from = to;
    if (from == y.size()) break;
  }
  for (size_t k = 0; k < y.size(); ++k) {
    by_line += std::fabs(y[k] - line.intercept - line.slope * x[k]);
  }
  if (by_line > 0.9 * by_levels) return std::nullopt;
  return SpeedDrift{nanos(first), nanos(last)};
}

}  // namespace flatout::timeline
