// Plain C++, for processors without the others and for f64: the same passes over arrays of eight.
#include <array>
#include <cmath>

#define FLATOUT_TARGET
#include "base/half.h"
#include "nn/kernels_impl.h"

namespace flatout::nn {
namespace {

template <class R>
struct Portable {
  using Real = R;
  static constexpr int kLanes = 8;
  static constexpr bool kStreams = false;

  using Vec = std::array<R, kLanes>;
  using Wide = std::array<double, kLanes>;

  template <class To, class Function>
  FLATOUT_SIMD std::array<To, kLanes> each(Function function) {
    std::array<To, kLanes> out;
    for (size_t i = 0; i < kLanes; ++i) out[i] = static_cast<To>(function(i));
    return out;
  }

  FLATOUT_SIMD Vec set(R value) {
    return each<R>([&](size_t) { return value; });
  }
  FLATOUT_SIMD Vec add(const Vec& a, const Vec& b) {
    return each<R>([&](size_t i) { return a[i] + b[i]; });
  }
  FLATOUT_SIMD Vec sub(const Vec& a, const Vec& b) {
    return each<R>([&](size_t i) { return a[i] - b[i]; });
  }
  FLATOUT_SIMD Vec mul(const Vec& a, const Vec& b) {
    return each<R>([&](size_t i) { return a[i] * b[i]; });
  }
  FLATOUT_SIMD Vec fma(const Vec& a, const Vec& b, const Vec& c) {
    return each<R>([&](size_t i) { return a[i] * b[i] + c[i]; });
  }
  FLATOUT_SIMD Vec relu(const Vec& v) {  // a NaN stays
    return each<R>([&](size_t i) { return v[i] <= 0 ? R{0} : v[i]; });
  }
  FLATOUT_SIMD uint32_t passes(const Vec& v) {
    uint32_t bits = 0;
    for (size_t i = 0; i < kLanes; ++i) bits |= static_cast<uint32_t>(!(v[i] <= 0)) << i;
    return bits;
  }
  FLATOUT_SIMD Vec keep(uint32_t bits, const Vec& v) {
    return each<R>([&](size_t i) { return ((bits >> i) & 1) != 0 ? v[i] : R{0}; });
  }

  FLATOUT_SIMD R value(R v) { return v; }
  FLATOUT_SIMD float value(Bf16 v) { return from_bf16(v.bits); }
  FLATOUT_SIMD float value(F16 v) { return from_f16(v.bits); }
  template <class T>
  FLATOUT_SIMD Vec load(const T* from) {
    return each<R>([&](size_t i) { return value(from[i]); });
  }

  FLATOUT_SIMD void put(R* to, R v) { *to = v; }
  FLATOUT_SIMD void put(Bf16* to, float v) { to->bits = to_bf16(v); }
  FLATOUT_SIMD void put(F16* to, float v) { to->bits = to_f16(v); }
  template <class T>
  FLATOUT_SIMD void store(T* to, const Vec& v) {
    for (size_t i = 0; i < kLanes; ++i) put(to + i, v[i]);
  }
  template <class T>
  FLATOUT_SIMD void stream_line(T* /*to*/, const Vec* /*values*/) {}  // kStreams is false
  FLATOUT_SIMD void fence() {}

  FLATOUT_SIMD Wide wide_set(double value) {
    return each<double>([&](size_t) { return value; });
  }
  FLATOUT_SIMD Wide widen(const Vec& v) {
    return each<double>([&](size_t i) { return v[i]; });
  }
  FLATOUT_SIMD Wide widen(const R* from) {
    return each<double>([&](size_t i) { return from[i]; });
  }
  FLATOUT_SIMD Wide wide_add(const Wide& a, const Wide& b) {
    return each<double>([&](size_t i) { return a[i] + b[i]; });
  }
  FLATOUT_SIMD Wide wide_fma(const Wide& a, const Wide& b, const Wide& c) {
    return each<double>([&](size_t i) { return a[i] * b[i] + c[i]; });
  }
  FLATOUT_SIMD double wide_sum(const Wide& w) {
    return ((w[0] + w[4]) + (w[2] + w[6])) + ((w[1] + w[5]) + (w[3] + w[7]));
  }
  FLATOUT_SIMD Wide load_wide(const double* from) {
    return each<double>([&](size_t i) { return from[i]; });
  }
  FLATOUT_SIMD void store_wide(double* to, const Wide& w) {
    for (size_t i = 0; i < kLanes; ++i) to[i] = w[i];
  }
};

}  // namespace

const Kernels<float>& portable_kernels(Type type, bool rows) {
  return kernels_of<Portable<float>>(type, rows);
}

const Kernels<double>& double_kernels(bool rows) {
  using Doubles = Passes<Portable<double>, double>;
  return rows ? Doubles::kKernels<true> : Doubles::kKernels<false>;
}

}  // namespace flatout::nn
