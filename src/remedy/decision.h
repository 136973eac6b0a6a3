// Whether B is faster than A: a sequential test on runs of a job that alternate A B B A A B B A...
//
// Each run gives one figure, its time per step; A B B A gives one of the gain, in which a drift of
// the machine cancels. Steps within a run hang together, so a run's error comes from its
// halves; and two runs of one thing differ by more than their steps tell (memory layout,
// placement, neighbours), so what runs of one thing are seen to differ by counts. Looks are taken
// after every second pair, at most kMostLooks of them. The chance of error is divided among the
// looks beforehand (Bonferroni), so the interval holds whenever one stops, and where a remedy is
// tried anew, its earlier looks count.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace flatout::remedy {

/// A remedy is kept only if the lower bound of its gain is above this.
inline constexpr double kLeastGain = 1.02;
inline constexpr size_t kMostLooks = 5;
inline constexpr size_t kRunsPerLook = 4;  // A B B A
inline constexpr size_t kPairsPerLook = kRunsPerLook / 2;
/// Steps that a run needs to say anything.
inline constexpr size_t kFewestSteps = 8;

enum class Verdict {
  kUndecided,     // more runs are needed, or there was no time for them
  kBetter,        // 95 % lower bound of the gain above kLeastGain
  kWorse,         // 95 % upper bound below 1 / kLeastGain
  kNoDifference,  // cannot become better any more, or all looks are used up
  kSpoiled,       // others used the machine, and unevenly
  kGoesOn,        // it goes on where it failed without; not a matter of time
};
std::string_view name(Verdict verdict);

/// One run: its steady steps in seconds, and the cores that processes outside the job used.
struct TrialSteps {
  std::vector<double> seconds;
  double others = 0;
};

struct Decision {
  Verdict verdict = Verdict::kUndecided;
  double gain = 1;  // factor in steps per second, of B over A
  double low = 0,
         high = 0;  // 95 % bounds, each one-sided, valid at whatever look one stops; 0: none yet
  size_t pairs = 0;
  size_t earlier_looks = 0;           // as given to decide()
  double others_a = 0, others_b = 0;  // cores used by others, means over the runs
};

/// Judges runs in the order in which they were made; `is_b[i]` says what run i was. Only whole
/// looks are judged: kRunsPerLook runs each, alternating A B B A. `cores` of the machine, for the
/// share that others took. Pure. Errors of the past do not add up: call it after each look with all
/// runs so far. `earlier_looks`: that the same remedy had before these runs, on top of another
/// setting.
Decision decide(const std::vector<TrialSteps>& runs, const std::vector<bool>& is_b, double cores,
                size_t earlier_looks = 0);

/// Mean of the steps, and the variance of its logarithm: of half a run, from how much the halves
/// differ. That of a whole run would be less only if the noise were white, which it is not: on
/// shared machines a longer run is hardly better known.
struct RunMean {
  double seconds = 0;
  double log_variance = 0;
};
RunMean mean_of(const std::vector<double>& seconds);

}  // namespace flatout::remedy
