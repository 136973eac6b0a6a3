#include "remedy/decision.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/stats.h"

namespace flatout::remedy {
namespace {

// Two runs of the same thing differ by about this, however many steps they have.
constexpr double kRunSpread = 0.007;
// What is known beforehand of a run's error (kRunSpread and its halves) weighs as much as so many
// differences between runs, as long as the variance that is seen is no more than so many times
// what is expected. On a machine that is noisier than that, only what is seen counts.
constexpr int kPriorRuns = 2;
constexpr double kContradiction = 3.5;
// One-sided error at each of the remedy's looks: less than 5 % in all, since a machine may be
// noisier than a few runs tell.
constexpr std::array<double, kMostLooks> kErrors = {0.0035, 0.003, 0.004, 0.005, 0.007};
// Cores that others used in runs of A beyond those of B (or the reverse), as a share of the
// machine, that explain a difference away.
constexpr double kUnevenOthers = 0.1;
// Others used so much of the machine that "no difference" says nothing when the interval is wide.
constexpr double kManyOthers = 0.25;
constexpr double kWide = 0.1;

// Of Student's t with `freedom` degrees of freedom: the chance to be above t > 0. Abramowitz and
// Stegun, 26.7.3 and 26.7.4.
double chance_above(double t, int freedom) {
  const double angle = std::atan(t / std::sqrt(freedom));
  const double cosine = std::cos(angle);
  double term = freedom % 2 == 1 ? cosine : 1.0, sum = freedom == 1 ? 0.0 : term;
  for (int i = freedom % 2 == 1 ? 2 : 1; i < freedom - 2; i += 2) {
    term *= cosine * cosine * i / (i + 1);
    sum += term;
  }
  const double within =
      freedom % 2 == 1 ? 2 / M_PI * (angle + std::sin(angle) * sum) : std::sin(angle) * sum;
  return (1 - within) / 2;
}

double quantile_of_t(double chance, int freedom) {
  double low = 0, high = 1000;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (chance_above(middle, freedom) > chance ? low : high) = middle;
  }
  return high;
}

// What the runs of all looks say: the logarithm of the gain, and the variance of one run's.
struct Estimate {
  double log_gain = 0, variance = 0;
  int freedom = 0;  // degrees of it
};

// `logs`: of the runs' means, kRunsPerLook a look in the order A B B A or B A A B. `expected`: the
// variance that a run should have.
Estimate estimate(const std::vector<double>& logs, const std::vector<bool>& is_b, double expected) {
  std::vector<double> gains;
  double seen = 0;
  for (size_t i = 0; i < logs.size(); i += kRunsPerLook) {
    // In which a steady drift and the gain cancel: 1, -3, 3, -1.
    const double rest = logs[i] - logs[i + 3] - 3 * (logs[i + 1] - logs[i + 2]);
    seen += rest * rest / 20;
    const double gain = (logs[i] + logs[i + 3] - logs[i + 1] - logs[i + 2]) / 2;
    gains.push_back(is_b[i] ? -gain : gain);
  }
  Estimate out;
  out.log_gain = mean(gains);
  for (const double gain : gains) seen += (gain - out.log_gain) * (gain - out.log_gain);
  const int differences = static_cast<int>(2 * gains.size()) - 1;
  const int known = seen / differences <= kContradiction * expected ? kPriorRuns : 0;
  out.freedom = known + differences;
  out.variance = (known * expected + seen) / out.freedom;
  return out;
}

}  // namespace

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kBetter:
      return "better";
    case Verdict::kWorse:
      return "worse";
    case Verdict::kNoDifference:
      return "no difference";
    case Verdict::kSpoiled:
      return "spoiled";
    case Verdict::kGoesOn:
      return "goes on";
    case Verdict::kUndecided:
      break;
  }
  return "undecided";
}

RunMean mean_of(const std::vector<double>& seconds) {
  RunMean out;
  out.seconds = mean(seconds);
  const size_t half = seconds.size() / 2;
  if (half == 0 || !(out.seconds > 0)) return out;
  const std::span<const double> steps(seconds);
  const double off = (mean(steps.first(half)) - mean(steps.last(half))) / out.seconds;
  out.log_variance = off * off / 2;
  return out;
}

Decision decide(const std::vector<TrialSteps>& runs, const std::vector<bool>& is_b, double cores,
                size_t earlier_looks) {
  Decision out;
  const size_t looks = std::min(std::min(runs.size(), is_b.size()) / kRunsPerLook,
                                kMostLooks - std::min(earlier_looks, kMostLooks));
  if (looks == 0) return out;
  std::vector<double> logs;
  double within = 0, others[2] = {0, 0};
  for (size_t i = 0; i < looks * kRunsPerLook; ++i) {
    const RunMean run = mean_of(runs[i].seconds);
    const bool outer = i % kRunsPerLook == 0 || i % kRunsPerLook == 3;
    if (!(run.seconds > 0) || is_b[i] != (outer == is_b[i / kRunsPerLook * kRunsPerLook])) {
      return out;
    }
    logs.push_back(std::log(run.seconds));
    within += run.log_variance;
    others[is_b[i]] += runs[i].others;
  }
  const auto count = static_cast<double>(logs.size());
  const auto [log_gain, variance, freedom] =
      estimate(logs, is_b, kRunSpread * kRunSpread + within / count);
  const double error = std::sqrt(variance / static_cast<double>(looks));
  const double reach = quantile_of_t(kErrors[earlier_looks + looks - 1], freedom) * error;
  const double least = std::log(kLeastGain);

  out.pairs = looks * kPairsPerLook;
  out.earlier_looks = earlier_looks;
  out.gain = std::exp(log_gain);
  out.low = std::exp(log_gain - reach);
  out.high = std::exp(log_gain + reach);
  out.others_a = others[0] / (count / 2);
  out.others_b = others[1] / (count / 2);
  if (log_gain - reach > least) {
    out.verdict = Verdict::kBetter;
  } else if (log_gain + reach < -least) {
    out.verdict = Verdict::kWorse;
  } else if (earlier_looks + looks == kMostLooks || log_gain + error < least) {
    out.verdict = Verdict::kNoDifference;
  }
  // Whoever had the machine to itself was faster for that reason.
  const double uneven = cores > 0 ? (out.others_a - out.others_b) / cores : 0;
  if ((out.verdict == Verdict::kBetter && uneven > kUnevenOthers &&
       uneven > 0.5 * (out.gain - 1)) ||
      (out.verdict == Verdict::kWorse && -uneven > kUnevenOthers &&
       -uneven > 0.5 * (1 / out.gain - 1)) ||
      (out.verdict == Verdict::kNoDifference && reach > kWide && cores > 0 &&
       std::max(out.others_a, out.others_b) / cores > kManyOthers)) {
    out.verdict = Verdict::kSpoiled;
  }
  return out;
}

}  // namespace flatout::remedy
