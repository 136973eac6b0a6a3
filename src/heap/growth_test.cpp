#include "heap/growth.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace flatout::heap {
namespace {

constexpr double kSample = 512 << 10;  // bytes that a sample stands for

std::vector<uint64_t> moments(const std::function<double(size_t)>& samples, size_t n = 24) {
  std::vector<uint64_t> out;
  for (size_t i = 0; i < n; ++i) out.push_back(static_cast<uint64_t>(samples(i) * kSample));
  return out;
}

TEST(SteadyGrowth, FindsALeakAndItsPace) {
  const auto growth = steady_growth(moments([](size_t i) { return 3.0 * double(i); }), kSample);
  ASSERT_TRUE(growth);
  EXPECT_NEAR(growth->bytes, 18 * 3 * kSample, kSample);
  EXPECT_NEAR(growth->bytes_per_moment, 3 * kSample, 1);
}

TEST(SteadyGrowth, FindsALeakThatIsSampled) {
  std::mt19937 random(7);
  int found = 0;
  for (int trial = 0; trial < 200; ++trial) {
    double level = 0;
    std::poisson_distribution<int> more(2.0);
    found += steady_growth(moments([&](size_t) { return level += more(random); }), kSample) ? 1 : 0;
  }
  EXPECT_GE(found, 190);
}

TEST(SteadyGrowth, FindsALeakBelowTheUpsAndDownsOfSteps) {
  const auto v = moments([](size_t i) { return 2.0 * double(i) + (i % 3 == 0 ? 0 : 40); });
  EXPECT_TRUE(steady_growth(v, kSample));
}

TEST(SteadyGrowth, IsNotACacheThatIsFull) {
  EXPECT_FALSE(
      steady_growth(moments([](size_t i) { return std::min(40.0, 5.0 * double(i)); }), kSample));
  EXPECT_FALSE(
      steady_growth(moments([](size_t i) { return std::min(40.0, 3.0 * double(i)); }), kSample));
}

TEST(SteadyGrowth, IsNotALevelThatChances) {
  std::mt19937 random(11);
  int found = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::poisson_distribution<int> level(50.0);
    found += steady_growth(moments([&](size_t) { return level(random); }), kSample) ? 1 : 0;
  }
  EXPECT_LE(found, 4);
}

TEST(SteadyGrowth, IsNotWhatIsFreedAtTheEnd) {
  EXPECT_FALSE(
      steady_growth(moments([](size_t i) { return i == 23 ? 0.0 : 3.0 * double(i); }), kSample));
}

TEST(SteadyGrowth, NeedsEnoughToSay) {
  EXPECT_FALSE(steady_growth(moments([](size_t i) { return 3.0 * double(i); }, 7), kSample));
  EXPECT_FALSE(steady_growth(moments([](size_t i) { return double(i) / 6; }), kSample));
  EXPECT_FALSE(steady_growth({}, kSample));
}

}  // namespace
}  // namespace flatout::heap
