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

}  // namespace
}  // namespace flatout::diagnose
