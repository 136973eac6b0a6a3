// What every driver keeps to: one suite for the simulated one, the host's, and CUDA's (over a
// stand-in libcuda, and on a card).
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "devmem/policy.h"

namespace flatout::devmem {

struct DriverUnderTest {
  std::string name;
  std::function<std::unique_ptr<Driver>()> open;
  std::function<Stream(Driver&)> new_stream;
  /// Uses all of the memory; false: it is not accessible, or does not keep what is written.
  std::function<bool(Driver&, Address, Bytes)> use;
  /// Queues work that goes on until somebody waits for it; empty where that cannot be had.
  std::function<void(Driver&, Stream)> launch = {};
  bool exact = true;  // nobody else takes memory of it
};

inline void PrintTo(const DriverUnderTest& driver, std::ostream* out) { *out << driver.name; }

class EveryDriver : public testing::TestWithParam<DriverUnderTest> {
 protected:
  void SetUp() override {
    driver_ = GetParam().open();
    ASSERT_NE(driver_, nullptr);
    free_ = driver_->free_bytes();
  }
  void TearDown() override {
    EXPECT_TRUE(driver_->health().ok()) << driver_->health().error().message;
    if (GetParam().exact) {
      EXPECT_EQ(driver_->free_bytes(), free_) << "not all was given back";
    }
  }
  bool use(Address address, Bytes size) { return GetParam().use(*driver_, address, size); }

