#include <gtest/gtest.h>

#include <string>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;

const Doing kMakes{ThreadState::kOnCpuNative, {kMain, {"forward", "/home/u/model.py", 21}}};
const Doing kLayers{ThreadState::kOnCpuNative, {kMain, {"forward", "/home/u/model.py", 24}}};

/// What is said of steps with so many ms at one line of the forward pass, 4 at another, and so many
/// in the backward pass.
std::string said(double makes, double backward, const char* nodes = "40") {
  RunBuilder b;
  b.run().info["torch.graph_nodes"] = nodes;
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kForward, makes, kMakes},
            {Part::kForward, 4, kLayers},
            {Part::kBackward, backward, kCompute}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  EXPECT_EQ(d.verdict, "healthy") << d.headline;
  return d.remark;
}

TEST(NoGradient, ALineThatTheBackwardPassHardlyGoesThroughIsNamed) {
  EXPECT_EQ(said(28, 8),
            "One line (model.py:21) takes 70 % of each step and the whole backward pass 20 %: no "
            "gradient goes through most of that. What is the same in each step can be made once, "
            "before the loop.");
}

TEST(NoGradient, ABackwardPassThatTakesItsTimeGoesThroughAllOfIt) {
  EXPECT_EQ(said(28, 30), "");
  EXPECT_EQ(said(28, 11), "");
}

TEST(NoGradient, GradientsThatAreAskedForInTheMiddleAreGradients) {
  RunBuilder b;
  b.run().info["torch.graph_nodes"] = "40";
  const Doing asks{
      ThreadState::kOnCpuNative,
      {kMain,
       {"hvp", "/home/u/train.py", 62},
       {"grad", "/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", 503}}};
  for (int i = 0; i < 60; ++i) {
    b.step(
        {{Part::kForward, 28, asks}, {Part::kForward, 4, kLayers}, {Part::kBackward, 1, kCompute}},
        i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  EXPECT_EQ(diagnose(b.build()).remark, "");
}

// A model that generates what it then learns from.
TEST(NoGradient, PassesThatAreMeantToHaveNoGradientAreNotNamed) {
  RunBuilder b;
  b.run().info["torch.graph_nodes"] = "40";
  for (int i = 0; i < 60; ++i) {
    const TimePoint begin = b.now();
    b.step({{Part::kForward, 28, kMakes},
            {Part::kForward, 4, kLayers},
            {Part::kBackward, 8, kCompute}},
           i < 3);
    b.slice(b.trainer(), model::SliceKind::kValidation, begin, begin + nanos(27e6));
  }
  b.machine(2, 1).process_cpu(100, 1);
  EXPECT_EQ(diagnose(b.build()).remark, "");
}

// A teacher's pass, and a matrix that is made anew.
TEST(NoGradient, BesideAPassThatIsMeantToHaveNoneAnotherLineIsNamed) {
  const Doing teaches{ThreadState::kOnCpuNative, {kMain, {"forward", "/home/u/teacher.py", 11}}};
  RunBuilder b;
  b.run().info["torch.graph_nodes"] = "40";
  for (int i = 0; i < 60; ++i) {
    const TimePoint begin = b.now();
    b.step({{Part::kForward, 15, teaches},
            {Part::kForward, 25, kMakes},
            {Part::kForward, 4, kLayers},
            {Part::kBackward, 6, kCompute}},
           i < 3);
    b.slice(b.trainer(), model::SliceKind::kValidation, begin, begin + nanos(15e6));
  }
  b.machine(2, 1).process_cpu(100, 1);
  const std::string remark = diagnose(b.build()).remark;
  EXPECT_NE(remark.find("model.py:21"), std::string::npos) << remark;
}

TEST(NoGradient, WithoutABackwardPassOrAGraphNothingIsKnown) {
  EXPECT_EQ(said(28, 0), "");
  EXPECT_EQ(said(28, 8, "0"), "");
}

}  // namespace
}  // namespace flatout::diagnose
