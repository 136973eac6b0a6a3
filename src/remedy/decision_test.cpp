#include "remedy/decision.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>
#include <sstream>

namespace flatout::remedy {
namespace {

// A machine as jobs meet it: steps that hang together, tails, rare stalls, a drift over the trials,
// and runs that differ from one another for no reason that anybody sees.
class Machine {
 public:
  explicit Machine(unsigned seed, double spread = 0.006) : random_(seed), spread_(spread) {
    drift_ = 0.02 * normal();
    wave_ = 2 * M_PI * uniform();
  }

  TrialSteps run(double step, size_t steps = 160) {
    TrialSteps out;
    const double run = spread_ * normal();
    double noise = 0;
    for (size_t i = 0; i < steps; ++i, ++at_) {
      noise = 0.5 * noise + 0.05 * tailed();
      const double now = static_cast<double>(at_) / static_cast<double>(steps);
      const double drift = drift_ * now + 0.03 * std::sin(wave_ + now / 2);
      const double stall = uniform() < 0.003 ? 2.0 : 0.0;
      out.seconds.push_back(step * (std::exp(run + noise + drift) + stall));
    }
    return out;
  }

 private:
  double normal() { return normal_(random_); }
  double uniform() { return uniform_(random_); }
  double tailed() { return student_(random_); }

  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  std::student_t_distribution<double> student_{4};
  double spread_, drift_ = 0, wave_ = 0;
  size_t at_ = 0;
};

// Runs of a job as it is, recorded one after another (tests/steps/README.md).
class Recorded {
 public:
  Recorded(const std::string& job, unsigned seed) : random_(seed) {
    std::ifstream file(std::string(FLATOUT_TEST_DATA) + "/steps/" + job + ".txt");
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      TrialSteps run;
      for (double ms = 0; words >> ms;) run.seconds.push_back(1e-3 * ms);
      runs_.push_back(std::move(run));
    }
  }
  size_t runs() const { return runs_.size(); }

  // Looks begin at any place; the runs of one look are neighbours. Steps are in units of their
  // own.
  TrialSteps run(double step) {
    if (at_ % kRunsPerLook == 0) at_ = random_() / kRunsPerLook * kRunsPerLook;
    TrialSteps out = runs_[(at_ / kRunsPerLook + at_ % kRunsPerLook) % runs_.size()];
    ++at_;
    for (double& seconds : out.seconds) seconds *= step;
    return out;
  }

 private:
  std::vector<TrialSteps> runs_;
  std::mt19937 random_;
  size_t at_ = 0;
};

// Runs A B B A until there is a decision, as the runner does.
template <typename Job>
Decision trial(Job& machine, double step_a, double step_b) {
  std::vector<TrialSteps> runs;
  std::vector<bool> is_b;
  for (;;) {
    for (const bool b : {false, true, true, false}) {
      runs.push_back(machine.run(b ? step_b : step_a));
      is_b.push_back(b);
    }
    const Decision decision = decide(runs, is_b, 2);
    if (decision.verdict != Verdict::kUndecided) return decision;
  }
}

double share_better(double gain, unsigned decisions, double spread = 0.006) {
  unsigned better = 0;
  for (unsigned seed = 0; seed < decisions; ++seed) {
    Machine machine(seed + 1, spread);
    better += trial(machine, 0.03, 0.03 / gain).verdict == Verdict::kBetter;
  }
  return static_cast<double>(better) / decisions;
}

TEST(Decision, SaysBetterOfTheSameAtMostTwiceInAHundred) {
  EXPECT_LE(share_better(1.0, 1000), 0.02);
}

TEST(Decision, RecordedRunsAreNotBetterThanThemselves) {
  for (const char* job : {"mlp_alone", "mlp_busy"}) {
    Recorded recorded(job, 1);
    ASSERT_GE(recorded.runs(), 20u);
    unsigned same = 0, faster = 0;
    for (unsigned i = 0; i < 1000; ++i) {
      same += trial(recorded, 1, 1).verdict == Verdict::kBetter;
      faster += trial(recorded, 1.5, 1).verdict == Verdict::kBetter;
    }
    EXPECT_LE(same, 20u) << job;
    EXPECT_GE(faster, 800u) << job;
  }
}

TEST(Decision, SaysSoOnNoisyMachinesToo) {
  EXPECT_LE(share_better(1.0, 2000, 0.03), 0.02);
  EXPECT_LE(share_better(1.0, 2000, 0.2), 0.05);
}

TEST(Decision, KeepsNothingThatGainsLessThanItsThreshold) {
  EXPECT_LE(share_better(kLeastGain, 1000), 0.05);  // the bound's own error, at the border
}

TEST(Decision, FindsFivePercentInFourOfFive) { EXPECT_GE(share_better(1.05, 1000), 0.8); }

TEST(Decision, FindsAThirdAtTheFirstLook) {
  unsigned first = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    Machine machine(seed + 1);
    const Decision decision = trial(machine, 0.04, 0.03);
    EXPECT_EQ(decision.verdict, Verdict::kBetter);
    first += decision.pairs == 2;
  }
  EXPECT_GE(first, 190u);
}

