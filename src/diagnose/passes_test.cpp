#include <gtest/gtest.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/run_builder.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;
using model::Step;

const Line kLearn{"learn", "/usr/lib/python3/site-packages/agents/on_policy.py", 218};
const Line kPlay{"step", "/home/u/game.py", 9};
const Doing kCompute{ThreadState::kOnCpuNative, {kMain}};
const Doing kGame{ThreadState::kOnCpuPython, {kMain, kLearn, kPlay}};
const Doing kPolicy{ThreadState::kOnCpuNative, {kMain, kLearn}};

/// Bursts of 32 steps of 5 ms; before each a phase of ten passes of 50 ms, `of_game` of it in the
/// game and the rest in the policy. `more`: what the steps do besides.
Diagnosis with_phases(double of_game, int phases,
                      const std::vector<RunBuilder::PartTime>& more = {}) {
  RunBuilder b;
  std::vector<Step> passes;
  for (int burst = 0; burst < 10; ++burst) {
    for (int k = 0; burst < phases && k < 10; ++k) {
      b.step({{Part::kForward, of_game, kGame}, {Part::kForward, 50 - of_game, kPolicy}});
      passes.push_back(b.run().steps.steps.back());
      b.run().steps.steps.pop_back();
    }
    for (int i = 0; i < 32; ++i) {
      std::vector<RunBuilder::PartTime> parts = {{Part::kForward, 2, kCompute},
                                                 {Part::kBackward, 2, kCompute},
                                                 {Part::kOptimizer, 1, kCompute}};
      parts.insert(parts.end(), more.begin(), more.end());
      b.step(parts);
      b.run().steps.steps.back().validation = i == 0 && burst < phases;
    }
  }
  b.run().steps.passes = std::move(passes);
  b.machine(2, 0.5).process_cpu(100, 1);
  return diagnose(b.build());
}

TEST(Passes, AGameInPythonBetweenTheStepsIsTold) {
  const Diagnosis d = with_phases(35, 10);
  ASSERT_EQ(d.verdict, "cpu.python_bound") << d.headline;
  const Finding& f = d.findings.front();
  EXPECT_TRUE(f.between_steps);
  ASSERT_TRUE(f.where.has_value());
  EXPECT_EQ(f.where->file, "/home/u/game.py");
  // 5 s in phases, 1.55 s in steps that no phase lies before; 3.5 s of it in the game.
  EXPECT_NEAR(*f.gain, 6.55 / 3.05, 0.1);
  EXPECT_NEAR(*f.cost_ms_per_step, 3500.0 / 310, 0.5);
  EXPECT_NEAR(f.evidence.front().value, 5 / 6.55, 1e-3);
}

// What a step gains is less of the whole time.
TEST(Passes, GainsOfTheStepsAreOfTheWholeTimeToo) {
  const Doing sleeps{ThreadState::kSleep, {{"main", "/home/u/train.py", 14}}, 35};
  const Diagnosis d = with_phases(1, 10, {{Part::kOther, 5, sleeps}});
  ASSERT_EQ(d.verdict, "stall.idle_wait") << d.headline;
  const Finding& f = d.findings.front();
  EXPECT_FALSE(f.between_steps);
  EXPECT_NEAR(*f.cost_ms_per_step, 5, 0.2);
  // 5 s in phases, 3.1 s in steps; 1.55 s of it asleep.
  EXPECT_NEAR(*f.gain, 8.1 / 6.55, 0.05);
}

// The policy's update and the game are two places.
TEST(Passes, TheSameCauseElsewhereInTheStepsHidesNone) {
  const Doing updates{ThreadState::kOnCpuPython, {{"main", "/home/u/train.py", 8}}};
  const Diagnosis d = with_phases(35, 10, {{Part::kForward, 5, updates}});
  ASSERT_GE(d.findings.size(), 2u) << d.headline;
  EXPECT_EQ(d.findings[0].id, "cpu.python_bound");
  EXPECT_TRUE(d.findings[0].between_steps);
  EXPECT_EQ(d.findings[1].id, "cpu.python_bound");
  EXPECT_EQ(d.findings[1].where->line, 8u);
  EXPECT_GT(*d.findings[0].gain, *d.findings[1].gain);
}

TEST(Passes, WhatComputesIsNoCause) {
  EXPECT_EQ(with_phases(1, 10).verdict, "healthy");
  EXPECT_EQ(with_phases(35, 0).verdict, "healthy");
}

}  // namespace
}  // namespace flatout::diagnose
