// The conformance suite that every policy passes: a random job against a plain model of memory.
#include "devmem/policy.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "devmem/sim_driver.h"

namespace flatout::devmem {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

class EveryPolicy : public testing::TestWithParam<std::string_view> {
 protected:
  void open(Bytes capacity) {
    policy_.reset();
    driver_ = std::make_unique<SimDriver>(capacity);
    auto made = make_policy(GetParam(), *driver_, capacity);
    policy_ = std::move(*made);
  }
  std::unique_ptr<SimDriver> driver_;  // outlives the policy
  std::unique_ptr<Policy> policy_;
};

TEST_P(EveryPolicy, ARandomJobNeverOverlapsAndTheBooksAgree) {
  for (const Bytes capacity : {Bytes{1} << 36, 300 * kMiB, 80 * kMiB}) {
    open(capacity);
    std::mt19937_64 random(capacity);
    struct Block {
      Bytes size;
      Stream stream;
    };
    std::map<Address, Block> live;
    std::map<std::pair<Handle, Bytes>, Bytes>
        behind;  // where parts of live blocks lie, to their ends
    const bool maps = GetParam() == "arena";
    // The same memory may be reached by several addresses: what must not overlap lies behind them.
    const auto each_part = [&](Address block, Bytes size, auto&& visit) {
      const Bytes page = kPageBytes;  // mapped as a whole
      for (Bytes at = 0, end = 0; maps && at < size; at = end) {
        end = std::min(size, at + page - (block + at) % page);
        visit(driver_->behind(block + at), end - at);
      }
    };
    const auto is_free = [&](const std::pair<Handle, Bytes>& place, Bytes length) {
      const auto next = behind.lower_bound(place);
      if (next != behind.end() && next->first.first == place.first &&
          next->first.second < place.second + length)
        return false;
      return next == behind.begin() || std::prev(next)->first.first != place.first ||
             std::prev(next)->second <= place.second;
    };
    Bytes bytes = 0;
    size_t refused = 0;
    for (int i = 0; i < 4000; ++i) {
      if (!live.empty() && random() % 100 < (live.size() < 60 ? 40 : 55)) {
        auto it = live.lower_bound(SimDriver::kBase + random() % (capacity * 2));
        if (it == live.end()) it = live.begin();
        ASSERT_TRUE(policy_->free(it->first).ok());
        each_part(it->first, it->second.size, [&](auto place, Bytes) { behind.erase(place); });
        bytes -= it->second.size;
        live.erase(it);
      } else {
        const Bytes size = 1 + (random() % (Bytes{1} << (random() % 26)));
        const Stream stream = random() % 3;
        const auto got = policy_->allocate(size, stream);
        if (!got.ok()) {
          ASSERT_EQ(got.error().code, Code::kFull);
          ++refused;
          continue;
        }
        ASSERT_EQ(*got % 256, 0u);
        ASSERT_TRUE(driver_->accessible(*got, size));
        const auto next = live.lower_bound(*got);
        ASSERT_TRUE(next == live.end() || next->first >= *got + size);
        ASSERT_TRUE(next == live.begin() ||
                    std::prev(next)->first + std::prev(next)->second.size <= *got);
        live[*got] = {size, stream};
        each_part(*got, size, [&](auto place, Bytes length) {
          ASSERT_TRUE(is_free(place, length)) << "behind another live block";
          behind[place] = place.second + length;
        });
        bytes += size;
      }
      if (i % 50 == 0) policy_->check();
      if (i % 1000 == 999) policy_->trim();
      const PolicyStats stats = policy_->stats();
      ASSERT_EQ(stats.live, bytes);
      ASSERT_EQ(stats.chunks, live.size());
      ASSERT_GE(stats.allocated, stats.live);
      ASSERT_EQ(stats.reserved, driver_->used());
      ASSERT_LE(stats.allocated, stats.reserved);
    }
    policy_->check();
    EXPECT_EQ(behind.empty(), !maps);
    if (capacity == 80 * kMiB) {
      EXPECT_GT(refused, 0u);
    }
    for (const auto& [address, block] : live) ASSERT_TRUE(policy_->free(address).ok());
    policy_->trim();
    policy_->check();
    EXPECT_EQ(policy_->stats().reserved, 0u) << "all was free";
    policy_.reset();
    EXPECT_EQ(driver_->used(), 0u);
  }
}

TEST_P(EveryPolicy, WhatWasFreedServesAgainWithoutADriverCall) {
  open(Bytes{1} << 36);
  for (int step = 0; step < 5; ++step) {
    const uint64_t before = driver_->calls();
    std::vector<Address> blocks;
    for (const Bytes size : {7 * kMiB, 300 * kMiB, 20 * kMiB, Bytes{4096}, 64 * kMiB})
      blocks.push_back(*policy_->allocate(size, 0));
    for (const Address block : blocks) ASSERT_TRUE(policy_->free(block).ok());
    if (step > 1) {
      EXPECT_EQ(driver_->calls(), before) << "step " << step;
    }
  }
}

TEST_P(EveryPolicy, NeighboursThatAreFreedBecomeOneHole) {
  open(Bytes{1} << 36);
  const Address big = *policy_->allocate(90 * kMiB, 0);
  ASSERT_TRUE(policy_->free(big).ok());
  const Bytes reserved = policy_->stats().reserved;
  std::vector<Address> parts;
  parts.reserve(3);
  for (int i = 0; i < 3; ++i) parts.push_back(*policy_->allocate(28 * kMiB, 0));
  for (const int i : {1, 0, 2}) ASSERT_TRUE(policy_->free(parts[i]).ok());
  const auto again = policy_->allocate(84 * kMiB, 0);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(policy_->stats().reserved, reserved);
}

TEST_P(EveryPolicy, AForeignOrDoubleFreeIsRefusedByItsAddress) {
  open(Bytes{1} << 36);
  const Address block = *policy_->allocate(kMiB, 0);
  EXPECT_EQ(policy_->free(block + 256).error().code, Code::kBadInput);
  ASSERT_TRUE(policy_->free(block).ok());
  const Status twice = policy_->free(block);
  ASSERT_FALSE(twice.ok());
  EXPECT_NE(twice.error().message.find("0x"), std::string::npos);
  policy_->check();
}

TEST_P(EveryPolicy, AFullDeviceIsRefusedAndServesAgainAfterAFree) {
  open(512 * kMiB);
  const auto first = policy_->allocate(300 * kMiB, 0);
  ASSERT_TRUE(first.ok());
  const auto second = policy_->allocate(300 * kMiB, 0);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kFull);
  policy_->check();
  ASSERT_TRUE(policy_->free(*first).ok());
  EXPECT_TRUE(policy_->allocate(400 * kMiB, 0).ok());
  policy_->check();
}

