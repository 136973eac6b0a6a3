// A layer of a model: plain functions of a batch, [n][channels][height][width] dense, f32 or f64
// (for checks against finite differences). Results do not depend on the number of threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/memory_plan.h"

namespace flatout::train {

/// Hands values of all parts of a joint batch to each of them: synchronised batch norm needs it.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int parts() const = 0;
  /// all: [parts][count], in the order of the parts, the same for each. Every part calls it equally
  /// often. Errors: a part is lost.
  virtual Status gather(int part, const double* mine, size_t count, double* all) = 0;
};

/// One pass over a batch.
template <class T>
struct Pass {
  int n = 0;  // samples
  bool training = true;
  Device* device = nullptr;
  const MemoryPlan<T>* plan = nullptr;
  Exchange* exchange = nullptr;  // null: statistics are of this batch alone
  int part = 0;                  // of the exchange

  /// work(part, first, last): samples [first, last) of a part; parts at once by the device's pool.
  template <class Work>
  void over_samples(const Work& work) const {
    const int parts = n < kParts ? n : kParts;
    device->pool().run(parts, [&](int i) { work(i, n * i / parts, n * (i + 1) / parts); });
  }
};

template <class T>
class Layer {
 public:
  Layer(Dims in, Dims out) : in_(in), out_(out) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const Dims& in() const { return in_; }
  const Dims& out() const { return out_; }

  /// x: [n][in], y: [n][out].
  virtual Status forward(const Pass<T>& pass, const T* x, T* y) = 0;
  /// x and y as forward() saw and left them; dy: [n][out], may be overwritten; dx: [n][in], null
  /// where it is not wanted. Sets the gradients of the layer's parameters.
  virtual Status backward(const Pass<T>& pass, const T* x, const T* y, T* dy, T* dx) = 0;

 private:
  Dims in_, out_;
};

template <class T>
using Layers = std::vector<std::unique_ptr<Layer<T>>>;

}  // namespace flatout::train
