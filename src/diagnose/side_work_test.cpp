#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

const Line kBefore{"main", "/home/u/train.py", 8}, kAfter{"main", "/home/u/train.py", 14};
const Line kAuroc{"auroc", "/home/u/metrics.py", 21};
const Doing kMetric{ThreadState::kOnCpuNative, {kAfter, kAuroc}};

/// Steps of 10 ms of training, and so many of `what` in `part`. `computes`: a device's share of the
/// time.
Diagnosis with(double ms, const Doing& what, Part part = Part::kOther, double sync = 0,
               double computes = 0, double faults_a_step = 0) {
  RunBuilder b;
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kForward, 4, kCompute},
            {Part::kBackward, 4, kCompute},
            {Part::kOptimizer, 2, kCompute},
            {part, ms, what},
            {Part::kSync, sync, kCompute}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  b.counter(SignalId::kProcMinorFaults, b.process_entity(100), 60 * faults_a_step);
  model::Run run = b.build();
  if (computes > 0) {
    run.devices.resize(1);
    run.devices[0].recorded = nanos(1e9);
    run.devices[0].sum.compute = nanos(computes * 1e9);
  }
  return diagnose(run);
}

TEST(SideWork, IsToldWithItsLineWhereItTakesMuchOfEachStep) {
  const Diagnosis d = with(10, kMetric);
  const Finding* f = find(d, "stall.logging");
  ASSERT_NE(f, nullptr) << d.headline;
  EXPECT_EQ(d.findings.front().id, f->id);
  EXPECT_NEAR(*f->cost_ms_per_step, 10, 0.3);
  EXPECT_NEAR(*f->gain, 2, 0.05);
  EXPECT_EQ(f->where->line, 21);
}

TEST(SideWork, ALittleOfItIsNoFinding) {
  EXPECT_EQ(find(with(2, kMetric), "stall.logging"), nullptr);
}

// Where no slice tells, what a loss takes may seem to lie outside of training.
TEST(SideWork, WhatTheLoopComesToBeforeItsBackwardPassIsNot) {
  const Diagnosis d = with(10, {ThreadState::kOnCpuNative, {kBefore, kAuroc}});
  EXPECT_EQ(find(d, "stall.logging"), nullptr) << d.headline;
}

TEST(SideWork, InPythonIsNotToldAsTinyOperationsToo) {
  Doing python = kMetric;
  python.state = ThreadState::kOnCpuPython;
  const Diagnosis d = with(10, python);
  EXPECT_NE(find(d, "stall.logging"), nullptr) << d.headline;
  EXPECT_EQ(find(d, "cpu.python_bound"), nullptr);
}

TEST(SideWork, ClippingGradientsIsTraining) {
  const Doing clips{
      ThreadState::kOnCpuNative,
      {kAfter, {"clip_grad_norm_", "/x/site-packages/torch/nn/utils/clip_grad.py", 90}}};
  EXPECT_EQ(find(with(10, clips), "stall.logging"), nullptr);
}

TEST(SideWork, ATrainersCallbacksAreItWhereverTheyAreCalled) {
  const std::string lightning = "/x/site-packages/lightning/pytorch/";
  const Line step{"optimizer_step", lightning + "core/module.py", 1300};
  const Line hooks{"_call_callback_hooks", lightning + "trainer/call.py", 228};
  const Doing norms{ThreadState::kOnCpuNative,
                    {kMain, step, hooks, {"on_before_optimizer_step", "/home/u/norms.py", 9}}};
  const Diagnosis d = with(10, norms, Part::kOptimizer);
  const Finding* f = find(d, "stall.logging");
  ASSERT_NE(f, nullptr) << d.headline;
  EXPECT_EQ(f->where->line, 9);
  // An optimizer of the user's own is not.
  const Doing own{ThreadState::kOnCpuNative, {kMain, step, {"step", "/home/u/lion.py", 9}}};
  EXPECT_EQ(find(with(10, own, Part::kOptimizer), "stall.logging"), nullptr);
}

TEST(SideWork, WhatADeviceWorksMeanwhileIsNotSaved) {
  const Diagnosis d = with(10, kMetric, Part::kOther, 12);
  EXPECT_EQ(find(d, "stall.logging"), nullptr) << d.headline;
}

// A copy from the device, a search for what is not zero there.
TEST(SideWork, NoMoreIsSavedThanADeviceIdles) {
  EXPECT_EQ(find(with(40, kMetric, Part::kOther, 0, 0.9), "stall.logging"), nullptr);
  const Diagnosis d = with(40, kMetric, Part::kOther, 0, 0.5);
  const Finding* f = find(d, "stall.logging");
  ASSERT_NE(f, nullptr) << d.headline;
  EXPECT_NEAR(*f->gain, 2, 0.05);
}

TEST(SideWork, WhatItFaultsIsNotToldAgain) {
  Doing faults = kMetric;
  faults.state = ThreadState::kKernel;
  const Diagnosis d = with(10, faults, Part::kOther, 0, 0, 4000);
  EXPECT_NE(find(d, "stall.logging"), nullptr) << d.headline;
  EXPECT_EQ(find(d, "mem.page_faults"), nullptr);
  EXPECT_NE(find(with(10, faults, Part::kForward, 0, 0, 4000), "mem.page_faults"), nullptr);
}

}  // namespace
}  // namespace flatout::diagnose
