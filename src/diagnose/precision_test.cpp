#include <gtest/gtest.h>

#include <string>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

/// Steps of 30 ms: 20 in kernels, 4 in the kernel for their memory, 6 in the interpreter.
RunBuilder computing(const std::string& doubles) {
  RunBuilder b;
  if (!doubles.empty()) b.run().info["model.float64"] = doubles;
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kForward, 20, kCompute},
            {Part::kForward, 4, {ThreadState::kKernel, {kMain}}},
            {Part::kForward, 6, {ThreadState::kOnCpuPython, {kMain}}}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  return b;
}

TEST(Precision, HalfOfWhatKernelsTakeIsSparedInFloat32) {
  RunBuilder b = computing("1000/1000");
  const Diagnosis d = diagnose(b.build());
  const Finding* f = find(d, "cpu.float64");
  ASSERT_NE(f, nullptr) << d.headline;
  EXPECT_NEAR(*f->gain, 30.0 / 18, 0.05);
  EXPECT_EQ(f->where->line, kMain.line);
}

TEST(Precision, TheLineThatAskedForItIsNamed) {
  RunBuilder b = computing("1000/1000");
  b.run().info["model.float64.set_at"] = "/home/u/train.py:7 in build";
  const Diagnosis d = diagnose(b.build());
  ASSERT_NE(find(d, "cpu.float64"), nullptr) << d.headline;
  EXPECT_EQ(find(d, "cpu.float64")->where->line, 7);
}

TEST(Precision, AFewParametersOrNoneInDoublePrecisionAreNotToBlame) {
  for (const std::string doubles : {"", "0/1000", "90/1000", "1000/0", "much/1000"}) {
    RunBuilder b = computing(doubles);
    EXPECT_EQ(find(diagnose(b.build()), "cpu.float64"), nullptr) << doubles;
  }
}

TEST(Precision, DispatchAndTheInterpreterTakeAsLongInFloat32) {
  for (const char* nodes : {"600", "600+"}) {  // 12 ms of the 24; there may be more
    RunBuilder b = computing("1000/1000");
    b.run().info["torch.graph_nodes"] = nodes;
    const Diagnosis d = diagnose(b.build());
    ASSERT_NE(find(d, "cpu.float64"), nullptr) << d.headline;
    EXPECT_NEAR(*find(d, "cpu.float64")->gain, 30.0 / 24, 0.05);
  }
}

TEST(Precision, OnADeviceItIsTheDevicesTimeThatCounts) {
  RunBuilder b = computing("1000/1000");
  model::Run run = b.build();
  model::DeviceUse use;
  use.recorded = nanos(1e9);
  use.sum.compute = use.sum.busy = nanos(0.8e9);
  run.devices = {use};
  const Diagnosis d = diagnose(run);
  ASSERT_NE(find(d, "cpu.float64"), nullptr) << d.headline;
  EXPECT_NEAR(*find(d, "cpu.float64")->gain, 1 / 0.6, 0.02);
}

TEST(Precision, HalfPrecisionIsTakenAtWhatItsOperationsTookInBoth) {
  RunBuilder b = computing("");
  b.run().info["model.half"] = "float16/21/3";
  b.run().info["pid.7.model.half.set_at"] = "/home/u/train.py:9 in step";
  const Diagnosis d = diagnose(b.build());
  const Finding* f = find(d, "cpu.half_precision");
  ASSERT_NE(f, nullptr) << d.headline;
  EXPECT_NEAR(*f->gain, 30.0 / 12, 0.05) << "24 ms that were 3 of these and 3 of others";
  EXPECT_EQ(f->where->line, 9);
}

TEST(Precision, ASmallPartInHalfPrecisionSavesNoMoreThanItTakes) {
  RunBuilder b = computing("");
  b.run().info["model.half"] = "float16/1.5/0.1";
  const Diagnosis d = diagnose(b.build());
  ASSERT_NE(find(d, "cpu.half_precision"), nullptr) << d.headline;
  EXPECT_NEAR(*find(d, "cpu.half_precision")->gain, 30.0 / 27.2, 0.02);
}

TEST(Precision, WhatIsNoProductTakesAsLongInEitherType) {
  RunBuilder b = computing("");
  b.run().info["model.half"] = "bfloat16/100/50";
  const Diagnosis d = diagnose(b.build());
  ASSERT_NE(find(d, "cpu.half_precision"), nullptr) << d.headline;
  EXPECT_NEAR(*find(d, "cpu.half_precision")->gain, 30.0 / 22, 0.05);
}

TEST(Precision, TensorFlowsOwnThreadsComputeInHalfPrecisionWhileTheTrainerWaits) {
  RunBuilder b;
  b.run().info["tensorflow.version"] = "2.21.0";
  b.run().info["model.half"] = "float16/70/10";
  for (int i = 0; i < 60; ++i) b.step({{Part::kForward, 40, {ThreadState::kLock, {kMain}}}}, i < 3);
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_NE(find(d, "cpu.half_precision"), nullptr) << d.headline;
  EXPECT_NEAR(*find(d, "cpu.half_precision")->gain, 4, 0.1);
}

TEST(Precision, HalfPrecisionThatIsNoSlowerIsNotToBlame) {
  for (const std::string times : {"bfloat16/10/10", "bfloat16/5/20", "bfloat16/5", "float16/x/1",
                                  "float16/5/0", "float16/1.05/1"}) {  // the last one: 0.6 ms of 30
    RunBuilder b = computing("");
    b.run().info["model.half"] = times;
    EXPECT_EQ(find(diagnose(b.build()), "cpu.half_precision"), nullptr) << times;
  }
}

}  // namespace
}  // namespace flatout::diagnose
