#include "heap/growth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <utility>

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
  EXPECT_TRUE(growth->certain);
  EXPECT_NEAR(growth->bytes, 22 * 3 * kSample, kSample);
  EXPECT_NEAR(growth->bytes_per_moment, 3 * kSample, 1);
}

// 90 moments in the first 30 ms, then one every 20 ms.
std::vector<uint64_t> uneven_times() {
  std::vector<uint64_t> out;
  for (uint64_t i = 0; i < 120; ++i)
    out.push_back(i < 90 ? i * 333'333 : 30'000'000 + (i - 89) * 20'000'000);
  return out;
}

TEST(GrowthOverTime, FindsWhatLeaksSlowlyAfterManyAllocations) {
  const auto v = moments([](size_t i) { return i < 90 ? 0.0 : 2.0 * double(i - 89); }, 120);
  EXPECT_FALSE(steady_growth(v, kSample));
  const auto growth = growth_over_time(v, uneven_times(), kSample);
  ASSERT_TRUE(growth);
  EXPECT_TRUE(growth->certain);
  EXPECT_NEAR(growth->bytes, 60 * kSample, 4 * kSample);
}

TEST(GrowthOverTime, WhatIsLoadedSlowlyAndThenUsedIsNone) {
  // Loading takes most of the time and few of the moments.
  std::vector<uint64_t> times;
  for (uint64_t i = 0; i < 120; ++i)
    times.push_back(i < 30 ? i * 20'000'000 : 600'000'000 + (i - 30) * 333'333);
  const auto v = moments([](size_t i) { return 2.0 * double(std::min<size_t>(i, 30)); }, 120);
  EXPECT_FALSE(growth_over_time(v, times, kSample));
}

TEST(GrowthOverTime, AWaitAtTheEndIsNoGrowth) {
  auto times = uneven_times();
  for (size_t i = 90; i < times.size(); ++i) times[i] = 30'000'000 + (i - 89) * 1'000;
  times.back() = 5'000'000'000;
  const auto v = moments([](size_t i) { return 2.0 * double(i); }, 120);
  EXPECT_FALSE(growth_over_time(v, times, kSample));
  EXPECT_FALSE(growth_over_time({}, {}, kSample));
}

bool grows(const std::vector<uint64_t>& v) {
  const auto growth = steady_growth(v, kSample);
  return growth && growth->certain;
}

// A leak of which so many samples are seen in the run, each at some moment of it.
std::vector<uint64_t> leak_of(int samples, std::mt19937& random, size_t n = 24) {
  std::vector<double> at(samples);
  for (double& each : at) each = std::uniform_real_distribution<>(0, double(n))(random);
  return moments(
      [&](size_t i) {
        return double(std::count_if(at.begin(), at.end(), [&](double t) { return t < double(i); }));
      },
      n);
}

TEST(SteadyGrowth, FindsALeakThatIsSampled) {
  std::mt19937 random(7);
  for (const auto& [samples, least] : {std::pair{9, 120}, {11, 140}, {20, 180}, {50, 195}}) {
    int found = 0, told = 0;
    for (int trial = 0; trial < 200; ++trial) {
      const auto v = leak_of(samples, random);
      found += grows(v) ? 1 : 0;
      told += steady_growth(v, kSample) ? 1 : 0;
    }
    EXPECT_GE(found, least) << samples;
    EXPECT_GE(told, 190) << samples << ": found, or said to be unclear";
  }
}

// What is loaded first, and stays, hides no leak: nothing of it comes and goes.
TEST(SteadyGrowth, FindsALeakOnTopOfWhatWasLoaded) {
  std::mt19937 random(3);
  int found = 0;
  for (int trial = 0; trial < 200; ++trial) {
    auto v = leak_of(20, random);
    for (size_t i = 1; i < v.size(); ++i) v[i] += static_cast<uint64_t>(400 * kSample);
    found += grows(v) ? 1 : 0;
  }
  EXPECT_GE(found, 170);
}

TEST(SteadyGrowth, TooFewSamplesAreUnclear) {
  const auto sixths = [](size_t i) {
    const size_t whole = i / 6;
    return double(whole);
  };
  const auto growth = steady_growth(moments(sixths), kSample);
  ASSERT_TRUE(growth);
  EXPECT_FALSE(growth->certain);
}

// Filled in the first half, then each that comes in replaces another; and data that is loaded in
// one or two pieces.
TEST(SteadyGrowth, IsNoCacheThatIsSampled) {
  std::mt19937 random(5);
  int found = 0, told = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    std::vector<double> in_cache;
    std::poisson_distribution<int> more(6.0);
    const auto v = moments([&](size_t i) {
      for (int k = more(random); k > 0; --k) in_cache.push_back(double(i));
      std::erase_if(in_cache, [&](double t) { return t + 8 <= double(i); });
      return double(in_cache.size());
    });
    const auto growth = steady_growth(v, kSample);
    found += growth && growth->certain ? 1 : 0;
    told += growth ? 1 : 0;
  }
  EXPECT_LE(found, 15);
  EXPECT_LE(told, 80);
  EXPECT_FALSE(grows(moments([](size_t i) { return i < 5 ? 0.0 : i < 14 ? 40.0 : 80.0; })));
  EXPECT_FALSE(grows(moments([](size_t i) { return i < 5 ? 0.0 : i < 14 ? 4.0 : 9.0; })));
}

TEST(SteadyGrowth, FindsALeakBelowTheUpsAndDownsOfSteps) {
  const auto v = moments([](size_t i) { return 2.0 * double(i) + (i % 3 == 0 ? 0 : 40); });
  EXPECT_TRUE(grows(v));
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
    found += grows(moments([&](size_t) { return level(random); })) ? 1 : 0;
  }
  EXPECT_LE(found, 4);
}

TEST(SteadyGrowth, IsNotWhatIsFreedAtTheEnd) {
  EXPECT_FALSE(
      steady_growth(moments([](size_t i) { return i == 23 ? 0.0 : 3.0 * double(i); }), kSample));
}

TEST(SteadyGrowth, NeedsEnoughToSay) {
  EXPECT_FALSE(steady_growth(moments([](size_t i) { return 3.0 * double(i); }, 7), kSample));
  EXPECT_FALSE(steady_growth(moments([](size_t i) { return double(i) / 24; }), kSample));
  EXPECT_FALSE(steady_growth({}, kSample));
}

}  // namespace
}  // namespace flatout::heap
