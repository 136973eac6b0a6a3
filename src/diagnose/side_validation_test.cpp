#include <gtest/gtest.h>

#include <algorithm>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

const Line kBefore{"main", "/home/u/train.py", 8}, kAfter{"main", "/home/u/train.py", 14};
const Line kModel{"forward", "/home/u/model.py", 21};
const Doing kTrains{ThreadState::kOnCpuNative, {kMain, kModel}};

/// Steps of 10 ms of training, and so many of a pass that `calls` it, in evaluation mode or just
/// without gradients, in one of `every` steps. What the step before ends with is this one's forward
/// part.
Diagnosis with(double ms, const Line& calls, int every = 1, bool evaluates = true) {
  RunBuilder b;
  const Doing validates{ThreadState::kOnCpuNative, {calls, kModel}};
  for (int i = 0; i < 60; ++i) {
    const double validation = i % every == 0 ? ms : 0;
    b.slice(b.trainer(), SliceKind::kValidation, b.now(), b.now() + nanos(validation * 1e6),
            evaluates ? 1 : 0);
    b.step({{Part::kForward, validation, validates},
            {Part::kForward, 4, kTrains},
            {Part::kBackward, 4, kCompute},
            {Part::kOptimizer, 2, kCompute}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  return diagnose(b.build());
}

TEST(SideValidation, InEachStepIsToldAtTheLoopsLine) {
  const Diagnosis d = with(10, kAfter);
  ASSERT_EQ(d.verdict, "stall.logging") << d.headline;
  const Finding& f = d.findings.front();
  EXPECT_NEAR(*f.cost_ms_per_step, 10, 0.3);
  EXPECT_NEAR(*f.gain, 2, 0.05);
  EXPECT_EQ(f.where->file, "/home/u/train.py");
  EXPECT_EQ(f.where->line, 14);
}

TEST(SideValidation, ATeachersPassBeforeTheBackwardPassIsTraining) {
  EXPECT_EQ(with(10, kBefore).verdict, "healthy");
}

TEST(SideValidation, ItsMetricsAreToldWithIt) {
  const Line metric{"accuracy", "/home/u/metrics.py", 5};
  const Doing validates{ThreadState::kOnCpuNative, {kAfter, kModel}};
  const Doing scores{ThreadState::kOnCpuNative, {kAfter, metric}};
  RunBuilder b;
  for (int i = 0; i < 60; ++i) {
    b.slice(b.trainer(), SliceKind::kValidation, b.now(), b.now() + nanos(8e6), 1);
    b.step({{Part::kForward, 8, validates},
            {Part::kOther, 4, scores},
            {Part::kForward, 4, kTrains},
            {Part::kBackward, 4, kCompute},
            {Part::kOptimizer, 2, kCompute}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(std::ranges::count(d.findings, "stall.logging", &Finding::id), 1) << d.headline;
  EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 12, 0.5);
}

TEST(SideValidation, APassAfterTheBackwardPassInTrainingModeIsWhatTrainingNeeds) {
  EXPECT_EQ(with(10, kAfter, 1, false).verdict, "healthy");
}

TEST(SideValidation, ALittleOfItOrNowAndThenIsNone) {
  EXPECT_EQ(with(2, kAfter).verdict, "healthy");
  EXPECT_EQ(find(with(10, kAfter, 4), "stall.logging"), nullptr);
}

}  // namespace
}  // namespace flatout::diagnose
