// Operations that TensorFlow and JAX run one by one.
#include <gtest/gtest.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;

const Line kStep{"step", "/home/u/train.py", 12};

/// Steps of 20 ms, of which the interpreter has so many.
RunBuilder eager(double python, const char* version) {
  RunBuilder b;
  const Doing interprets{ThreadState::kOnCpuPython, {kMain, kStep}};
  const Doing runs{ThreadState::kOnCpuNative, {kMain, kStep}};
  for (int i = 0; i < 100; ++i) {
    b.step({{Part::kBackward, python, interprets}, {Part::kBackward, 20 - python, runs}}, i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  b.run().info[version] = "1.0";
  return b;
}

TEST(Eager, OperationsOfTensorFlowThatAreMostlyDispatchAreGainedByAGraph) {
  RunBuilder b = eager(12, "tensorflow.version");
  b.run().info["tensorflow.eager_ops"] = "1000";
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "cpu.python_bound");
  EXPECT_EQ(d.findings.front().where->line, 12);
  EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 19.2, 0.2);
}

TEST(Eager, WhatTheyComputeStays) {
  RunBuilder b = eager(6, "tensorflow.version");
  b.run().info["tensorflow.eager_ops"] = "100";
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "cpu.python_bound");
  EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 9.84, 0.3);
}

TEST(Eager, GradientsThatJaxTakesOperationByOperationAreFoundWithoutANumber) {
  const Diagnosis d = diagnose(eager(12, "jax.version").build());
  ASSERT_EQ(d.verdict, "cpu.python_bound");
  EXPECT_GT(*d.findings.front().gain, 20);
}

TEST(Eager, BigOperationsAreCompute) {
  RunBuilder b = eager(1, "tensorflow.version");
  b.run().info["tensorflow.eager_ops"] = "100";
  EXPECT_EQ(find(diagnose(b.build()), "cpu.python_bound"), nullptr);
  EXPECT_EQ(find(diagnose(eager(1, "jax.version").build()), "cpu.python_bound"), nullptr);
}

}  // namespace
}  // namespace flatout::diagnose
