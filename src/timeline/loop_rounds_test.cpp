#include "timeline/loop_rounds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "timeline/steps.h"
#include "timeline/test_run.h"

namespace flatout::timeline {
namespace {

using model::SignalId;

constexpr int32_t kPid = 100;
constexpr double kReadMs = 25;

/// A run of 10 s whose loops were read each 25 ms.
class LoopRounds : public ::testing::Test {
 protected:
  /// `rounds`: how many the loop had begun at a time in ms; negative: it was not there.
  void loop(int64_t depth, int64_t slot, const std::function<double(double)>& rounds,
            int32_t pid = kPid) {
    const auto entity = static_cast<model::EntityId>(run_.entities.size());
    run_.entities.push_back(
        {model::EntityKind::kLoop, int64_t{pid} << 32 | depth << 16 | slot, model::kNoEntity, "f"});
    model::Series series{SignalId::kLoopRounds, entity, {}};
    for (int i = 0; i * kReadMs <= 10'000; ++i) {
      const double ms = i * kReadMs;
      if (const double value = rounds(ms); value >= 0) {
        series.readings.push_back({at(ms), std::floor(value)});
      }
    }
    run_.series.push_back(series);
  }
  static TimePoint at(double ms) { return time_point_ns(static_cast<int64_t>(ms * 1e6)); }
  double mean_ms(const std::vector<StepEnd>& ends) const {
    return to_ms(ends.back().at - ends.front().at) / static_cast<double>(ends.size() - 1);
  }

  model::Run run_;
};

TEST_F(LoopRounds, StepsAreTheInnermostLoopAroundNearlyAllOfTheTime) {
  loop(0, 0, [](double ms) { return ms / 1000; });                                  // epochs
  loop(1, 0, [](double ms) { return ms / 5; });                                     // steps
  loop(1, 1, [](double ms) { return std::fmod(ms, 100) < 55 ? ms / 0.5 : -1.0; });  // in a step
  loop(
      2, 0, [](double ms) { return ms / 7; }, 200);  // another process
  const auto ends = find_loop_rounds(run_, kPid);
  ASSERT_EQ(ends.size(), 2000u);
  EXPECT_NEAR(mean_ms(ends), 5, 0.01);
  for (size_t i = 1; i < ends.size(); ++i) {
    ASSERT_GT(ends[i].at, ends[i - 1].at);
    ASSERT_EQ(ends[i].index, ends[i - 1].index + 1);
  }
}

TEST_F(LoopRounds, AStallLiesInTheStepThatHadIt) {
  // Steps of 100 ms; the one that begins at 5 s takes 2 s.
  loop(0, 0,
       [](double ms) { return ms < 5000 ? ms / 100 : 50 + std::max(0.0, (ms - 6900) / 100); });
  const auto ends = find_loop_rounds(run_, kPid);
  double longest = 0;
  for (size_t i = 1; i < ends.size(); ++i) {
    longest = std::max(longest, to_ms(ends[i].at - ends[i - 1].at));
  }
  EXPECT_NEAR(longest, 2000, 2 * kReadMs);
}

TEST_F(LoopRounds, RoundsOfMicrosecondsAreNoSteps) {
  loop(0, 0, [](double ms) { return ms / 80; });
  loop(0, 1, [](double ms) { return ms / 0.01; });
  EXPECT_NEAR(mean_ms(find_loop_rounds(run_, kPid)), 80, 0.5);
  run_.series.erase(run_.series.begin());
  EXPECT_TRUE(find_loop_rounds(run_, kPid).empty());
}

TEST_F(LoopRounds, ALoopThatHardlyComesRoundIsNone) {
  loop(0, 0, [](double ms) { return ms / 3000; });
  EXPECT_TRUE(find_loop_rounds(run_, kPid).empty());
  EXPECT_TRUE(find_loop_rounds(model::Run{}, kPid).empty());
}

TEST_F(LoopRounds, OfVeryManyRoundsSomeAreTakenWithTheirTrueLength) {
  loop(0, 0, [](double ms) { return ms / 0.06; });
  run_.series.back().readings.clear();
  for (int i = 0; i <= 4000; ++i) {  // 40 s and 667,000 rounds
    run_.series.back().readings.push_back({at(10.0 * i), std::floor(10.0 * i / 0.06)});
  }
  const auto ends = find_loop_rounds(run_, kPid);
  EXPECT_LT(ends.size(), 110'000u);
  EXPECT_GT(ends.size(), 90'000u);
  size_t lost = 0;
  for (size_t i = 1; i < ends.size(); ++i) {
    if (ends[i].lost) {
      ++lost;
    } else {
      ASSERT_NEAR(to_ms(ends[i].at - ends[i - 1].at), 0.06, 0.001);
    }
  }
  EXPECT_GT(lost, 100u);
}

// The main thread only waits for the one that it left the training to.
TEST(LoopRoundsOfAThread, AreTheStepsOfTheThreadWithTheLoop) {
  testing::RunBuilder b;
  b.run().processes[0].python = false;
  b.every(25).thread(0, 101);
  const auto joins = b.stack({{"main", "train.cpp", 90}, {"pthread_join", "libc.so.6", 0}});
  const auto trains = b.stack({{"train", "train.cpp", 20}, {"backward", "net.cpp", 5}});
  for (int i = 0; i < 400; ++i) {
    const TimePoint begin = b.now();
    b.on(1).during(25, trains, model::ThreadState::kOnCpuNative);
    b.run().readings.push_back({begin, 0, joins, 25'000, model::ThreadState::kLock, 0, -1});
  }
  model::Run run = b.build();
  model::Series series{
      SignalId::kLoopRounds, static_cast<model::EntityId>(run.entities.size()), {}};
  run.entities.push_back(
      {model::EntityKind::kLoop, int64_t{100} << 32, model::kNoEntity, "train calls backward"});
  for (int i = 0; i < 400; ++i)
    series.readings.push_back({run.begin + std::chrono::milliseconds(25 * i), 5.0 * i});
  run.series.push_back(series);
  find_steps(run);
  EXPECT_EQ(run.steps.thread, 1u);
  EXPECT_NEAR(static_cast<double>(run.steps.steps.size()), 1990, 20);
}

TEST_F(LoopRounds, ALoopThatWasThereForAMomentTellsNothingOfWhatTheProcessDoes) {
  run_.end = at(10'000);
  run_.processes.emplace_back().pid = kPid;
  run_.threads.push_back({0, kPid});
  for (const auto state : {model::ThreadState::kOnCpuNative, model::ThreadState::kLock}) {
    run_.readings = {{at(9000), 0, 0, 1000, state, 0, 0}};
    for (const double until : {300.0, 5000.0}) {
      run_.series.clear();
      loop(0, 0, [&](double ms) { return ms < until ? ms / 5 : -1.0; });
      const bool works = state == model::ThreadState::kOnCpuNative;  // it may hang in that loop
      EXPECT_EQ(find_loop_rounds(run_, kPid).empty(), until < 1000 && works);
    }
  }
}

}  // namespace
}  // namespace flatout::timeline
