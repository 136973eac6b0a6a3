#include "timeline/step_summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace flatout::timeline {
namespace {

using model::Step;

std::vector<Step> steps_of(const std::vector<double>& ms) {
  std::vector<Step> steps;
  TimePoint at = time_point_ns(1'000'000'000);
  for (const double length : ms) {
    Step step;
    step.index = static_cast<int64_t>(steps.size());
    step.begin = at;
    step.end = at = at + nanos(length * 1e6);
    step.part(model::Part::kForward) = step.length();
    steps.push_back(step);
  }
  return steps;
}

class Noise {
 public:
  explicit Noise(uint32_t seed) : random_(seed) {}
  double operator()(double sigma) { return std::normal_distribution<double>(0, sigma)(random_); }

 private:
  std::mt19937 random_;
};

TEST(Warmup, IsTheFirstStepAtLeast) {
  std::vector<Step> steps = steps_of(std::vector<double>(100, 10));
  mark_warmup(steps);
  EXPECT_TRUE(steps[0].warmup);
  EXPECT_FALSE(steps[1].warmup);
}

TEST(Warmup, LastsUntilTheStepsSettle) {
  std::vector<double> ms(100, 10);
  ms[0] = 300;
  ms[1] = ms[2] = 80;
  ms[3] = 40;
  std::vector<Step> steps = steps_of(ms);
  mark_warmup(steps);
  EXPECT_TRUE(steps[3].warmup);
  EXPECT_FALSE(steps[4].warmup);
}

TEST(Warmup, IsNeverMoreThanATenth) {
  std::vector<double> ms(50, 10);
  std::fill(ms.begin(), ms.begin() + 20, 100);
  std::vector<Step> steps = steps_of(ms);
  mark_warmup(steps);
  EXPECT_LE(std::ranges::count(steps, true, &Step::warmup), 5);
}

TEST(Summary, BreakdownAddsUpToOne) {
  std::vector<Step> steps = steps_of({10, 12, 14, 11, 13});
  for (Step& step : steps) {
    step.part(model::Part::kInputWait) = step.length() / 3;
    step.part(model::Part::kForward) = step.length() - step.length() / 3;
  }
  mark_warmup(steps);
  const model::StepSummary summary = summarise(steps, 32);
  EXPECT_EQ(summary.count, 5);
  EXPECT_NEAR(std::accumulate(summary.breakdown.begin(), summary.breakdown.end(), 0.0), 1, 1e-9);
  EXPECT_NEAR(summary.samples_per_s, 32 / 0.0125, 1e-6);
}

// The share of the input wait where `ms` are the steps and all beyond 5 ms of each is input.
double input_share(const std::vector<double>& ms) {
  std::vector<Step> steps = steps_of(ms);
  for (Step& step : steps) {
    step.part(model::Part::kForward) = std::chrono::milliseconds(5);
    step.part(model::Part::kInputWait) = step.length() - std::chrono::milliseconds(5);
  }
  mark_warmup(steps);
  return summarise(steps, 1).breakdown[static_cast<size_t>(model::Part::kInputWait)];
}

TEST(Summary, OneHiccupDoesNotChangeTheBreakdown) {
  for (const size_t count : {20u, 100u, 1000u}) {
    std::vector<double> ms(count, 10.0);
    ms[count / 2] = 2000;
    EXPECT_NEAR(input_share(ms), 0.5, 1e-9) << count;
  }
}

TEST(Summary, TheFirstStepsOfManyEpochsBelongToTheBreakdown) {
  std::vector<double> ms(121, 10.0);
  Noise noise(4);
  double all = 0;
  for (size_t i = 12; i < ms.size(); i += 12) ms[i] = 180 + noise(20);
  for (size_t i = 1; i < ms.size(); ++i) all += ms[i];
  EXPECT_NEAR(input_share(ms), 1 - 120 * 5 / all, 1e-9);
}

TEST(SpeedChanges, ASlowDownAtStepHundredIsFound) {
  Noise noise(1);
  std::vector<double> ms;
  for (int i = 0; i < 250; ++i) ms.push_back((i < 100 ? 20 : 30) + noise(1.5));
  const auto steps = steps_of(ms);
  const auto changes = find_speed_changes(steps);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_NEAR(static_cast<double>(changes[0].index), 100, 2);
  EXPECT_NEAR(to_ms(changes[0].before), 20, 0.5);
  EXPECT_NEAR(to_ms(changes[0].after), 30, 0.5);
  EXPECT_FALSE(find_drift(steps));
}

TEST(SpeedChanges, SlowerAndFasterAgainAreTwo) {
  Noise noise(2);
  std::vector<double> ms;
  for (int i = 0; i < 400; ++i) ms.push_back((i > 120 && i < 250 ? 26 : 20) + noise(1));
  const auto changes = find_speed_changes(steps_of(ms));
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_NEAR(static_cast<double>(changes[0].index), 121, 2);
  EXPECT_NEAR(static_cast<double>(changes[1].index), 250, 2);
}

TEST(SpeedChanges, NoiseOutliersAndPeriodsAreNone) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Noise noise(seed);
    std::vector<double> ms;
    for (int i = 0; i < 200; ++i) {
      double length = 20 + std::abs(noise(4));
      if (seed % 2 == 1 && i % 10 == 0) length += 60;
      if (i == 77) length = 900;
      ms.push_back(length);
    }
    EXPECT_TRUE(find_speed_changes(steps_of(ms)).empty()) << "seed " << seed;
    EXPECT_FALSE(find_drift(steps_of(ms))) << "seed " << seed;
  }
}

TEST(SpeedChanges, ASlowStartOfEachEpochIsNone) {
  Noise noise(5);
  std::vector<double> ms;
  for (int i = 0; i < 400; ++i) ms.push_back((i % 50 < 15 ? 40 : 20) + noise(1));
  EXPECT_TRUE(find_speed_changes(steps_of(ms)).empty());
}

TEST(SpeedChanges, LevelsThatNeverComeBackAreNoPeriod) {
  Noise noise(6);
  std::vector<double> ms;
  for (int i = 0; i < 220; ++i) {
    ms.push_back((i < 60 ? 30 : i < 100 ? 19 : i < 130 ? 120 : i < 186 ? 73 : 132) + noise(2));
  }
  const auto changes = find_speed_changes(steps_of(ms));
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_NEAR(static_cast<double>(changes[1].index), 100, 2);
}

TEST(Drift, StepsThatGrowSlowlyAreADriftAndNoChange) {
  Noise noise(3);
  std::vector<double> ms;
  for (int i = 0; i < 300; ++i) ms.push_back(20 + 0.05 * i + noise(1));
  const auto drift = find_drift(steps_of(ms));
  ASSERT_TRUE(drift);
  EXPECT_NEAR(to_ms(drift->first), 20, 1);
  EXPECT_NEAR(to_ms(drift->last), 35, 1);
}

TEST(SpeedChanges, VeryManyStepsAreLookedAtInBlocks) {
  std::vector<double> ms;
  for (int i = 0; i < 20'000; ++i) ms.push_back(i < 15'000 ? 0.5 : 0.7);
  const auto changes = find_speed_changes(steps_of(ms));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_NEAR(static_cast<double>(changes[0].index), 15'000, 20);
}

}  // namespace
}  // namespace flatout::timeline
