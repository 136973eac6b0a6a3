#include <gtest/gtest.h>

#include <string>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

const std::string kSeen = "4000000 elements of 2 tensors, emb.weight, 2.00 ns each";

/// 100 steps that compute for `first` ms, 100 for `then`.
RunBuilder steps(const std::string& seen, double first, double then) {
  RunBuilder b;
  if (!seen.empty()) b.run().info["denormals"] = seen;
  b.run().info["torch.num_threads"] = "2";
  for (int i = 0; i < 200; ++i) b.step({{Part::kForward, i < 100 ? first : then, kCompute}}, i < 3);
  if (first != then) {
    b.run().steps.changes.push_back(
        {100, b.run().steps.steps[100].begin, nanos(first * 1e6), nanos(then * 1e6)});
  }
  b.machine(2, 1).process_cpu(100, 1);
  return b;
}

TEST(Denormals, CostWhatKernelsTakeLongerSinceTheJobGotSlower) {
  const Diagnosis d = diagnose(steps(kSeen, 10, 50).build());
  const Finding* f = find(d, "cpu.denormals");
  ASSERT_NE(f, nullptr) << d.headline;
  EXPECT_NEAR(*f->cost_ms_per_step, 20, 1);  // 40 in half of the steps
  EXPECT_NE(d.headline.find("step 100"), std::string::npos) << d.headline;
  EXPECT_NE(d.headline.find("too small"), std::string::npos) << d.headline;
  EXPECT_EQ(f->where->line, kMain.line);
}

TEST(Denormals, CostOnePassAtLeastWhereTheJobWasNeverFast) {
  const Diagnosis d = diagnose(steps(kSeen, 20, 20).build());
  ASSERT_NE(find(d, "cpu.denormals"), nullptr) << d.headline;
  EXPECT_NEAR(*find(d, "cpu.denormals")->cost_ms_per_step, 4, 0.2);  // 8 on two threads
}

TEST(Denormals, AFewOfThemAreNotWhyAllGotSlower) {
  const std::string few = "90000 elements of 1 tensors, moments, 2.00 ns each";  // 0.1 ms
  EXPECT_EQ(find(diagnose(steps(few, 10, 50).build()), "cpu.denormals"), nullptr);
}

TEST(Denormals, FewOfThemAreNoCauseNorAreThoseThatTakeNoLonger) {
  for (const char* seen : {"", "90000 elements of 1 tensors, x, 2.00 ns each", "much",
                           "4000000 elements of 2 tensors, x, 0.01 ns each",
                           "elements of, x, ns each", "4000000 elements of 2 tensors, 2 ns each"}) {
    EXPECT_EQ(diagnose(steps(seen, 20, 20).build()).verdict, "healthy") << seen;
  }
}

}  // namespace
}  // namespace flatout::diagnose
