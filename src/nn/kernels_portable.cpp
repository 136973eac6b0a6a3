// For processors without the others and for f64: the same passes over vectors of eight, which the
// compiler puts into what registers there are.
#include <cstring>

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

  using Vec [[gnu::vector_size(kLanes * sizeof(R))]] = R;
  using Wide [[gnu::vector_size(kLanes * sizeof(double))]] = double;

  FLATOUT_SIMD Vec set(R value) { return value - Vec{}; }
  FLATOUT_SIMD Vec add(const Vec& a, const Vec& b) { return a + b; }
  FLATOUT_SIMD Vec sub(const Vec& a, const Vec& b) { return a - b; }
  FLATOUT_SIMD Vec mul(const Vec& a, const Vec& b) { return a * b; }
  FLATOUT_SIMD Vec fma(const Vec& a, const Vec& b, const Vec& c) { return a * b + c; }
  FLATOUT_SIMD Vec relu(const Vec& v) { return v <= 0 ? Vec{} : v; }  // a NaN stays
  FLATOUT_SIMD uint32_t passes(const Vec& v) {
    uint32_t bits = 0;
    for (int i = 0; i < kLanes; ++i) {
      const uint32_t passed = v[i] <= 0 ? 0 : 1;  // a NaN passes
      bits |= passed << i;  // in one expression g++ 12's check of shifts goes wrong
    }
    return bits;
  }
  FLATOUT_SIMD Vec keep(uint32_t bits, const Vec& v) {
    Vec out{};
    for (int i = 0; i < kLanes; ++i) out[i] = ((bits >> i) & 1) != 0 ? v[i] : R{0};
    return out;
  }

  FLATOUT_SIMD R value(R v) { return v; }
  FLATOUT_SIMD float value(Bf16 v) { return from_bf16(v.bits); }
  FLATOUT_SIMD float value(F16 v) { return from_f16(v.bits); }
  template <class T>
  FLATOUT_SIMD Vec load(const T* from) {
    Vec out;
    for (int i = 0; i < kLanes; ++i) out[i] = value(from[i]);
    return out;
  }

  FLATOUT_SIMD void put(R* to, R v) { *to = v; }
  FLATOUT_SIMD void put(Bf16* to, float v) { to->bits = to_bf16(v); }
  FLATOUT_SIMD void put(F16* to, float v) { to->bits = to_f16(v); }
  template <class T>
  FLATOUT_SIMD void store(T* to, const Vec& v) {
    for (int i = 0; i < kLanes; ++i) put(to + i, v[i]);
  }
  template <class T>
  FLATOUT_SIMD void stream_line(T* /*to*/, const Vec* /*values*/) {}  // kStreams is false
  FLATOUT_SIMD void fence() {}

  FLATOUT_SIMD Wide wide_set(double value) { return value - Wide{}; }
  FLATOUT_SIMD Wide widen(const Vec& v) { return __builtin_convertvector(v, Wide); }
  FLATOUT_SIMD Wide widen(const R* from) { return widen(load(from)); }
  FLATOUT_SIMD Wide wide_add(const Wide& a, const Wide& b) { return a + b; }
  FLATOUT_SIMD Wide wide_fma(const Wide& a, const Wide& b, const Wide& c) { return a * b + c; }
  FLATOUT_SIMD double wide_sum(const Wide& w) {
    return ((w[0] + w[4]) + (w[2] + w[6])) + ((w[1] + w[5]) + (w[3] + w[7]));
  }
  FLATOUT_SIMD Wide load_wide(const double* from) {
    Wide out;
    std::memcpy(&out, from, sizeof out);
    return out;
  }
  FLATOUT_SIMD void store_wide(double* to, const Wide& w) { std::memcpy(to, &w, sizeof w); }
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
