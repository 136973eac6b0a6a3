#include "probe/address_counter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

namespace flatout::probe {
namespace {

using By = AddressCounter::By;

__attribute__((noinline)) void one() { asm volatile(""); }
__attribute__((noinline)) void another() { asm volatile("nop"); }

uint64_t address_of(void (*function)()) { return reinterpret_cast<uint64_t>(function); }

class EachWay : public testing::TestWithParam<By> {
 protected:
  void SetUp() override {
    if (!AddressCounter::open(gettid(), address_of(&one), 1000, GetParam()).ok()) {
      GTEST_SKIP() << "lacks hardware breakpoints, or uprobes (they need root)";
    }
  }
};

TEST_P(EachWay, CountsEachTimeOrUpToALimit) {
  const auto all = AddressCounter::open(gettid(), address_of(&one), 1000, GetParam());
  const auto some = AddressCounter::open(gettid(), address_of(&another), 20, GetParam());
  ASSERT_TRUE(all.ok() && some.ok());
  for (int i = 0; i < 50; ++i) {
    one();
    another();
  }
  EXPECT_EQ((*all)->count(), 50u);
  EXPECT_EQ((*some)->count(), 20u);
  (*all)->pause();
  one();
  EXPECT_EQ((*all)->count(), 50u);
  (*all)->pause();
  ASSERT_TRUE((*all)->resume().ok());
  one();
  EXPECT_EQ((*all)->count(), 51u);
}

TEST_P(EachWay, CountsOneThreadAlone) {
  const auto counter = AddressCounter::open(gettid(), address_of(&one), 1000, GetParam());
  ASSERT_TRUE(counter.ok());
  std::thread([] {
    for (int i = 0; i < 50; ++i) one();
  }).join();
  one();
  EXPECT_EQ((*counter)->count(), 1u);
}

INSTANTIATE_TEST_SUITE_P(AddressCounter, EachWay, testing::Values(By::kBreakpoint, By::kUprobe));

TEST(AddressCounter, SaysWhatItCannotCount) {
  const uint64_t on_stack = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
  EXPECT_FALSE(AddressCounter::open(gettid(), on_stack, 10, By::kUprobe).ok());
  EXPECT_FALSE(AddressCounter::open(0x7ffffff0, address_of(&one), 10, By::kUprobe).ok());
}

}  // namespace
}  // namespace flatout::probe