TEST(Decision, ItsIntervalHoldsTheTruth) {
  unsigned holds = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    Machine machine(seed + 5000);
    const Decision decision = trial(machine, 0.03, 0.03 / 1.1);
    holds += decision.low <= 1.1 && 1.1 <= decision.high;
  }
  EXPECT_GE(holds, 900u);  // two one-sided bounds of 95 % each
}

TEST(Decision, ASlowerRunIsWorse) {
  Machine machine(3);
  EXPECT_EQ(trial(machine, 0.03, 0.045).verdict, Verdict::kWorse);
}

TEST(Decision, StallsThatAreRareButLongCount) {
  // A save in each twentieth step: the median never sees it.
  std::vector<TrialSteps> runs;
  for (const bool b : {false, true, true, false}) {
    Machine machine(b ? 7 : 8);
    TrialSteps run = machine.run(0.01);
    for (size_t i = 0; !b && i < run.seconds.size(); i += 20) run.seconds[i] += 0.2;
    runs.push_back(run);
  }
  const Decision decision = decide(runs, {false, true, true, false}, 2);
  EXPECT_EQ(decision.verdict, Verdict::kBetter);
  EXPECT_NEAR(decision.gain, 2.0, 0.25);
}

TEST(Decision, WhatOthersExplainIsSpoiled) {
  std::vector<TrialSteps> runs;
  Machine machine(9);
  for (const bool b : {false, true, true, false}) {
    runs.push_back(machine.run(b ? 0.03 : 0.04));
    runs.back().others = b ? 0.1 : 1.0;
  }
  EXPECT_EQ(decide(runs, {false, true, true, false}, 2).verdict, Verdict::kSpoiled);
  for (TrialSteps& run : runs) run.others = 1.0;  // the same for both: not their doing
  EXPECT_EQ(decide(runs, {false, true, true, false}, 2).verdict, Verdict::kBetter);
}

TEST(Decision, SaysNothingBeforeTheFirstLook) {
  Machine machine(1);
  const std::vector<TrialSteps> runs = {machine.run(0.04), machine.run(0.01), machine.run(0.01)};
  EXPECT_EQ(decide(runs, {false, true, true}, 2).verdict, Verdict::kUndecided);
  EXPECT_EQ(decide({}, {}, 2).verdict, Verdict::kUndecided);
}

TEST(Decision, ARunWithoutStepsDecidesNothing) {
  Machine machine(1);
  std::vector<TrialSteps> runs(4);
  EXPECT_EQ(decide(runs, {false, true, true, false}, 2).verdict, Verdict::kUndecided);
}

}  // namespace
}  // namespace flatout::remedy
