// The layers beside convolution: ReLU, pooling, dense, batch norm, and the residual block of
// ResNet for CIFAR.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/batch_norm.h"
#include "train/convolution.h"
#include "train/layer.h"

namespace flatout::train {

template <class T>
class Relu : public Layer<T> {
 public:
  explicit Relu(Dims in) : Layer<T>(in, in) {}
  Status forward(const Pass<T>& pass, const T* x, T* y) override;
  Status backward(const Pass<T>& pass, const T* x, const T* y, T* dy, T* dx) override;
};

/// The largest of each 2 x 2 values, the first of equal ones, NaN where there is one; an odd last
/// row or column is left out.
template <class T>
class MaxPool : public Layer<T> {
 public:
  MaxPool(MemoryPlan<T>& plan, Dims in);
  Status forward(const Pass<T>& pass, const T* x, T* y) override;
  Status backward(const Pass<T>& pass, const T* x, const T* y, T* dy, T* dx) override;

 private:
  uint8_t* which_ = nullptr;  // of the four, [n][out]
};

/// The mean of each channel.
template <class T>
class GlobalAveragePool : public Layer<T> {
 public:
  explicit GlobalAveragePool(Dims in) : Layer<T>(in, {in.channels, 1, 1}) {}
  Status forward(const Pass<T>& pass, const T* x, T* y) override;
  Status backward(const Pass<T>& pass, const T* x, const T* y, T* dy, T* dx) override;
};

/// y[o] = bias[o] + sum over i of weight[o][i] * x[i], x all values of a sample.
template <class T>
class Dense : public Layer<T> {
 public:
  Dense(MemoryPlan<T>& plan, const std::string& name, Dims in, int outputs);
  Status forward(const Pass<T>& pass, const T* x, T* y) override;
  Status backward(const Pass<T>& pass, const T* x, const T* y, T* dy, T* dx) override;

 private:
  int inputs_;
  T *weight_ = nullptr, *d_weight_ = nullptr, *bias_ = nullptr, *d_bias_ = nullptr;
  T* packed_ = nullptr;
};

/// Batch norm with the ReLU and, where `residual` is given, the addition before it; room nn does
/// the work. Over the parts of an exchange, if the pass has one: then their values are one batch.
/// PyTorch's defaults: epsilon 1e-5, momentum 0.1.
template <class T>
class BatchNorm {
 public:
  BatchNorm(MemoryPlan<T>& plan, const std::string& name, Dims dims, bool relu);
  /// residual may be null; y may be x.
  Status forward(const Pass<T>& pass, const T* x, const T* residual, T* y);
  /// dx may be dy; d_residual, null where there was none, may not.
  Status backward(const Pass<T>& pass, const T* x, const T* dy, T* dx, T* d_residual);

 private:
  nn::Shape shape(const Pass<T>& pass) const;
  nn::Running running() const;
  Status gather_moments(const Pass<T>& pass, const nn::Shape& shape, const T* x);

  Dims dims_;
  bool relu_;
  double count_ = 0;  // values of a channel that the statistics were taken of
  T *gamma_ = nullptr, *d_gamma_ = nullptr, *beta_ = nullptr, *d_beta_ = nullptr;
  T *running_mean_ = nullptr, *running_variance_ = nullptr;
  double *mean_ = nullptr, *inverse_std_ = nullptr;  // [C]
  uint8_t* mask_ = nullptr;
};

/// Batch norm and ReLU as a layer.
template <class T>
class BatchNormRelu : public Layer<T> {
 public:
  BatchNormRelu(MemoryPlan<T>& plan, const std::string& name, Dims in)
      : Layer<T>(in, in), norm_(plan, name, in, true) {}
  Status forward(const Pass<T>& pass, const T* x, T* y) override {
    return norm_.forward(pass, x, nullptr, y);
  }
  Status backward(const Pass<T>& pass, const T* x, const T*, T* dy, T* dx) override {
    return norm_.backward(pass, x, dy, dx, nullptr);
  }

 private:
  BatchNorm<T> norm_;
};

/// relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x)); arXiv 1512.03385, section 4.2. Where the
/// block shrinks the picture and has more channels, the shortcut takes every second pixel and adds
/// channels of zeros on both sides (the paper's option A).
template <class T>
class ResidualBlock : public Layer<T> {
 public:
  ResidualBlock(MemoryPlan<T>& plan, const std::string& name, Dims in, int channels, int stride);
  Status forward(const Pass<T>& pass, const T* x, T* y) override;
  Status backward(const Pass<T>& pass, const T* x, const T* y, T* dy, T* dx) override;

 private:
  void take_shortcut(const Pass<T>& pass, const T* x, T* to) const;
  void add_shortcut_gradient(const Pass<T>& pass, const T* from, T* dx) const;

  int stride_;
  Convolution<T> first_;
  BatchNorm<T> first_norm_;
  Convolution<T> second_;
  BatchNorm<T> second_norm_;
  T *sum1_ = nullptr, *middle_ = nullptr, *sum2_ = nullptr;  // what the parts leave, [n][out]
  T *d_middle_ = nullptr, *d_shortcut_ = nullptr;            // shared with other blocks
};

/// Mean loss of the batch and how many are right; d_logits: [n][classes], of the mean.
template <class T>
Score softmax_cross_entropy(const T* logits, const int* labels, int n, int classes, T* d_logits);

}  // namespace flatout::train
