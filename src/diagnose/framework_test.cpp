#include "diagnose/framework.h"

#include <gtest/gtest.h>

namespace flatout::diagnose {
namespace {

TEST(Framework, IsTheOneThatTookTheFirstStep) {
  model::Run run;
  for (const char* library : {"torch", "tensorflow", "jax"}) {
    run.info[std::string(library) + ".version"] = "1.0";
  }
  run.info["torch.graph_nodes"] = "12";
  run.info["steps.framework"] = "jax";
  EXPECT_EQ(framework(run), Framework::kJax);
  run.info["steps.framework"] = "tensorflow";
  EXPECT_EQ(framework(run), Framework::kTensorFlow);
  run.info["steps.framework"] = "torch";
  EXPECT_EQ(framework(run), Framework::kTorch);
}

TEST(Framework, IsToldByWhatIsImportedWhereNobodyTellsOfSteps) {
  model::Run run;
  EXPECT_EQ(framework(run), Framework::kNone);
  run.info["jax.version"] = "0.10.2";
  EXPECT_EQ(framework(run), Framework::kJax);
  run.info["torch.version"] = "2.13.0";
  EXPECT_EQ(framework(run), Framework::kTorch);
  run.info["tensorflow.version"] = "2.21.0";
  EXPECT_EQ(framework(run), Framework::kTensorFlow);  // PyTorch's DataLoader feeds it
  run.info["torch.graph_nodes"] = "12";
  EXPECT_EQ(framework(run), Framework::kTorch);  // TensorBoard brings TensorFlow along
}

}  // namespace
}  // namespace flatout::diagnose
