#include <gtest/gtest.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

// A profiler that was left on: each step is recorded, and each fifth writes what was.
TEST(Periodic, WhatTheLineThatStallsDoesInTheStepsBetweenGoesWithIt) {
  for (const double between : {0.0, 4.0}) {
    RunBuilder b;
    const Doing records{ThreadState::kOnCpuNative, {kMain, {"loop", "/home/u/train.py", 48}}};
    for (int i = 0; i < 200; ++i) {
      b.step({{Part::kForward, 16, kCompute}, {Part::kOther, i % 5 == 4 ? 44 : between, records}},
             i < 3);
    }
    b.counter(SignalId::kProcWriteChars, b.process_entity(100), 100e6);
    b.machine(2, 1).process_cpu(100, 1);
    const model::Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "stall.checkpoint") << d.headline;
    EXPECT_EQ(d.findings.front().where->line, 48);
    EXPECT_NEAR(*d.findings.front().cost_ms_per_step, (44 + 4 * between) / 5, 0.3);
  }
}

TEST(Periodic, AStallThatComesRoundSaysMoreThanThatTheTrainingThreadWaits) {
  for (const bool round : {true, false}) {
    RunBuilder b;
    const Doing waits{ThreadState::kLock, {kMain, {"ask", "/home/u/train.py", 48}}};
    for (int i = 0; i < 200; ++i) {
      b.step({{Part::kForward, 16, kCompute},
              {Part::kOther, round ? (i % 10 == 4 ? 80.0 : 0.0) : 8.0, waits}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    const model::Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, round ? "stall.periodic" : "stall.idle_wait") << d.headline;
    EXPECT_EQ(d.findings.front().where->line, 48);
    EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 8, 0.3);
    EXPECT_EQ(find(d, round ? "stall.idle_wait" : "stall.periodic"), nullptr);
  }
}

// What each step has of another cause does not explain why some of them are longer.
TEST(Periodic, ACauseOfTheUsualStepsDoesNotHideTheStall) {
  RunBuilder b;
  const Doing sleeps{ThreadState::kSleep, {kMain, {"pace", "/home/u/train.py", 30}}};
  const Doing draws{ThreadState::kOnCpuNative, {kMain, {"draw", "/home/u/train.py", 48}}};
  for (int i = 0; i < 200; ++i) {
    b.step({{Part::kForward, 10, kCompute},
            {Part::kOther, 4, sleeps},
            {Part::kOther, i % 10 == 4 ? 60.0 : 0.0, draws}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  const model::Diagnosis d = diagnose(b.build());
  ASSERT_NE(find(d, "stall.idle_wait"), nullptr);
  const model::Finding* f = find(d, "stall.periodic");
  ASSERT_NE(f, nullptr) << d.headline;
  EXPECT_EQ(f->where->line, 48);
  EXPECT_NEAR(*f->cost_ms_per_step, 6, 0.5);
}

// A loop that runs ahead of a device, and waits for it every so often: in a call of its own, or,
// with JAX, in the next step's.
TEST(Periodic, WaitingForADeviceThatOneRunsAheadOfIsNoStall) {
  for (const Part part : {Part::kSync, Part::kForward}) {
    for (const bool jax : {true, false}) {
      RunBuilder b;
      const Doing waits{ThreadState::kLock, {kMain, {"value", "/home/u/train.py", 48}}};
      for (int i = 0; i < 200; ++i) {
        b.step({{Part::kOther, 2, kCompute}, {part, i % 20 == 4 ? 160.0 : 1.0, waits}}, i < 3);
      }
      b.machine(2, 1).process_cpu(100, 1);
      if (jax) b.run().info["jax.version"] = "0.10.2";
      EXPECT_EQ(find(diagnose(b.build()), "stall.periodic") == nullptr, jax || part == Part::kSync);
    }
  }
}

// An update by torch.autograd.grad() after so many steps of a critic. The same line in each step,
// and then another that stalls, is no such update.
TEST(Periodic, GradientsThatOnlyLongStepsTakeAreTraining) {
  const Line grad{"grad", "/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", 503};
  const Doing gradients{ThreadState::kOnCpuNative, {kMain, {"hvp", "/home/u/train.py", 62}, grad}};
  const Doing stalls{ThreadState::kOnCpuNative, {kMain, {"draw", "/home/u/train.py", 70}}};
  for (const bool only : {true, false}) {
    RunBuilder b;
    for (int i = 0; i < 200; ++i) {
      const double then = i % 5 == 4 ? 60 : 0;
      b.step({{Part::kForward, 10, kCompute},
              {Part::kForward, only ? then : 8, gradients},
              {Part::kForward, then, stalls}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    EXPECT_EQ(find(diagnose(b.build()), "stall.periodic") == nullptr, only);
  }
}

// Attacks on the test set, once in fifty steps.
TEST(Periodic, AValidationThatAsksForGradientsIsAStall) {
  const Line grad{"grad", "/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", 503};
  const Doing attacks{ThreadState::kOnCpuNative, {kMain, {"attack", "/home/u/train.py", 62}, grad}};
  RunBuilder b;
  for (int i = 0; i < 400; ++i) {
    const bool attacked = i % 50 == 49;
    const TimePoint begin = b.now();
    b.step({{Part::kForward, attacked ? 300.0 : 0.0, attacks}, {Part::kForward, 10, kCompute}},
           i < 3);
    if (attacked) b.slice(b.trainer(), SliceKind::kValidation, begin, begin + nanos(50e6), 1);
  }
  b.machine(2, 1).process_cpu(100, 1);
  EXPECT_NE(find(diagnose(b.build()), "stall.periodic"), nullptr);
}

// The same without a word of it from the agent: its threads work meanwhile.
TEST(Periodic, WaitingForThreadsThatTakeWorkOutOfAQueueIsNoStall) {
  for (const bool works : {true, false}) {
    RunBuilder b;
    const model::ThreadId pool = b.thread(0, 101);
    const Doing waits{ThreadState::kLock, {kMain, {"value", "/home/u/train.py", 48}}};
    for (int i = 0; i < 200; ++i) {
      b.step({{Part::kForward, 2, kCompute}}, i < 3);
      if (i % 20 != 4) continue;
      const TimePoint from = b.now();
      b.step({{Part::kForward, 2, kCompute}, {Part::kOther, 160, waits}});
      if (works) b.doing(pool, from, b.now(), {ThreadState::kOnCpuNative, {}});
    }
    b.machine(2, 1).process_cpu(100, 1);
    b.run().info["jax.version"] = "0.10.2";
    EXPECT_EQ(find(diagnose(b.build()), "stall.periodic") == nullptr, works);
  }
}

}  // namespace
}  // namespace flatout::diagnose
