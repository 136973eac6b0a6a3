#include "diagnose/batch_curve.h"

#include <gtest/gtest.h>

#include "diagnose/testing/run_builder.h"

namespace flatout::diagnose {
namespace {

const Doing kCompute{ThreadState::kOnCpuNative, {kMain}};

model::Run run_of(double step_ms, double wobble_ms = 0) {
  RunBuilder b;
  for (int i = 0; i < 60; ++i)
    b.step({{Part::kForward, step_ms + (i % 2 == 0 ? wobble_ms : -wobble_ms), kCompute}}, i < 3);
  return b.build();
}

TEST(BatchCurve, TellsTheFixedPartFromWhatEachSampleTakes) {
  std::vector<BatchPoint> points;
  for (const uint64_t batch : {64, 8, 16})
    points.push_back(batch_point(run_of(10 + 0.5 * static_cast<double>(batch), 0.2), batch));
  EXPECT_EQ(points[0].steps, 57);
  const BatchCurve curve = fit_batch_curve(points);
  EXPECT_EQ(curve.points.front().batch, 8u);
  EXPECT_NEAR(curve.fixed_s, 10e-3, 0.1e-3);
  EXPECT_NEAR(curve.per_sample_s, 0.5e-3, 0.01e-3);
  EXPECT_GT(curve.fixed_interval.high, 10e-3);
  EXPECT_LT(curve.fixed_interval.low, 10e-3);
  // A tenth of the step: 10 of 100 ms, which is 180 samples.
  EXPECT_NEAR(curve.batch_at(0.1), 180, 4);
  EXPECT_NEAR(curve.samples_per_s(180), 1800, 20);
}

TEST(BatchCurve, NoPartIsLessThanNothing) {
  const BatchCurve flat =
      fit_batch_curve({batch_point(run_of(20), 8), batch_point(run_of(19), 32)});
  EXPECT_EQ(flat.per_sample_s, 0);
  EXPECT_NEAR(flat.fixed_s, 19.5e-3, 0.1e-3);
  EXPECT_EQ(flat.batch_at(0.1), 0);
  const BatchCurve steep =
      fit_batch_curve({batch_point(run_of(8), 8), batch_point(run_of(40), 32)});
  EXPECT_EQ(steep.fixed_s, 0);
  EXPECT_GT(steep.per_sample_s, 1.0e-3);
  EXPECT_LT(steep.per_sample_s, 1.25e-3);
}

TEST(BatchCurve, AFewStepsAreNotJudged) {
  RunBuilder b;
  for (int i = 0; i < 6; ++i) b.step({{Part::kForward, 10, kCompute}}, i < 3);
  EXPECT_EQ(batch_point(b.build(), 8).steps, 0);
}

}  // namespace
}  // namespace flatout::diagnose
