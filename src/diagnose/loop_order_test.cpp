// What a loop without a loader does before its forward pass.
#include <gtest/gtest.h>

#include <string>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;

// In native code right under a line of the user's, which half of the readings show: a permutation
// of all samples for each step, a sum of arrays. Noise for a model is not input.
TEST(LoopOrder, DrawingSamplesAndNumPyAtALineOfTheUsersAreInputAndNoiseIsNot) {
  const Line at{"main", "/home/u/train.py", 9}, model{"main", "/home/u/train.py", 12};
  for (const std::string native : {"randperm", "multinomial", "FLOAT_add", "randn"}) {
    const bool numpy = native == "FLOAT_add", input = native != "randn";
    const Line under{native, numpy ? "/x/_multiarray_umath.cpython-311.so" : "/x/libtorch_cpu.so",
                     0, model::FrameKind::kUnderPython};
    RunBuilder b;
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kInputWait, 4, {ThreadState::kOnCpuNative, {at}}},
              {Part::kInputWait, 4, {ThreadState::kOnCpuNative, {at, under}}},
              {Part::kForward, 2, {ThreadState::kOnCpuNative, {model}}}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, input ? "input.decode_cpu" : "healthy") << native;
    if (input) {
      EXPECT_NEAR(d.findings.front().gain.value_or(0), 5, 0.5);
    }
  }
}

}  // namespace
}  // namespace flatout::diagnose
