#include "timeline/periodicity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace flatout::timeline {
namespace {

struct Lengths {
  std::vector<int64_t> index;
  std::vector<Nanos> length;

  // n steps of `ms` with noise of 5 %; every `period`-th from `phase` on is `extra` longer.
  Lengths(int n, double ms, int period, int phase, double extra, uint32_t seed = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<double> noise(0, 0.05 * ms);
    for (int i = 0; i < n; ++i) {
      index.push_back(i);
      const double slow = period > 0 && i % period == phase ? extra : 0;
      length.push_back(nanos((ms + slow + std::abs(noise(random))) * 1e6));
    }
  }
};

TEST(FindPeriod, FindsSavesEveryHundredSteps) {
  const Lengths l(450, 20, 100, 99, 300);
  const auto period = find_period(l.index, l.length);
  ASSERT_TRUE(period);
  EXPECT_EQ(period->period, 100);
  EXPECT_EQ(period->phase, 99);
  EXPECT_NEAR(to_ms(period->extra), 300, 5);
  EXPECT_EQ(period->seen, 4);
}

TEST(FindPeriod, FindsOneSlowWorkerOfTwoOrFour) {
  for (const int workers : {2, 4}) {
    const Lengths l(200, 20, workers, 1, 15);
    const auto period = find_period(l.index, l.length);
    ASSERT_TRUE(period) << workers;
    EXPECT_EQ(period->period, workers);
    EXPECT_EQ(period->phase, 1);
  }
}

TEST(FindPeriod, CountsByIndexAcrossGaps) {
  Lengths l(600, 20, 30, 4, 100);
  l.index.erase(l.index.begin() + 100, l.index.begin() + 217);
  l.length.erase(l.length.begin() + 100, l.length.begin() + 217);
  const auto period = find_period(l.index, l.length);
  ASSERT_TRUE(period);
  EXPECT_EQ(period->period, 30);
}

TEST(FindPeriod, NoiseHasNone) {
  for (uint32_t seed = 1; seed < 15; ++seed) {
    const Lengths l(200, 20, 0, 0, 0, seed);
    EXPECT_FALSE(find_period(l.index, l.length)) << "seed " << seed;
  }
}

TEST(FindPeriod, RandomSlowStepsHaveNone) {
  std::mt19937 random(9);
  for (int round = 0; round < 15; ++round) {
    Lengths l(300, 20, 0, 0, 0, static_cast<uint32_t>(round) + 100);
    for (Nanos& length : l.length) {
      if (random() % 20 == 0) length += std::chrono::milliseconds(80);
    }
    EXPECT_FALSE(find_period(l.index, l.length)) << "round " << round;
  }
}

TEST(FindTimePeriod, ToleratesJitterOnly) {
  std::vector<TimePoint> regular, random;
  for (int64_t i = 0; i < 10; ++i) {
    regular.push_back(time_point_ns(i * 1'000'000'000 + (i % 3) * 20'000'000));
    random.push_back(time_point_ns(i * i * i * 100'000'000));
  }
  ASSERT_TRUE(find_time_period(regular));
  EXPECT_NEAR(to_s(*find_time_period(regular)), 1, 0.05);
  EXPECT_FALSE(find_time_period(random));
}

}  // namespace
}  // namespace flatout::timeline
