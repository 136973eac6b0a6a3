#include "diagnose/batch_curve.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"

namespace flatout::diagnose {
namespace {

// Steps that no noise was seen in are still not known better than this part of their length.
constexpr double kLeastError = 1e-3;

}  // namespace

double BatchCurve::batch_at(double share) const {
  return per_sample_s > 0 ? fixed_s * (1 - share) / (share * per_sample_s) : 0;
}

BatchPoint batch_point(const model::Run& run, uint64_t batch) {
  BatchPoint out{.batch = batch};
  std::vector<double> lengths;
  for (const model::Step& step : run.steps.steps) {
    if (step.judged()) lengths.push_back(to_s(step.length()));
  }
  if (lengths.size() < 5) return out;
  out.steps = static_cast<int64_t>(lengths.size());
  out.step_s = mean(lengths);
  double squares = 0;
  for (const double length : lengths) squares += (length - out.step_s) * (length - out.step_s);
  const auto n = static_cast<double>(lengths.size());
  out.error_s = std::sqrt(squares / (n - 1) / n);
  return out;
}

BatchCurve fit_batch_curve(std::vector<BatchPoint> points) {
  BatchCurve out;
  std::sort(points.begin(), points.end(),
            [](const BatchPoint& a, const BatchPoint& b) { return a.batch < b.batch; });
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (const BatchPoint& p : points) {
    const double error = std::max(p.error_s, kLeastError * p.step_s);
    const double weight = 1 / (error * error), x = static_cast<double>(p.batch);
    w += weight;
    wx += weight * x;
    wy += weight * p.step_s;
    wxx += weight * x * x;
    wxy += weight * x * p.step_s;
  }
  const double determinant = w * wxx - wx * wx;
  out.per_sample_s = (w * wxy - wx * wy) / determinant;
  out.fixed_s = (wy - out.per_sample_s * wx) / w;
  if (out.per_sample_s < 0) {
    out.per_sample_s = 0;
    out.fixed_s = wy / w;
  } else if (out.fixed_s < 0) {
    out.fixed_s = 0;
    out.per_sample_s = wxy / wxx;
  }
  const double spread = 1.96 * std::sqrt(wxx / determinant);
  out.fixed_interval = {std::max(0.0, out.fixed_s - spread), out.fixed_s + spread};
  out.points = std::move(points);
  return out;
}

}  // namespace flatout::diagnose
