// Batch norm as its definition says, in f64, one value after the other; and tensors to try it on.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "base/half.h"
#include "nn/batch_norm.h"

namespace flatout::nn::testing {

/// A dense buffer of one type, read and written as doubles.
class Tensor {
 public:
  Tensor(int64_t count, Type type)
      : type_(type), count_(count), bytes_(static_cast<size_t>(count) * size_of(type) + kAlign) {}
  Tensor(const Tensor&) = delete;  // a copy's bytes would be aligned otherwise
  Tensor& operator=(const Tensor&) = delete;
  Tensor(Tensor&&) = default;

  void* data() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (kAlign - at % kAlign) % kAlign;
  }
  const void* data() const { return const_cast<Tensor*>(this)->data(); }
  int64_t count() const { return count_; }

  double get(int64_t i) const {
    switch (type_) {
      case Type::kF32:
        return static_cast<const float*>(data())[i];
      case Type::kBf16:
        return from_bf16(static_cast<const uint16_t*>(data())[i]);
      case Type::kF16:
        return from_f16(static_cast<const uint16_t*>(data())[i]);
      case Type::kF64:
        break;
    }
    return static_cast<const double*>(data())[i];
  }
  void set(int64_t i, double value) {
    switch (type_) {
      case Type::kF32:
        static_cast<float*>(data())[i] = static_cast<float>(value);
        break;
      case Type::kBf16:
        static_cast<uint16_t*>(data())[i] = to_bf16(static_cast<float>(value));
        break;
      case Type::kF16:
        static_cast<uint16_t*>(data())[i] = to_f16(static_cast<float>(value));
        break;
      case Type::kF64:
        static_cast<double*>(data())[i] = value;
        break;
    }
  }
  void fill(std::mt19937_64& random, double mean, double deviation) {
    std::normal_distribution<double> normal(mean, deviation);
    for (int64_t i = 0; i < count_; ++i) set(i, normal(random));
  }

 private:
  static constexpr size_t kAlign = 64;
  Type type_;
  int64_t count_;
  std::vector<char> bytes_;
};

/// Calls f(c, i) for each element i and its channel c.
template <class Function>
void each(const Shape& s, const Function& f) {
  const int64_t plane = s.h * s.w;
  for (int64_t i = 0; i < s.elements(); ++i) {
    f(s.layout == Layout::kNchw ? i / plane % s.c : i % s.c, i);
  }
}

/// What the definition gives.
struct Expected {
  std::vector<double> mean, variance;  // [C], biased
  std::vector<double> z;               // before the ReLU
  std::vector<double> dz, dx;          // by element
  std::vector<double> dgamma, dbeta;   // [C]
};

struct Inputs {
  const Tensor* x;
  const Tensor* residual;  // may be null, as the others but dy
  const Tensor* gamma;
  const Tensor* beta;
  const Tensor* dy;
  bool relu;
  double epsilon;
};

inline Expected expected(const Shape& s, const Inputs& in) {
  const auto channels = static_cast<size_t>(s.c);
  const auto elements = static_cast<size_t>(s.elements());
  const double count = static_cast<double>(s.per_channel());
  Expected out;
  out.mean.resize(channels);
  out.variance.resize(channels);
  out.dgamma.resize(channels);
  out.dbeta.resize(channels);
  out.z.resize(elements);
  out.dz.resize(elements);
  out.dx.resize(elements);
  each(s, [&](int64_t c, int64_t i) { out.mean[size_t(c)] += in.x->get(i) / count; });
  each(s, [&](int64_t c, int64_t i) {
    const double beside = in.x->get(i) - out.mean[size_t(c)];
    out.variance[size_t(c)] += beside * beside / count;
  });
  const auto inverse_std = [&](int64_t c) {
    return 1 / std::sqrt(out.variance[size_t(c)] + in.epsilon);
  };
  const auto xhat = [&](int64_t c, int64_t i) {
    return (in.x->get(i) - out.mean[size_t(c)]) * inverse_std(c);
  };
  each(s, [&](int64_t c, int64_t i) {
    double z = xhat(c, i);
    if (in.gamma != nullptr) z *= in.gamma->get(c);
    if (in.beta != nullptr) z += in.beta->get(c);
    if (in.residual != nullptr) z += in.residual->get(i);
    out.z[size_t(i)] = z;
    if (in.dy == nullptr) return;
    const double dz = in.relu && z <= 0 ? 0 : in.dy->get(i);
    out.dz[size_t(i)] = dz;
    out.dbeta[size_t(c)] += dz;
    out.dgamma[size_t(c)] += dz * xhat(c, i);
  });
  each(s, [&](int64_t c, int64_t i) {
    const double gamma = in.gamma == nullptr ? 1 : in.gamma->get(c);
    out.dx[size_t(i)] = gamma * inverse_std(c) *
                        (out.dz[size_t(i)] - out.dbeta[size_t(c)] / count -
                         xhat(c, i) * out.dgamma[size_t(c)] / count);
  });
  return out;
}

}  // namespace flatout::nn::testing
