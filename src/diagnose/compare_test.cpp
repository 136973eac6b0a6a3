#include "diagnose/compare.h"

#include <gtest/gtest.h>

#include "diagnose/testing/run_builder.h"

namespace flatout::diagnose {
namespace {

using model::Change;
using model::Comparison;

const Doing kCompute{ThreadState::kOnCpuNative, {kMain}};

const Change* find(const Comparison& c, const std::string& what) {
  for (const Change& change : c.changes) {
    if (change.what == what) return &change;
  }
  return nullptr;
}

/// Steps of 10 ms, and so much waiting for cores that `others` use.
model::Run trained(double wait_ms, double others) {
  RunBuilder b;
  for (int i = 0; i < 80; ++i) {
    std::vector<RunBuilder::PartTime> parts = {{Part::kForward, 10 + 0.1 * (i % 5), kCompute}};
    if (wait_ms > 0) {
      parts.push_back({Part::kForward, wait_ms, {ThreadState::kRunQueue, {kMain}}});
    }
    b.step(parts, i < 3);
  }
  b.machine(2, 0.2, others).process_cpu(100, 0.6);
  b.run().info["kernel.release"] = "6.1";
  b.run().info["run.begin_unix_ns"] = wait_ms > 0 ? "2" : "1";
  return b.build();
}

TEST(Compare, EqualRunsDoNotDiffer) {
  const Comparison c = compare(trained(0, 0), trained(0, 0));
  EXPECT_EQ(c.verdict, "no_difference");
  EXPECT_NEAR(c.ratio, 1, 1e-9);
  EXPECT_TRUE(c.changes.empty()) << c.changes.front().what;
}

TEST(Compare, ANeighbourExplainsTheDifferenceByTheWaitsForCores) {
  const Comparison c = compare(trained(0, 0), trained(8, 0.9));
  EXPECT_EQ(c.verdict, "slower");
  EXPECT_NEAR(c.ratio, 1.8, 0.05);
  EXPECT_GT(c.ratio_interval.low, 1.7);
  const Change* others = find(c, "others.cpu_cores");
  ASSERT_NE(others, nullptr);
  ASSERT_TRUE(others->share_ms);
  EXPECT_NEAR(*others->share_ms, 8, 0.5);
  EXPECT_NEAR(c.unexplained_ms, 0, 0.5);
  ASSERT_EQ(c.appeared.size(), 1u);
  EXPECT_EQ(c.appeared.front().id, "cpu.noisy_neighbour");
  EXPECT_EQ(find(c, "run.begin_unix_ns"), nullptr);
}

TEST(Compare, FactsThatDifferAreToldWithoutAShare) {
  model::Run now = trained(0, 0);
  now.info["kernel.release"] = "6.5";
  now.info["torch.version"] = "2.13";
  const Comparison c = compare(trained(0, 0), now);
  ASSERT_NE(find(c, "kernel.release"), nullptr);
  EXPECT_EQ(find(c, "kernel.release")->before, "6.1");
  EXPECT_EQ(find(c, "kernel.release")->after, "6.5");
  EXPECT_FALSE(find(c, "kernel.release")->share_ms);
  EXPECT_EQ(find(c, "torch.version")->before, "");
}

TEST(Compare, TooFewStepsAreNotCompared) {
  EXPECT_EQ(compare(model::Run{}, trained(0, 0)).verdict, "unknown");
}

}  // namespace
}  // namespace flatout::diagnose
