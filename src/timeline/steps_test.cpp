#include "timeline/steps.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "timeline/test_run.h"

namespace flatout::timeline {
namespace {

using model::Part;
using model::SliceKind;
using model::Step;
using model::StepSource;
using model::ThreadState;
using testing::RunBuilder;

double ms(const Step& step, Part part) { return to_ms(step.part(part)); }

void expect_exact(const model::Run& run) {
  for (const Step& step : run.steps.steps) {
    const Nanos sum = std::accumulate(step.parts.begin(), step.parts.end(), Nanos(0));
    ASSERT_EQ(sum, step.length()) << "step " << step.index;
    for (const Nanos part : step.parts) ASSERT_GE(part.count(), 0);
  }
}

model::Run steps_of(RunBuilder& builder) {
  model::Run run = builder.build();
  find_steps(run);
  expect_exact(run);
  return run;
}

TEST(FindSteps, SplitsAPlainLoaderLoop) {
  RunBuilder b;
  for (int i = 0; i < 20; ++i)
    b.wait(4).idle(2).backward(6).idle(0.5).optimizer(1, 0, i + 1).idle(1);
  const model::Run run = steps_of(b);
  EXPECT_EQ(run.steps.source, StepSource::kHooks);
  ASSERT_EQ(run.steps.steps.size(), 20u);
  const Step& step = run.steps.steps[10];
  EXPECT_EQ(step.index, 10);
  EXPECT_DOUBLE_EQ(to_ms(step.length()), 14.5);
  EXPECT_DOUBLE_EQ(ms(step, Part::kInputWait), 4);
  EXPECT_DOUBLE_EQ(ms(step, Part::kForward), 2);
  EXPECT_DOUBLE_EQ(ms(step, Part::kBackward), 6);
  EXPECT_DOUBLE_EQ(ms(step, Part::kOptimizer), 1);
  EXPECT_DOUBLE_EQ(ms(step, Part::kOther), 1.5);
  EXPECT_EQ(run.steps.summary.count, 20);
  EXPECT_EQ(run.steps.summary.warmup, 1);
  EXPECT_NEAR(run.steps.summary.breakdown[0], 4 / 14.5, 1e-9);
}

TEST(FindSteps, AccumulatedGradientsAreOneStep) {
  RunBuilder b;
  for (int i = 0; i < 10; ++i) {
    for (int k = 0; k < 4; ++k) b.wait(1).forward(2).backward(3);
    b.optimizer(1, 0, i + 1);
  }
  const model::Run run = steps_of(b);
  ASSERT_EQ(run.steps.steps.size(), 10u);
  EXPECT_DOUBLE_EQ(ms(run.steps.steps[5], Part::kInputWait), 4);
  EXPECT_DOUBLE_EQ(ms(run.steps.steps[5], Part::kForward), 8);
  EXPECT_DOUBLE_EQ(ms(run.steps.steps[5], Part::kBackward), 12);
}

// A policy is asked without gradients, its answers wait for an actor, then come a few updates.
TEST(FindSteps, APolicyThatIsAskedEveryFewUpdatesIsNoValidation) {
  for (const int updates : {1, 4, 40}) {
    RunBuilder b;
    for (int i = 0; i < 200; ++i) {
      if (i % updates == 0) b.idle(60).validation(1);
      b.forward(2).backward(3).optimizer(1, 0, i + 1);
    }
    const model::Run run = steps_of(b);
    double total = 0;
    for (const Step& step : run.steps.steps) total += to_ms(step.length());
    const double rounds = 200.0 / updates;
    if (updates == 40) {
      EXPECT_NEAR(total, 200 * 6, 10) << "once in 40 updates it is one";
    } else {
      EXPECT_NEAR(total, 200 * 6 + rounds * 61, 70);
    }
  }
}

// A few-shot learner makes a new optimizer for each episode; addresses are used again.
TEST(FindSteps, OptimizersThatFollowEachOtherTakeNoTurns) {
  RunBuilder b;
  for (int i = 0; i < 120; ++i) b.wait(1).forward(2).backward(3).optimizer(1, i / 8 % 3, i % 8 + 1);
  EXPECT_EQ(steps_of(b).steps.steps.size(), 120u);
}

TEST(FindSteps, TwoOptimizersOnOneBatchAreOneStep) {
  RunBuilder b;
  for (int i = 0; i < 10; ++i) {
    b.wait(1).forward(2).backward(3).optimizer(1, 0, i + 1);
    b.forward(2).backward(3).optimizer(1, 1, i + 1);
  }
  const model::Run run = steps_of(b);
  ASSERT_EQ(run.steps.steps.size(), 10u);
  EXPECT_DOUBLE_EQ(to_ms(run.steps.steps[5].length()), 13);
  EXPECT_DOUBLE_EQ(ms(run.steps.steps[5], Part::kOptimizer), 2);
}

TEST(FindSteps, TwoOptimizersWithoutALoaderAreOneCycle) {
  RunBuilder b;
  for (int i = 0; i < 10; ++i) {
    b.idle(2).backward(3).optimizer(1, 0, i + 1).idle(2).backward(3).optimizer(1, 1, i + 1);
  }
  const model::Run run = steps_of(b);
  ASSERT_EQ(run.steps.steps.size(), 10u);
  EXPECT_DOUBLE_EQ(ms(run.steps.steps[5], Part::kForward), 4);
}

TEST(FindSteps, TwoOptimizersWithABatchEachAreOneCycle) {
  RunBuilder b;
  for (int i = 0; i < 10; ++i) {
    b.wait(1).forward(2).backward(3).optimizer(1, 0, i + 1);
    b.wait(1).forward(2).backward(3).optimizer(1, 1, i + 1);
  }
  EXPECT_EQ(steps_of(b).steps.steps.size(), 10u);
}

TEST(FindSteps, AGeneratorThatStepsOnEveryFifthBatchMakesNoLongerSteps) {
  RunBuilder b;
  for (int i = 0; i < 30; ++i) {
    b.wait(1).forward(2).backward(3).optimizer(1, 0, i + 1);
    if (i % 5 == 4) b.forward(2).backward(3).optimizer(1, 1, i / 5 + 1);
  }
  EXPECT_EQ(steps_of(b).steps.steps.size(), 30u);
}

TEST(FindSteps, OneTrainingAfterAnotherKeepsItsSteps) {
  RunBuilder b;
  for (int i = 0; i < 20; ++i) b.wait(1).forward(2).backward(3).optimizer(1, 0, i + 1);
  for (int i = 0; i < 20; ++i) b.wait(1).forward(2).backward(3).optimizer(1, 1, i + 1);
  EXPECT_EQ(steps_of(b).steps.steps.size(), 40u);
}

TEST(FindSteps, ClosuresAreInsideTheirStep) {
  RunBuilder b;
  for (int i = 0; i < 8; ++i) {
    b.wait(1);
    for (int k = 0; k < 3 + i % 3; ++k) b.forward(2).backward(3).idle(0.1);
    b.optimizer(1, 0, i + 1);
  }
  const model::Run run = steps_of(b);
  ASSERT_EQ(run.steps.steps.size(), 8u);
  EXPECT_DOUBLE_EQ(ms(run.steps.steps[4], Part::kBackward), 12);
}

TEST(FindSteps, OptimizersInsideTheBackwardPassDoNotSplitIt) {
  RunBuilder b;
  for (int i = 0; i < 10; ++i) {
    b.wait(1).forward(2);
    const TimePoint begin = b.now();
    for (int id = 0; id < 5; ++id) b.idle(1).optimizer(0.2, id, i + 1);
    b.idle(1).add(SliceKind::kBackward, begin, b.now());
  }
  const model::Run run = steps_of(b);
  ASSERT_EQ(run.steps.steps.size(), 10u);
  EXPECT_DOUBLE_EQ(ms(run.steps.steps[5], Part::kBackward), 6);
  EXPECT_DOUBLE_EQ(ms(run.steps.steps[5], Part::kOptimizer), 1);
}

TEST(FindSteps, AStepWhoseOptimizerTheScalerSkippedIsOneToo) {
  RunBuilder b;
  for (int i = 0; i < 20; ++i) {
    b.wait(1).forward(2).backward(3);
    if (i != 7) b.optimizer(1, 0, i < 7 ? i + 1 : i);
  }
  const model::Run run = steps_of(b);
  ASSERT_EQ(run.steps.steps.size(), 20u);
  EXPECT_DOUBLE_EQ(to_ms(run.steps.steps[7].length()), 6);
  EXPECT_EQ(run.steps.steps[19].index, 19);
}

TEST(FindSteps, MarkedValidationIsCutOut) {
  RunBuilder b;
  for (int i = 0; i < 30; ++i) {
    if (i % 10 == 9) {
      for (int k = 0; k < 5; ++k) b.wait(3).validation(4);
      b.wait(1).slice(SliceKind::kEpoch, 0);
    }
    b.wait(1).forward(2).backward(3).optimizer(1, 0, i + 1);
  }
  const model::Run run = steps_of(b);
  ASSERT_EQ(run.steps.steps.size(), 30u);
  EXPECT_TRUE(run.steps.steps[9].validation);
  EXPECT_FALSE(run.steps.steps[9].epoch_start);
  EXPECT_DOUBLE_EQ(to_ms(run.steps.steps[9].length()), 7);
  EXPECT_FALSE(run.steps.steps[10].validation);
  EXPECT_EQ(run.steps.summary.median, Nanos(7'000'000));
  ASSERT_EQ(run.steps.passes.size(), 15u);
  for (const Step& pass : run.steps.passes) {
    EXPECT_DOUBLE_EQ(ms(pass, Part::kInputWait), 3);
    EXPECT_DOUBLE_EQ(ms(pass, Part::kForward), 4);
    EXPECT_DOUBLE_EQ(to_ms(pass.length()), 7);
  }
}

// Of a hundred passes some are one slice: pieces of a tenth or more are alike.
TEST(FindSteps, ALongValidationIsTenPieces) {
  RunBuilder b;
  for (int i = 0; i < 60; ++i) {
    if (i % 30 == 29) {
      for (int k = 0; k < 100; ++k) b.wait(1).validation(k % 4 == 3 ? 5 : 1);
    }
    b.wait(1).forward(2).backward(3).optimizer(1, 0, i + 1);
  }
  const model::Run run = steps_of(b);
  ASSERT_GE(run.steps.passes.size(), 16u);
  ASSERT_LE(run.steps.passes.size(), 20u);
  Nanos all{};
  for (const Step& pass : run.steps.passes) {
    EXPECT_GE(to_ms(pass.length()), 30);
    EXPECT_LE(to_ms(pass.length()), 36);
    all += pass.length();
  }
  EXPECT_NEAR(to_ms(all), 600, 40);
}

TEST(FindSteps, ForwardPassesThatNoBackwardFollowsAreValidation) {
  RunBuilder b;
  for (int i = 0; i < 30; ++i) {
    if (i % 10 == 9) {
      for (int k = 0; k < 5; ++k) b.wait(3).forward(4);
    }
    b.wait(1).forward(2).backward(3).optimizer(1, 0, i + 1);
  }
  const model::Run run = steps_of(b);
  ASSERT_EQ(run.steps.steps.size(), 30u);
  EXPECT_TRUE(run.steps.steps[19].validation);
  EXPECT_DOUBLE_EQ(to_ms(run.steps.steps[19].length()), 7);
}

TEST(FindSteps, ATeacherWithoutGradientsIsPartOfTheStep) {
  RunBuilder b;
  for (int i = 0; i < 20; ++i) {
    b.wait(5).validation(4).forward(2).backward(3).optimizer(1, 0, i + 1);
  }
  const model::Run run = steps_of(b);
  ASSERT_EQ(run.steps.steps.size(), 20u);
  EXPECT_FALSE(run.steps.steps[10].validation);
  EXPECT_DOUBLE_EQ(ms(run.steps.steps[10], Part::kInputWait), 5);
  EXPECT_DOUBLE_EQ(ms(run.steps.steps[10], Part::kForward), 6);
}

TEST(FindSteps, ALoaderMadeAnewIsInputWaitOfTheEpochsFirstStep) {
  RunBuilder b;
  for (int i = 0; i < 20; ++i) {
    if (i % 5 == 0)
      b.wait(1).slice(SliceKind::kEpoch, 0).idle(2).slice(SliceKind::kLoaderStart, 50);
    b.wait(1).forward(2).backward(3).optimizer(1, 0, i + 1);
  }
  const model::Run run = steps_of(b);
  const Step& step = run.steps.steps[10];
  EXPECT_TRUE(step.epoch_start);
  EXPECT_FALSE(step.validation);
  EXPECT_GE(ms(step, Part::kInputWait), 52);
  EXPECT_FALSE(run.steps.steps[11].epoch_start);
}

TEST(FindSteps, AGapInTheRecordingIsNoStep) {
  RunBuilder b;
  for (int i = 0; i < 10; ++i) b.wait(1).forward(2).backward(3).optimizer(1, 0, i + 1);
  const TimePoint begin = b.now();
  b.idle(700);
  b.run().gaps.push_back({begin, b.now()});
  for (int i = 110; i < 120; ++i) b.wait(1).forward(2).backward(3).optimizer(1, 0, i + 1);
  const model::Run run = steps_of(b);
  ASSERT_EQ(run.steps.steps.size(), 19u);  // of the one that the gap cuts only the end is known
  EXPECT_EQ(run.steps.steps[10].index, 111);
  EXPECT_TRUE(run.steps.steps[10].after_gap);
  EXPECT_EQ(run.steps.summary.count, 120);
  EXPECT_EQ(run.steps.summary.p95, Nanos(7'000'000));
}

TEST(FindSteps, StepsThatTheRingDroppedShowInTheOptimizersCount) {
  RunBuilder b;
  for (int i = 0; i < 10; ++i) b.wait(1).forward(2).backward(3).optimizer(1, 0, i + 1);
  b.idle(14);
  for (int i = 12; i < 20; ++i) b.wait(1).forward(2).backward(3).optimizer(1, 0, i + 1);
  const model::Run run = steps_of(b);
  EXPECT_TRUE(run.steps.steps[10].after_gap);
  EXPECT_EQ(run.steps.steps[10].index, 12);
  EXPECT_EQ(run.steps.summary.count, 20);
}

TEST(FindSteps, AStoppedJobIsNotASlowStep) {
  RunBuilder b;
  for (int i = 0; i < 20; ++i) {
    b.wait(1).forward(2);
    if (i == 12) b.during(500, 0, ThreadState::kStopped);
    b.backward(3).optimizer(1, 0, i + 1);
  }
  const model::Run run = steps_of(b);
  EXPECT_TRUE(run.steps.steps[12].after_gap);
  EXPECT_FALSE(run.steps.steps[13].after_gap);
}

TEST(FindSteps, OfSeveralRanksTheCommandItselfCounts) {
  RunBuilder b;
  b.thread(1, 200).thread(2, 201);
  for (int i = 0; i < 10; ++i) {
    for (const model::ThreadId t : {1u, 2u}) b.on(t).wait(1).forward(2).backward(3).optimizer(1);
  }
  b.on(0);
  for (int i = 0; i < 8; ++i) b.wait(1).forward(2).backward(3).optimizer(1);
  EXPECT_EQ(steps_of(b).steps.thread, 0u);
}

TEST(FindSteps, ATrainingThreadNeedNotBeTheMainOne) {
  RunBuilder b;
  b.thread(0, 101);
  for (int i = 0; i < 10; ++i) b.wait(1).forward(2).backward(3).optimizer(1, 0, i + 1);
  const model::Run run = steps_of(b);
  EXPECT_EQ(run.steps.thread, 1u);
  EXPECT_EQ(run.steps.steps.size(), 10u);
}

TEST(FindSteps, ThreadsThatFollowEachOtherAreOneTrainingThread) {
  RunBuilder b;
  int count = 0;
  for (int epoch = 0; epoch < 4; ++epoch) {
    b.thread(0, 101 + epoch);
    for (int i = 0; i < 5; ++i) b.wait(1).forward(2).backward(3).optimizer(1, 0, ++count);
  }
  model::Run run = steps_of(b);
  EXPECT_EQ(run.steps.steps.size(), 20u);
  EXPECT_EQ(run.threads[3].continues, 1u);
  // What comes later of a thread that is known to continue another is that one's, too.
  run.slices.push_back({b.now(), b.now() + Nanos(1'000'000), SliceKind::kOptimizer, 4, 0, 0, 21});
  find_steps(run);
  EXPECT_EQ(run.steps.steps.size(), 21u);
}

TEST(FindSteps, ThreadsThatTrainSideBySideAreNotOne) {
  RunBuilder b;
  b.thread(0, 101).thread(0, 102);
  for (int i = 0; i < 10; ++i) {
    for (const model::ThreadId t : {1u, 2u}) b.on(t).wait(1).forward(2).backward(3).optimizer(1);
  }
  const model::Run run = steps_of(b);
  EXPECT_EQ(run.steps.steps.size(), 10u);
  EXPECT_EQ(run.threads[2].continues, model::kNone);
}

TEST(FindSteps, MarkersWithoutPhasesGiveCompute) {
  RunBuilder b;
  b.add(SliceKind::kStep, b.now(), b.now(), 0);
  for (int i = 1; i < 10; ++i) {
    b.wait(2).idle(8);
    b.add(SliceKind::kStep, b.now(), b.now(), i);
  }
  const model::Run run = steps_of(b);
  EXPECT_EQ(run.steps.source, StepSource::kMarkers);
  ASSERT_EQ(run.steps.steps.size(), 9u);
  EXPECT_DOUBLE_EQ(ms(run.steps.steps[5], Part::kInputWait), 2);
  EXPECT_DOUBLE_EQ(ms(run.steps.steps[5], Part::kCompute), 8);
}

TEST(FindSteps, ARunWithoutStepsHasNone) {
  model::Run run;
  find_steps(run);
  EXPECT_EQ(run.steps.source, StepSource::kNone);
  EXPECT_TRUE(run.steps.steps.empty());
}

TEST(FindSteps, ALongRunWithoutStepsSaysWhyItHasNone) {
  for (const double ms : {20'000.0, 2'000.0}) {
    RunBuilder b;
    b.during(ms, 0, ThreadState::kOnCpuNative);  // without a pattern
    model::Run run = b.build();
    find_steps(run);
    find_steps(run);  // as a live run is read: it is said once
    EXPECT_EQ(run.missing.size(), ms > 10'000 ? 1U : 0U);
  }
}

TEST(FindSteps, PartsAddUpForAnySlices) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    RunBuilder b;
    for (int i = 0; i < 40; ++i) {
      const TimePoint begin = b.idle(0.001 * (random() % 5000)).now();
      const auto kind = static_cast<SliceKind>(1 + random() % 22);
      b.add(kind, begin, begin + Nanos(random() % 20'000'000), random() % 3, random() % 10);
      if (random() % 8 == 0) b.run().gaps.push_back({begin, begin + Nanos(random() % 5'000'000)});
    }
    model::Run run = b.build();
    find_steps(run);
    expect_exact(run);
    TimePoint last{};
    for (const PartPiece& piece : find_parts(run)) {
      ASSERT_GE(piece.begin, last);
      ASSERT_LT(piece.begin, piece.end);
      last = piece.end;
    }
  }
}

}  // namespace
}  // namespace flatout::timeline