  std::unique_ptr<Driver> driver_;
  Bytes free_ = 0;
};

TEST_P(EveryDriver, WhatIsTakenIsNoLongerFree) {
  ASSERT_GT(driver_->total_bytes(), 64 * kPageBytes);
  EXPECT_LE(free_, driver_->total_bytes());
  const auto address = driver_->allocate(32 * kPageBytes);
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(*address % 256, 0u);
  EXPECT_TRUE(use(*address, 32 * kPageBytes));
  if (GetParam().exact) {
    EXPECT_LE(driver_->free_bytes(), free_ - 32 * kPageBytes);
  }
  driver_->free(*address);
}

TEST_P(EveryDriver, MoreThanThereIsIsRefusedAndItGoesOn) {
  const Bytes too_much = round_up(driver_->total_bytes(), kPageBytes) + kPageBytes;
  EXPECT_EQ(driver_->allocate(too_much).error().code, Code::kFull);
  EXPECT_EQ(driver_->create(too_much).error().code, Code::kFull);
  EXPECT_EQ(driver_->allocate_async(too_much, 0).error().code, Code::kFull);
  EXPECT_TRUE(driver_->health().ok()) << "a full card is nothing to worry about";
  const auto handle = driver_->create(kPageBytes);
  ASSERT_TRUE(handle.ok());
  driver_->release(*handle);
}

TEST_P(EveryDriver, MemoryMovesFromOneAddressToAnother) {
  const auto range = driver_->reserve(16 * kPageBytes);
  ASSERT_TRUE(range.ok());
  EXPECT_EQ(*range % kPageBytes, 0u);
  const auto small = driver_->create(kPageBytes), large = driver_->create(6 * kPageBytes);
  ASSERT_TRUE(small.ok() && large.ok());
  driver_->map(*range, *small);
  driver_->map(*range + kPageBytes, *large);
  driver_->set_access(*range, 7 * kPageBytes);  // several handles in one call
  EXPECT_TRUE(use(*range, 7 * kPageBytes));

  driver_->unmap(*range + kPageBytes);
  driver_->map(*range + 10 * kPageBytes, *large);  // up to the range's end
  driver_->set_access(*range + 10 * kPageBytes, 6 * kPageBytes);
  EXPECT_TRUE(use(*range + 10 * kPageBytes, 6 * kPageBytes));
  EXPECT_TRUE(use(*range, kPageBytes));
  for (const Address address : {*range, *range + 10 * kPageBytes}) driver_->unmap(address);
  driver_->release(*small);
  driver_->release(*large);
  driver_->unreserve(*range);
}

TEST_P(EveryDriver, MemoryIsReachedByAllAddressesThatItIsMappedAt) {
  const auto range = driver_->reserve(4 * kPageBytes), again = driver_->reserve(6 * kPageBytes);
  const auto one = driver_->create(kPageBytes), other = driver_->create(2 * kPageBytes);
  ASSERT_TRUE(range.ok() && again.ok() && one.ok() && other.ok());
  const Bytes taken = driver_->free_bytes();
  driver_->map(*range, *one);
  driver_->map(*range + kPageBytes, *other);
  driver_->set_access(*range, 3 * kPageBytes);
  // In the other order, and one of them twice.
  driver_->map(*again, *other);
  driver_->map(*again + 2 * kPageBytes, *one);
  driver_->map(*again + 3 * kPageBytes, *other);
  driver_->set_access(*again, 5 * kPageBytes);
  EXPECT_TRUE(use(*range, 3 * kPageBytes) && use(*again, 3 * kPageBytes));
  EXPECT_TRUE(use(*again + 2 * kPageBytes, 3 * kPageBytes));
  if (GetParam().exact) {
    EXPECT_EQ(driver_->free_bytes(), taken) << "no memory of its own";
  }
  for (const Bytes page : {0, 2, 3}) driver_->unmap(*again + page * kPageBytes);
  EXPECT_TRUE(use(*range, 3 * kPageBytes)) << "what is left";
  for (const Bytes page : {0, 1}) driver_->unmap(*range + page * kPageBytes);
  driver_->release(*one);
  driver_->release(*other);
  driver_->unreserve(*range);
  driver_->unreserve(*again);
}

TEST_P(EveryDriver, TheSameAddressesServeMemoryAgainAndAgain) {
  const auto range = driver_->reserve(4 * kPageBytes);
  ASSERT_TRUE(range.ok());
  for (int i = 0; i < 20; ++i) {
    const auto handle = driver_->create(4 * kPageBytes);
    ASSERT_TRUE(handle.ok()) << i;
    driver_->map(*range, *handle);
    driver_->set_access(*range, 4 * kPageBytes);
    EXPECT_TRUE(use(*range, 4 * kPageBytes)) << i;
    driver_->unmap(*range);
    driver_->release(*handle);
  }
  driver_->unreserve(*range);
}

TEST_P(EveryDriver, StreamOrderedMemoryIsThereAtOnce) {
  const Stream stream = GetParam().new_stream(*driver_);
  const auto first = driver_->allocate_async(3 * kPageBytes, stream);
  const auto second = driver_->allocate_async(kPageBytes, stream);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(*first + 3 * kPageBytes <= *second || *second + kPageBytes <= *first);
  driver_->synchronize(stream);
  EXPECT_TRUE(use(*first, 3 * kPageBytes) && use(*second, kPageBytes));
  driver_->free_async(*first, stream);
  driver_->free_async(*second, stream);
  driver_->synchronize(stream);
  free_ = driver_->free_bytes();  // the driver may keep what was freed for the next
}

TEST_P(EveryDriver, AnEventIsDoneWhenTheWorkBeforeItIs) {
  const Stream stream = GetParam().new_stream(*driver_), other = GetParam().new_stream(*driver_);
  const Event idle = driver_->record(stream);
  driver_->wait(idle);
  EXPECT_TRUE(driver_->is_done(idle));
  if (GetParam().launch) {
    GetParam().launch(*driver_, stream);
    const Event busy = driver_->record(stream), beside = driver_->record(other);
    EXPECT_TRUE(driver_->is_done(idle));
    EXPECT_FALSE(driver_->is_done(busy));
    EXPECT_TRUE(driver_->is_done(beside)) << "streams do not wait for each other";
    driver_->synchronize(other);
    EXPECT_FALSE(driver_->is_done(busy));
    driver_->wait(busy);
    EXPECT_TRUE(driver_->is_done(busy));
    GetParam().launch(*driver_, stream);
    const Event later = driver_->record(stream);
    EXPECT_FALSE(driver_->is_done(later));
    driver_->synchronize(stream);
    EXPECT_TRUE(driver_->is_done(later));
    for (const Event event : {busy, beside, later}) driver_->forget(event);
  }
  driver_->forget(idle);
  EXPECT_FALSE(driver_->is_capturing(stream));
}

TEST_P(EveryDriver, EventsMayBeManyAndAreUsedAgain) {
  const Stream stream = GetParam().new_stream(*driver_);
  for (int round = 0; round < 3; ++round) {
    std::vector<Event> events;
    events.reserve(200);
    for (int i = 0; i < 200; ++i) events.push_back(driver_->record(i % 2 == 0 ? stream : 0));
    driver_->synchronize(stream);
    driver_->synchronize(0);
    for (const Event event : events) {
      EXPECT_TRUE(driver_->is_done(event));
      driver_->forget(event);
    }
  }
}

TEST_P(EveryDriver, EachPolicyHandsOutMemoryOfItAndGivesAllBack) {
  const Bytes limit = std::min<Bytes>(64 * kPageBytes, driver_->free_bytes() / 2);
  for (const std::string_view name : policy_names()) {
    const auto policy = make_policy(name, *driver_, limit).value();
    std::mt19937 random(7);
    std::vector<Address> live;
    for (int i = 0; i < 200; ++i) {
      const Bytes size = 1 + random() % (Bytes{1} << (8 + random() % 15));
      if (const auto got = policy->allocate(size, 0); got.ok()) {
        EXPECT_TRUE(i % 20 != 0 || use(*got, size)) << name;
        live.push_back(*got);
      }
      if (live.size() > 20 || (random() % 3 == 0 && !live.empty())) {
        std::swap(live[random() % live.size()], live.back());
        ASSERT_TRUE(policy->free(live.back()).ok());
        live.pop_back();
      }
    }
    policy->check();
    for (const Address address : live) ASSERT_TRUE(policy->free(address).ok());
    policy->trim();
    EXPECT_EQ(policy->stats().reserved, 0u) << name;
  }
}

inline std::string driver_name(const testing::TestParamInfo<DriverUnderTest>& info) {
  return info.param.name;
}

}  // namespace flatout::devmem
