#include "nn/cuda_plan.h"

#include <algorithm>

#include "nn/kernels.h"

namespace flatout::nn::cuda {
namespace {

constexpr int64_t kBlocksPerMultiprocessor = 8;
constexpr int64_t kSplits = 1024;  // at most

int64_t over(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Result<Plan> make_plan(const Shape& shape, int multiprocessors) {
  if (shape.type == Type::kF64 || shape.parameters == Type::kF64) {
    return Error{Code::kUnsupported, "batch norm of x " + shape.text() + ": no f64 on CUDA", ""};
  }
  const int64_t plane = shape.h * shape.w;
  Plan plan;
  // As on the CPU (nn/geometry.cpp), so that masks are the same.
  plan.rows = shape.c > 1 && (shape.layout == Layout::kNhwc || plane == 1);
  plan.channels = shape.c;
  plan.outer = plan.rows ? shape.n * plane : plane == 1 ? 1 : shape.n;
  plan.length = plan.rows ? 1 : plane == 1 ? shape.n : plane;
  plan.stride = plan.channels * plan.length;
  plan.groups = over(plan.rows ? shape.c : plan.length, kWide);
  plan.mask_stride = plan.rows ? plan.groups : shape.c * plan.groups;
  plan.aligned = (plan.rows ? shape.c : plan.length) % kWide == 0;
  plan.units = plan.rows ? plan.outer : plan.outer * plan.groups;
  if (plan.units >= int64_t{1} << 31 || plan.channels >= int64_t{1} << 31) {
    return Error{Code::kUnsupported, "batch norm of x " + shape.text() + ": too large for CUDA", ""};
  }
  plan.columns = 1;
  while (plan.rows && plan.columns < std::min<int64_t>(plan.groups, 32)) plan.columns *= 2;
  plan.tile = plan.rows ? kWide * plan.columns : 1;
  plan.tiles = static_cast<int>(over(plan.channels, plan.tile));
  const int64_t at_once = plan.rows ? kThreads / plan.columns : kThreads;  // units
  const int64_t wanted = over(multiprocessors * kBlocksPerMultiprocessor, plan.tiles);
  const int64_t splits = std::clamp<int64_t>(wanted, 1, std::min(kSplits, over(plan.units, at_once)));
  plan.per_split = over(plan.units, splits);
  plan.splits = static_cast<int>(over(plan.units, plan.per_split));
  return plan;
}

size_t workspace_bytes(const Plan& plan) {
  const auto channels = static_cast<size_t>(plan.channels);
  // Two sums a split; shift, scale, slope, offset.
  return channels * (static_cast<size_t>(plan.splits) * 2 * sizeof(double) + 4 * sizeof(float));
}

}  // namespace flatout::nn::cuda
