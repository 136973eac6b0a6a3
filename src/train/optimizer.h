// The updates of torch.optim.SGD and torch.optim.Adam, over all parameters as one array.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/device.h"
#include "train/memory_plan.h"

namespace flatout::train {

struct OptimizerOptions {
  std::string name = "sgd";  // or "adam"
  double rate = 0.05;
  double momentum = 0.9;  // of sgd
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0;  // added to the gradient, times the weight
  /// Errors: kBadInput, naming the option.
  Status check() const;
};

/// An array that an optimizer keeps for each parameter: "momentum", "exp_avg", "exp_avg_sq".
struct OptimizerState {
  std::string name;
  std::span<float> values;
};

class Optimizer {
 public:
  /// Errors: kFull.
  static Result<std::unique_ptr<Optimizer>> make(const OptimizerOptions& options, size_t count,
                                                 Device& device);
  /// values and gradients: as many as `count`. `step` counts from 0.
  void update(std::span<float> values, std::span<const float> gradients, int64_t step, Pool& pool);
  const std::vector<OptimizerState>& state() const { return state_; }

 private:
  explicit Optimizer(const OptimizerOptions& options) : options_(options) {}

  OptimizerOptions options_;
  std::vector<OptimizerState> state_;
};

}  // namespace flatout::train
