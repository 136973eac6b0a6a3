// What the training loop trains: a model on one device, on several, or the demo's plain network.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/pool.h"

namespace flatout::train {

/// Samples of a step: x is [n][channels][height][width].
struct Batch {
  int64_t index = 0;
  uint32_t epoch = 0;  // where the next one begins, for batches out of room feed
  uint64_t position = 0;
  std::vector<float> x;
  std::vector<int> labels;
  int count() const { return static_cast<int>(labels.size()); }
};

struct Score {
  double loss = 0;  // mean over the batch
  int right = 0;
};

/// An array of a learner's state, alive as long as the learner.
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  std::span<float> values;
};

class Learner {
 public:
  virtual ~Learner() = default;

  virtual Result<Score> forward(const Batch& batch) = 0;
  /// Of the batch that forward() saw last.
  virtual Status backward(const Batch& batch) = 0;
  /// Waits until gradients and score are the mean of all ranks' (right: the sum), and `signal` the
  /// largest number that any of them has: one that is told to stop does so with the others.
  virtual Status exchange(Score*, int* /*signal*/) { return {}; }
  /// `step` counts from 0.
  virtual void update(int64_t step) = 0;
  /// Changes nothing of what is trained.
  virtual Result<Score> evaluate(const Batch& batch) = 0;

  /// All that a step depends on, the parameters first; what is written here goes to every replica
  /// once synchronize() is called.
  virtual std::vector<Tensor> state() = 0;
  virtual void synchronize() {}
  virtual Pool& pool() = 0;
  virtual uint64_t device_bytes() const { return 0; }  // that its devices hold, all together
};

}  // namespace flatout::train
