#include "recorder/schedule.h"

#include <gtest/gtest.h>

namespace flatout::recorder {
namespace {

using namespace std::chrono_literals;

TEST(StackPace, IsAsFastAsAskedWhileReadingsCostLittle) {
  StackPace pace(25ms);
  for (int i = 0; i < 50; ++i) pace.took(20us, 60s);
  EXPECT_EQ(pace.period(), 25ms);
}

TEST(StackPace, SlowsDownWhereReadingsCostMuch) {
  StackPace pace(25ms);
  for (int i = 0; i < 50; ++i) pace.took(2ms, 60s);
  EXPECT_GT(pace.period(), 250ms);
  EXPECT_LE(pace.period(), 1s);
}

TEST(StackPace, SpendsMoreAtFirst) {
  StackPace early(25ms), late(25ms);
  early.took(2ms, 1s);
  late.took(2ms, 60s);
  EXPECT_LT(early.period(), late.period());
}

TEST(StackPace, VariesItsBeat) {
  StackPace pace(100ms);
  pace.took(1us, 1s);
  Nanos sum{0};
  bool differ = false;
  Nanos last = pace.next();
  for (int i = 0; i < 1000; ++i) {
    const Nanos next = pace.next();
    differ |= next != last;
    last = next;
    sum += next;
    EXPECT_GE(next, 75ms);
    EXPECT_LE(next, 125ms);
  }
  EXPECT_TRUE(differ);
  EXPECT_NEAR(static_cast<double>((sum / 1000).count()), 100e6, 3e6);
}

}  // namespace
}  // namespace flatout::recorder
