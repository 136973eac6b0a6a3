// The structs of flatout/nn.h as C++ has them.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#define FLATOUT_NN_API __attribute__((visibility("default")))
#include "flatout/nn.h"
#include "nn/batch_norm.h"

namespace flatout::nn {

/// That no argument is null. Errors: kBadInput, naming it.
inline Status check_given(std::initializer_list<std::pair<const char*, const void*>> arguments) {
  for (const auto& [name, value] : arguments) {
    if (value == nullptr) return Error{Code::kBadInput, std::string(name) + " is null", ""};
  }
  return {};
}

/// Once its numbers are known to mean something. Errors: kBadInput.
inline Result<Shape> read(const flatout_nn_shape& shape) {
  const auto bad = [](const char* name, int32_t value, const char* known) -> Error {
    return {Code::kBadInput,
            std::string(name) + " is " + std::to_string(value) + "; it must be " + known, ""};
  };
  if (shape.layout < 0 || shape.layout > 1)
    return bad("layout", shape.layout, "0 (NCHW) or 1 (NHWC)");
  if (shape.type < 0 || shape.type > 3) return bad("type", shape.type, "0 to 3");
  if (shape.parameters < 0 || shape.parameters > 3)
    return bad("parameters", shape.parameters, "0 to 3");
  return Shape{shape.n,
               shape.c,
               shape.h,
               shape.w,
               static_cast<Layout>(shape.layout),
               static_cast<Type>(shape.type),
               static_cast<Type>(shape.parameters)};
}

inline Forward read(const flatout_nn_forward& f) {
  return {f.x, f.residual, f.gamma, f.beta, f.epsilon, f.relu != 0, f.y, f.mask};
}

inline Statistics statistics_of(const flatout_nn_forward& f) { return {f.mean, f.inverse_std}; }

inline Running running_of(const flatout_nn_forward& f) {
  return {f.running_mean, f.running_variance, f.momentum, f.unbiased != 0};
}

inline Backward read(const flatout_nn_backward& b) {
  return {b.x,  b.dy,         b.gamma,   b.mask,  b.mean, b.inverse_std, b.batch_statistics != 0,
          b.dx, b.d_residual, b.d_gamma, b.d_beta};
}

}  // namespace flatout::nn
