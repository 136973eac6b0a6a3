// Keras' fit and predict, called for each batch.
#include <gtest/gtest.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;

const Line kCall{"learn", "/home/u/agent.py", 55};
const Line kFit{"fit", "/x/site-packages/keras/src/backend/tensorflow/trainer.py", 400};
const Line kRuns{"__call__",
                 "/x/site-packages/tensorflow/python/eager/polymorphic_function/"
                 "polymorphic_function.py",
                 800};
const Doing kSetsUp{ThreadState::kOnCpuNative, {kCall, kFit}};
const Doing kComputes{ThreadState::kOnCpuNative, {kCall, kFit, kRuns}};

TEST(FitCalls, AFitForEachBatchIsNamedAtTheLineThatCallsIt) {
  for (const bool each : {true, false}) {
    RunBuilder b;
    for (int i = 0; i < 100; ++i) {
      b.step({{Part::kOther, 18, kSetsUp}, {Part::kForward, 2, kComputes}}, i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    b.run().info["tensorflow.version"] = "2.21.0";
    b.run().info["keras.fit.calls"] = each ? "64 in 64 steps" : "8 in 64000 steps";
    b.run().info["keras.fit.called_at"] = "/home/u/agent.py:55 in learn";
    const Diagnosis d = diagnose(b.build());
    const model::Finding* f = find(d, "cpu.python_bound");
    EXPECT_EQ(f != nullptr && f->title.find("Keras") != std::string::npos, each);
    if (!each) continue;
    ASSERT_EQ(d.verdict, "cpu.python_bound");
    EXPECT_EQ(f->where->line, 55);
    EXPECT_NEAR(*f->gain, 10, 1.5);
  }
}

// What comes before the batch looks like the making of one, at the line of the call.
TEST(FitCalls, WhatACallSetsUpIsNoInputAsWell) {
  for (const char* calls : {"64 in 64 steps", "8 in 64000 steps"}) {
    RunBuilder b;
    for (int i = 0; i < 100; ++i) {
      b.step({{Part::kInputWait, 18, {ThreadState::kOnCpuPython, {kCall, kFit}}},
              {Part::kForward, 2, kComputes}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    b.run().info["tensorflow.version"] = "2.21.0";
    b.run().info["keras.fit.calls"] = calls;
    b.run().info["keras.fit.called_at"] = "/home/u/agent.py:55 in learn";
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.findings.size(), 1u) << calls;
    EXPECT_EQ(d.verdict, calls[0] == '6' ? "cpu.python_bound" : "input.decode_cpu");
    EXPECT_EQ(d.findings.front().where->line, 55);
  }
}

}  // namespace
}  // namespace flatout::diagnose
