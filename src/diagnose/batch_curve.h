// How a step's time grows with its batch: a fixed part (launches, the interpreter, the optimizer,
// collectives) and one for each sample. Beyond some batch the fixed part no longer counts and
// throughput stops growing.
#pragma once

#include <cstdint>
#include <vector>

#include "base/stats.h"
#include "model/run.h"

namespace flatout::diagnose {

struct BatchPoint {
  uint64_t batch = 0;
  double step_s = 0;   // mean of the steps that say how fast the job is
  double error_s = 0;  // of that mean: one standard error
  int64_t steps = 0;
};

struct BatchCurve {
  std::vector<BatchPoint> points;  // measured, by batch
  double fixed_s = 0, per_sample_s = 0;
  Interval fixed_interval;  // 95 %, seconds; as far as the points' own errors go

  double step_s(double batch) const { return fixed_s + per_sample_s * batch; }
  double samples_per_s(double batch) const { return batch / step_s(batch); }
  /// From which batch on the fixed part is at most `share` of a step; 0 where no sample costs time.
  double batch_at(double share) const;
};

/// From a run with steps. A batch of 0 steps: there were too few to judge.
BatchPoint batch_point(const model::Run& run, uint64_t batch);
/// Weighted least squares with both parts at least 0, through two or more different batch sizes.
BatchCurve fit_batch_curve(std::vector<BatchPoint> points);

}  // namespace flatout::diagnose
