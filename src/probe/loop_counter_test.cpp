#include "probe/loop_counter.h"

#include <gtest/gtest.h>

#include <random>

namespace flatout::probe {
namespace {

constexpr uint64_t kEpochs = 0x1000, kSteps = 0x2000;

PythonLoop loop(uint32_t slot, uint64_t iterator, int64_t begun, int64_t length) {
  PythonLoop out;
  out.slot = slot;
  out.iterator = iterator;
  out.begun = begun;
  out.length = length;
  return out;
}

TEST(LoopCounter, CountsFromWhereALoopWasFirstSeen) {
  LoopCounter counter;
  EXPECT_EQ(counter.update(std::vector{loop(0, kSteps, 40, 100)})[0].rounds, 0);
  EXPECT_EQ(counter.update(std::vector{loop(0, kSteps, 45, 100)})[0].rounds, 5);
  EXPECT_EQ(counter.update(std::vector{loop(0, kSteps, 45, 100)})[0].rounds, 5);
}

// Against loops that are really run: epochs of `length` steps, read at random times.
TEST(LoopCounter, CountsWhatInnerLoopsDidBetweenReadings) {
  std::mt19937 random(1);
  for (const int64_t length : {3, 50, 1000}) {
    LoopCounter counter;
    int64_t steps = 1;  // begun
    int64_t first = -1;
    for (int i = 0; i < 500; i++) {
      steps += static_cast<int64_t>(random() % 200);
      const int64_t epoch = (steps - 1) / length, step = (steps - 1) % length + 1;
      // The memory of the last iterator is mostly used again.
      const uint64_t at = epoch % 5 == 0 ? kSteps + 64 : kSteps;
      const auto rounds = counter.update(
          std::vector{loop(0, kEpochs, epoch + 1, 100'000), loop(1, at, step, length)});
      ASSERT_EQ(rounds.size(), 2u);
      if (first < 0) first = steps;
      ASSERT_EQ(rounds[1].rounds, steps - first) << "length " << length << ", reading " << i;
    }
  }
}

TEST(LoopCounter, GivesUpALoopWhoseRoundsWentByUnseen) {
  LoopCounter counter;
  const auto update = [&](int64_t epoch, int64_t step) {
    return counter.update(std::vector{loop(0, kEpochs, epoch, 1000), loop(1, kSteps, step, -1)})
        .size();
  };
  EXPECT_EQ(update(1, 1), 2u);
  EXPECT_EQ(update(1, 7), 2u);
  EXPECT_EQ(update(2, 3), 2u);  // once anew: nearly right
  EXPECT_EQ(update(9, 3), 1u);
  EXPECT_EQ(update(9, 5), 1u);
}

TEST(LoopCounter, LoopsOfImportsMakeRoomForThoseThatStay) {
  LoopCounter counter;
  PythonLoop train = loop(0, kSteps, 5, 1000);
  train.code = 1;
  counter.update(std::vector{train});
  for (uint32_t i = 0; i < 200; i++) {
    PythonLoop other = loop(1, kSteps + 64, 1, 2);
    other.code = 100 + i;
    train.begun++;
    const auto rounds = counter.update(std::vector{train, other});
    ASSERT_EQ(rounds.size(), 2u);
    ASSERT_EQ(rounds[0].rounds, i + 1);
  }
}

TEST(LoopCounter, KeepsLoopsOfOtherFunctionsApart) {
  LoopCounter counter;
  PythonLoop train = loop(0, kSteps, 5, 10), validate = loop(0, kSteps, 2, 10);
  train.code = 1;
  validate.code = 2;
  counter.update(std::vector{train});
  counter.update(std::vector{validate});
  validate.begun = 4;
  EXPECT_EQ(counter.update(std::vector{validate})[0].rounds, 2);
  train.begun = 8;
  EXPECT_EQ(counter.update(std::vector{train})[0].rounds, 3);
}

}  // namespace
}  // namespace flatout::probe
