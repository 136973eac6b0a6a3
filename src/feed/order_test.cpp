#include "feed/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "feed/philox.h"

namespace flatout::feed {
namespace {

// From the known answers that come with the authors' code (Random123, kat_vectors).
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Order, HasEachIndexOnceForAnyCount) {
  for (const uint64_t count : {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 255, 257, 1000, 4097}) {
    const Order order(count, 7, true);
    std::vector<uint64_t> seen;
    for (uint64_t i = 0; i < count; ++i) seen.push_back(order.index(3, i));
    std::sort(seen.begin(), seen.end());
    std::vector<uint64_t> all(count);
    std::iota(all.begin(), all.end(), uint64_t{0});
    EXPECT_EQ(seen, all) << count;
  }
}

TEST(Order, DiffersBetweenEpochsAndSeeds) {
  const Order one(1000, 1, true), two(1000, 2, true);
  int same_epoch = 0, same_seed = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    same_epoch += one.index(0, i) == one.index(1, i);
    same_seed += one.index(0, i) == two.index(0, i);
  }
  EXPECT_LT(same_epoch, 10);  // one is expected
  EXPECT_LT(same_seed, 10);
}

TEST(Order, WithABufferTakesRunsOfNeighboursAndEachIndexOnce) {
  for (const uint64_t count : {1, 7, 64, 100, 1000, 1003}) {
    const Order order(count, 3, true, {64, 16});
    std::set<uint64_t> seen, read;
    for (uint64_t i = 0; i < count; ++i) {
      seen.insert(order.index(2, i));
      read.insert(order.stream(2, i));
      // Neighbours in storage follow each other, but at the beginning of a run.
      EXPECT_TRUE(i % 16 == 0 || order.stream(2, i) == order.stream(2, i - 1) + 1);
    }
    EXPECT_EQ(seen.size(), count);
    EXPECT_EQ(*seen.rbegin(), count - 1);
    EXPECT_EQ(read, seen);
    for (uint64_t window = 0; window + 64 <= count; window += 64) {
      std::set<uint64_t> runs;
      for (uint64_t i = window; i < window + 64; ++i) runs.insert(order.index(2, i) / 16);
      EXPECT_EQ(runs.size(), 4U);
    }
  }
}

// Each place gets each index about equally often: chi-square with 9 degrees of freedom, whose
// 99.99th percentile is 33.7. The seed is fixed, so this holds always or never.
TEST(Order, SpreadsEvenlyOverPlaces) {
  const Order order(10, 5, true);
  for (uint64_t place : {0, 4, 9}) {
    std::vector<int> counts(10);
    constexpr int kEpochs = 20000;
    for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) ++counts[order.index(epoch, place)];
    double chi = 0;
    for (const int n : counts)
      chi += (n - kEpochs / 10.0) * (n - kEpochs / 10.0) / (kEpochs / 10.0);
    EXPECT_LT(chi, 33.7) << place;
  }
}

TEST(Shard, OfAllRanksTogetherCoverTheRestOfTheEpoch) {
  for (const uint64_t first : {0, 5, 22}) {
    for (const uint32_t ranks : {1, 2, 3, 7}) {
      std::multiset<uint64_t> seen;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const Shard shard{23, first, rank, ranks, false};
        for (uint64_t k = 0; k < shard.size(); ++k) seen.insert(shard.position(k));
      }
      for (uint64_t p = first; p < 23; ++p) EXPECT_GE(seen.count(p), 1U);
      // As many for each, and no rank could have one fewer.
      EXPECT_EQ(seen.size(), Shard({23, first, 0, ranks, false}).size() * ranks);
      EXPECT_GE(seen.size(), 23 - first);
      EXPECT_LT(seen.size(), 23 - first + ranks);
      EXPECT_LT(*seen.rbegin(), 23U);
    }
  }
}

TEST(Shard, OfARestGoesOnAsTheWholeWouldHave) {
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const Shard whole{23, 0, rank, 4, false}, rest{23, 12, rank, 4, false};
    ASSERT_EQ(rest.size() + 3, whole.size());
    for (uint64_t k = 0; k < rest.size(); ++k)
      EXPECT_EQ(rest.position(k), whole.position(k + 3)) << rank;
  }
}

TEST(Shard, ThatDropsTheLastHasEachPositionAtMostOnce) {
  std::set<uint64_t> seen;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const Shard shard{23, 2, rank, 4, true};
    EXPECT_EQ(shard.size(), 5U);
    for (uint64_t k = 0; k < shard.size(); ++k) EXPECT_TRUE(seen.insert(shard.position(k)).second);
  }
}

}  // namespace
}  // namespace flatout::feed
