#include <gtest/gtest.h>

#include <string>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

Diagnosis padded(const std::string& fact) {
  RunBuilder b;
  b.run().info["batch.padding"] = fact;
  b.run().info["batch.padding.at"] = "/home/u/train.py:31 in fit";
  b.run().info["torch.graph_nodes"] = "100";
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kForward, 12, kCompute},
            {Part::kBackward, 22, kCompute},
            {Part::kOptimizer, 6, kCompute}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  return diagnose(b.build());
}

TEST(Padding, ComputingOnColumnsThatNoRowNeedsIsSpared) {
  const Diagnosis d = padded("768 of 1024 columns in 4 batches");
  const Finding* f = find(d, "input.padding");
  ASSERT_NE(f, nullptr) << d.headline;
  // Of forward and backward, less what launching a hundred operations takes either way.
  EXPECT_NEAR(*f->cost_ms_per_step, 0.75 * 32, 0.2);
  EXPECT_NEAR(*f->gain, 40.0 / 16, 0.05);
  EXPECT_EQ(f->where->line, 31);
}

TEST(Padding, ALittleOfItFewBatchesAndAFactThatIsNoneAreNoFinding) {
  for (const char* fact : {"40 of 1024 columns in 4 batches", "240 of 1024 columns in 4 batches",
                           "28 of 64 columns in 4 batches", "768 of 1024 columns in 2 batches", "",
                           "768 of", "a of b columns in c batches"}) {
    EXPECT_EQ(padded(fact).verdict, "healthy") << fact;
  }
}

}  // namespace
}  // namespace flatout::diagnose
