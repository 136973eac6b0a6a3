#include <gtest/gtest.h>

#include <string>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;

constexpr const char* kSetAt = "/home/u/train.py:7 in <module>";

struct Machine {
  double cores = 2, idle = 1;
};

/// Steps of 40 ms in the kernels of 50 operations and 5 ms in the interpreter.
RunBuilder computing(const std::string& threads, const std::string& set_at = kSetAt,
                     Machine machine = {}) {
  RunBuilder b;
  b.run().info["torch.num_threads"] = threads;
  if (!set_at.empty()) b.run().info["torch.num_threads.set_at"] = set_at;
  b.run().info["torch.graph_nodes"] = "50";
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kForward, 15, kCompute},
            {Part::kBackward, 25, kCompute},
            {Part::kForward, 5, {ThreadState::kOnCpuPython, {kMain}}}},
           i < 3);
  }
  b.machine(machine.cores, machine.idle).process_cpu(100, 1);
  return b;
}

/// What it says of a job that is healthy.
std::string said(RunBuilder b) {
  const Diagnosis d = diagnose(b.build());
  EXPECT_EQ(d.verdict, "healthy") << d.headline;
  return d.headline.substr(d.headline.find('.') + 1);
}

TEST(FewThreads, CoresThatIdleBesideLongKernelsAreWorthAWord) {
  EXPECT_EQ(
      said(computing("1")),
      " It was told to compute with 1 thread (train.py:7) beside 1 idle core: with 2 it may be 1.5 "
      "times as fast.");
}

TEST(FewThreads, AVariableThatAsksForThemHasNoLine) {
  RunBuilder b = computing("1", "");
  b.run().info["env.OMP_NUM_THREADS"] = "1";
  EXPECT_NE(said(b).find("thread beside"), std::string::npos);
}

TEST(FewThreads, WhatPyTorchTakesByItselfIsNobodysMistake) {
  EXPECT_EQ(said(computing("4", "", {8, 4})), "");
}

TEST(FewThreads, CoresThatOthersUseAreNotFree) {
  EXPECT_EQ(said(computing("1", kSetAt, {2, 0.5})), "");
}

TEST(FewThreads, RanksOfOneHostShareItsIdleCores) {
  RunBuilder b = computing("1", "", {4, 2});
  b.run().info["env.OMP_NUM_THREADS"] = "1";
  b.run().info["env.LOCAL_WORLD_SIZE"] = "8";
  EXPECT_EQ(said(b), "");
}

TEST(FewThreads, TinyOperationsAreNotShared) {
  RunBuilder b = computing("1");
  b.run().info["torch.graph_nodes"] = "600";
  EXPECT_EQ(said(b), "");
}

}  // namespace
}  // namespace flatout::diagnose
