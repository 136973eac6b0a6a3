#include <gtest/gtest.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;

/// What is said of steps of 8 ms of training and so many of updates, which are healthy.
std::string said(double ms, const char* what) {
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
  const Diagnosis d = diagnose(b.build());
  EXPECT_EQ(d.verdict, "healthy") << d.headline;
  return d.remark;
}

TEST(UnfusedOptimizer, IsWorthAWordWithWhereItIsMade) {
  EXPECT_EQ(said(8, "AdamW: 52 tensors, 216320 elements"),  // 16 / (16 - 0.65 * 8)
            "Its AdamW (train.py:31) updates tensor by tensor, operation by operation: with "
            "fused=True it "
            "may be 1.5 times as fast.");
}

TEST(UnfusedOptimizer, OfManyElementsSparesMore) {
  EXPECT_NE(said(8, "Adam: 62 tensors, 9448960 elements").find("1.6 times"), std::string::npos);
}

TEST(UnfusedOptimizer, ThatIsFusedOrTakesLittleIsNone) {
  EXPECT_EQ(said(8, ""), "");
  EXPECT_EQ(said(1, "Adam: 52 tensors, 216320 elements"), "");
}

}  // namespace
}  // namespace flatout::diagnose