// Each time it grows anew; what it asks for must not grow for ever.
TEST_P(EveryPolicy, ServesHoweverOftenItWasTrimmed) {
  open(Bytes{1} << 33);
  for (int i = 0; i < 100; ++i) {
    const auto block = policy_->allocate(3 * kMiB, 0);
    ASSERT_TRUE(block.ok()) << i;
    ASSERT_TRUE(policy_->free(*block).ok());
    policy_->trim();
    ASSERT_EQ(policy_->stats().reserved, 0u);
  }
}

TEST_P(EveryPolicy, AFaultOfTheDriverLosesNothing) {
  for (uint64_t n = 0; n < 12; ++n) {
    open(Bytes{1} << 33);
    std::vector<Address> live;
    driver_->fail_after(n);
    for (Bytes i = 0; i < 40; ++i) {
      const auto got = policy_->allocate((1 + i % 7) * 9 * kMiB, static_cast<int>(i % 2));
      if (got.ok()) live.push_back(*got);
      policy_->check();
      ASSERT_EQ(policy_->stats().reserved, driver_->used());
      if (i % 3 == 2 && !live.empty()) {
        ASSERT_TRUE(policy_->free(live.front()).ok());
        live.erase(live.begin());
      }
    }
    EXPECT_TRUE(policy_->allocate(kMiB, 0).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Devmem, EveryPolicy, testing::ValuesIn(policy_names()),
                         [](const auto& p) { return std::string(p.param); });

}  // namespace
}  // namespace flatout::devmem
