// A small convolutional classifier: conv 3x3 - ReLU - max pool, twice, then a dense layer and
// softmax cross-entropy; SGD with momentum. f32, one sample after the other, layout [C][H][W].
#pragma once

#include <cstdint>
#include <vector>

#include "train/images.h"
#include "train/learner.h"
#include "train/pool.h"

namespace flatout::train {

class Network {
 public:
  /// Channels of the first convolution; the second has twice as many.
  Network(int channels, uint64_t seed);

  /// Results do not depend on the pool's size: gradients are summed in the samples' order.
  Score forward(const Batch& batch, Pool& pool);
  void backward(const Batch& batch, Pool& pool);
  void update(float rate, float momentum);

  std::vector<float>& weights() { return weights_; }
  std::vector<float>& velocity() { return velocity_; }

 private:
  struct Sample {  // what one sample leaves behind for the way back
    std::vector<float> conv1, pool1, conv2, pool2;
    std::vector<uint8_t> arg1, arg2;  // which of the four pixels was the largest
    std::vector<float> logits, probability;
    std::vector<float> gradient;  // of all weights
    std::vector<float> d_pool1, d_conv;
  };
  void forward_one(const float* x, Sample& s) const;
  void backward_one(const float* x, int label, int count, Sample& s) const;

  int c1_, c2_;
  size_t w1_, b1_, w2_, b2_, w3_, b3_;  // where each array begins in weights_
  std::vector<float> weights_, velocity_, gradient_;
  std::vector<Sample> samples_;
};

/// The demo's job: a step of a fixed, plain amount of work, one round of the threads for each way.
class PlainLearner : public Learner {
 public:
  PlainLearner(int channels, uint64_t seed, int threads, bool spin)
      : network_(channels, seed), pool_(threads, spin) {}

  Result<Score> forward(const Batch& batch) override { return network_.forward(batch, pool_); }
  Status backward(const Batch& batch) override {
    network_.backward(batch, pool_);
    return {};
  }
  void update(int64_t) override { network_.update(0.02f, 0.9f); }
  Result<Score> evaluate(const Batch& batch) override { return network_.forward(batch, pool_); }
  std::vector<Tensor> state() override;
  Pool& pool() override { return pool_; }

 private:
  Network network_;
  Pool pool_;
};

}  // namespace flatout::train
