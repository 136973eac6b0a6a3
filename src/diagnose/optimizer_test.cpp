#include <gtest/gtest.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

/// Steps of 8 ms of training and so many of updates.
Diagnosis with(double ms, const char* what) {
  RunBuilder b;
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kForward, 4, kCompute},
            {Part::kBackward, 4, kCompute},
            {Part::kOptimizer, ms, kCompute}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  b.run().info["torch.optimizer"] = what;
  b.run().info["torch.optimizer.made_at"] = "/home/u/train.py:31 in main";
  return diagnose(b.build());
}

TEST(Optimizer, ThatUpdatesOperationByOperationIsToldWhereItIsMade) {
  const Diagnosis d = with(8, "AdamW: 52 tensors, 216320 elements");
  ASSERT_EQ(d.verdict, "cpu.unfused_optimizer") << d.headline;
  const Finding& f = d.findings.front();
  EXPECT_EQ(f.title, "AdamW updates tensor by tensor, operation by operation");
  EXPECT_NEAR(*f.cost_ms_per_step, 0.65 * 8, 0.1);
  EXPECT_NEAR(*f.gain, 16 / (16 - 0.65 * 8), 0.02);
  EXPECT_EQ(f.where->line, 31);
}

TEST(Optimizer, OfManyElementsSparesMore) {
  const Diagnosis d = with(8, "Adam: 62 tensors, 9448960 elements");
  ASSERT_EQ(d.verdict, "cpu.unfused_optimizer") << d.headline;
  EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 0.78 * 8, 0.1);
}

TEST(Optimizer, ThatIsFusedOrTakesLittleIsNone) {
  EXPECT_EQ(with(8, "").verdict, "healthy");
  EXPECT_EQ(with(1, "Adam: 52 tensors, 216320 elements").verdict, "healthy");
}

}  // namespace
}  // namespace flatout::diagnose
