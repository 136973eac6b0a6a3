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

}  // namespace
}  // namespace flatout::diagnose
