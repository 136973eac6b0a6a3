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

}  // namespace
}  // namespace flatout::diagnose
