#include "nn/check.h"

#include <cmath>
#include <cstdio>

namespace flatout::nn {

std::string Shape::text() const {
  constexpr const char* kTypes[] = {"f32", "bf16", "f16", "f64"};
  const bool planes = layout == Layout::kNchw;
  std::string out = "[";
  for (const int64_t size : {n, planes ? c : h, planes ? h : w}) out += std::to_string(size) + ", ";
  out += std::to_string(planes ? w : c);
  out += planes ? "] NCHW " : "] NHWC ";
  return out + kTypes[static_cast<int>(type)];
}

Error bad_argument(const Shape& shape, const std::string& what) {
  return Error{Code::kBadInput, "batch norm of x " + shape.text() + ": " + what, ""};
}

Status check_shape(const Shape& shape) {
  for (const int64_t size : {shape.n, shape.c, shape.h, shape.w}) {
    if (size < 0) return bad_argument(shape, "a size is negative");
    if (size == 0) return bad_argument(shape, "it has no elements");
  }
  int64_t room = int64_t{1} << 48;  // elements that an address space has, and products below 2^63
  for (const int64_t size : {shape.n, shape.c, shape.h, shape.w}) {
    room /= size;
    if (room == 0) return bad_argument(shape, "it has more elements than memory can hold");
  }
  return {};
}

Status check_needed(const Shape& shape, const void* argument, const char* name) {
  if (argument == nullptr) return bad_argument(shape, std::string(name) + " is null");
  return {};
}

Status check_count(const Shape& shape, double count) {
  if (count > 1) return {};
  char there[32];  // it may be no whole number, and none at all
  std::snprintf(there, sizeof there, "%.9g", count);
  return bad_argument(
      shape, std::string("training needs more than one value per channel, there is ") + there);
}

Status check_running(const Shape& shape, const Running& running) {
  if ((running.mean == nullptr && running.variance == nullptr) || std::isfinite(running.momentum))
    return {};
  return bad_argument(
      shape, "momentum is " + std::to_string(running.momentum) + "; it must be a finite number");
}

Status check_epsilon(const Shape& shape, double epsilon) {
  if (epsilon >= 0) return {};
  return bad_argument(shape, "epsilon is " + std::to_string(epsilon) + "; it must not be negative");
}

Status check_forward(const Shape& shape, const Forward& forward) {
  FLATOUT_TRY_STATUS(check_shape(shape));
  FLATOUT_TRY_STATUS(check_needed(shape, forward.x, "x"));
  FLATOUT_TRY_STATUS(check_needed(shape, forward.y, "y"));
  FLATOUT_TRY_STATUS(check_epsilon(shape, forward.epsilon));
  if (forward.mask != nullptr && !forward.relu) return bad_argument(shape, "a mask without relu");
  return {};
}

Status check_statistics(const Shape& shape, const double* mean, const double* inverse_std) {
  FLATOUT_TRY_STATUS(check_needed(shape, mean, "mean"));
  return check_needed(shape, inverse_std, "inverse_std");
}

Status check_backward(const Shape& shape, const Backward& backward) {
  FLATOUT_TRY_STATUS(check_shape(shape));
  FLATOUT_TRY_STATUS(check_needed(shape, backward.x, "x"));
  FLATOUT_TRY_STATUS(check_needed(shape, backward.dy, "dy"));
  FLATOUT_TRY_STATUS(check_statistics(shape, backward.mean, backward.inverse_std));
  if (backward.dx != nullptr && backward.dx == backward.d_residual) {
    return bad_argument(shape, "dx and d_residual are the same buffer");
  }
  return {};
}

}  // namespace flatout::nn
