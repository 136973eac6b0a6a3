#include "remedy/decision.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/stats.h"

namespace flatout::remedy {
namespace {

constexpr size_t kPairsPerLook = kRunsPerLook / 2;
// Two runs of the same thing differ by about this, however many steps they have.
constexpr double kRunSpread = 0.007;
// What is known of a pair's error beforehand (kRunSpread and the batches) weighs as much as so many
// pairs.
constexpr double kPriorPairs = 4;
// Student's t for a one-sided error of 0.4, 0.6, 0.8, 1.2 and 2 % (5 % in all) at the looks, with
// kPriorPairs + pairs - 1 degrees of freedom.
constexpr std::array<double, kMostLooks> kQuantiles = {4.262, 3.365, 2.958, 2.616, 2.282};
// Cores that others used in runs of A beyond those of B (or the reverse), as a share of the
// machine, that explain a difference away.
constexpr double kUnevenOthers = 0.1;
// Others used so much of the machine that "no difference" says nothing when the interval is wide.
constexpr double kManyOthers = 0.25;
constexpr double kWide = 0.1;

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
  // Batches long enough that neighbouring ones hardly hang together.
  const size_t batches = std::clamp<size_t>(seconds.size() / 8, 2, 10);
  const size_t length = seconds.size() / batches;
  if (length == 0 || !(out.seconds > 0)) return out;
  double squares = 0;
  for (size_t b = 0; b < batches; ++b) {
    const std::span<const double> batch(seconds.data() + b * length, length);
    const double off = mean(batch) / out.seconds - 1;
    squares += off * off;
  }
  out.log_variance = squares / static_cast<double>(batches - 1) / static_cast<double>(batches);
  return out;
}

Decision decide(const std::vector<TrialSteps>& runs, const std::vector<bool>& is_b, double cores) {
  Decision out;
  const size_t looks = std::min(std::min(runs.size(), is_b.size()) / kRunsPerLook, kMostLooks);
  if (looks == 0) return out;
  std::vector<double> ratios;
  double within = 0, others[2] = {0, 0};
  for (size_t i = 0; i + 1 < looks * kRunsPerLook; i += 2) {
    const RunMean first = mean_of(runs[i].seconds), second = mean_of(runs[i + 1].seconds);
    if (is_b[i] == is_b[i + 1] || !(first.seconds > 0) || !(second.seconds > 0)) return out;
    const double ratio = std::log(first.seconds / second.seconds);
    ratios.push_back(is_b[i] ? -ratio : ratio);
    within += first.log_variance + second.log_variance;
    others[is_b[i]] += runs[i].others;
    others[is_b[i + 1]] += runs[i + 1].others;
  }
  const auto pairs = static_cast<double>(ratios.size());
  const double log_gain = mean(ratios);
  double between = 0;
  for (const double ratio : ratios) between += (ratio - log_gain) * (ratio - log_gain);
  const double prior = within / pairs + 2 * kRunSpread * kRunSpread;
  const double variance = (kPriorPairs * prior + between) / (kPriorPairs + pairs - 1);
  const double error = std::sqrt(variance / pairs);
  const double reach = kQuantiles[looks - 1] * error;
  const double least = std::log(kLeastGain);

  out.pairs = ratios.size();
  out.gain = std::exp(log_gain);
  out.low = std::exp(log_gain - reach);
  out.high = std::exp(log_gain + reach);
  out.others_a = others[0] / pairs;
  out.others_b = others[1] / pairs;
  if (log_gain - reach > least) {
    out.verdict = Verdict::kBetter;
  } else if (log_gain + reach < -least) {
    out.verdict = Verdict::kWorse;
  } else if (looks == kMostLooks || log_gain + error < least) {
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
