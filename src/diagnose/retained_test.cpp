#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

/// Steps of a forward pass of 5 ms and as many backward passes, each so long.
RunBuilder passes(const std::vector<double>& lengths, const std::string& retains) {
  RunBuilder b;
  b.run().info["torch.retain_graph"] = retains;
  b.run().info["torch.retain_graph.set_at"] = "/home/u/train.py:31 in fit";
  for (int i = 0; i < 60; ++i) {
    std::vector<RunBuilder::PartTime> step = {{Part::kForward, 5, kCompute}};
    for (const double length : lengths) step.push_back({Part::kBackward, length, kCompute});
    b.step(step, i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  return b;
}

TEST(Retained, PassesThatGrowWithTheGraphTakeAsLongAsTheFirstOnceItIsLetGo) {
  RunBuilder b = passes({4, 8, 12, 16, 20}, "True");
  const Diagnosis d = diagnose(b.build());
  const Finding* f = find(d, "cpu.retained_graph");
  ASSERT_NE(f, nullptr) << d.headline;
  EXPECT_EQ(d.findings.front().id, f->id);
  EXPECT_NEAR(*f->cost_ms_per_step, 40, 0.5);
  EXPECT_NEAR(*f->gain, 65.0 / 25, 0.1);
  EXPECT_EQ(f->where->line, 31);
}

TEST(Retained, PassesThatDoNotGrowFewOnesAndGraphsThatAreLetGoAreNotToBlame) {
  const std::vector<double> growing = {4, 8, 12, 16, 20};
  for (const auto& [lengths, retains] :
       std::vector<std::pair<std::vector<double>, std::string>>{{growing, "False"},
                                                                {growing, ""},
                                                                {{12, 12, 12, 12, 12}, "True"},
                                                                {{20, 16, 12, 8, 4}, "True"},
                                                                {{4, 20}, "True"}}) {
    RunBuilder b = passes(lengths, retains);
    EXPECT_EQ(find(diagnose(b.build()), "cpu.retained_graph"), nullptr);
  }
}

}  // namespace
}  // namespace flatout::diagnose
