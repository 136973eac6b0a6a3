#include "train/kernels.h"

#include <atomic>

#if defined(__x86_64__)
#include <immintrin.h>
#define FLATOUT_AVX2 __attribute__((target("avx2,fma")))
#endif

#include "base/result.h"

namespace flatout::train {
namespace {

template <class T>
void multiply_portable(const T* a, int rows, const T* b, const int32_t* tap, int taps,
                       ptrdiff_t second, const T* bias, T* y, ptrdiff_t stride) {
  for (int i = 0; i < rows; ++i) {
    T sum[kColumns];
    for (T& s : sum) s = bias != nullptr ? bias[i] : T{0};
    for (int k = 0; k < taps; ++k) {
      const T w = a[k * rows + i];
      const T* low = b + tap[k];
      const T* high = low + second;
      for (int j = 0; j < 8; ++j) sum[j] += w * low[j];
      for (int j = 0; j < 8; ++j) sum[8 + j] += w * high[j];
    }
    for (int j = 0; j < kColumns; ++j) y[i * stride + j] = sum[j];
  }
}

template <class T>
void accumulate_portable(const T* b, const int32_t* tap, int rows, const int32_t* pixel, int pixels,
                         const T* panel, T* sum, ptrdiff_t stride) {
  for (int i = 0; i < rows; ++i) {
    const T* from = b + tap[i];
    T part[kColumns];
    for (int j = 0; j < kColumns; ++j) part[j] = sum[i * stride + j];
    for (int p = 0; p < pixels; ++p) {
      const T value = from[pixel[p]];
      for (int j = 0; j < kColumns; ++j) part[j] += value * panel[p * kColumns + j];
    }
    for (int j = 0; j < kColumns; ++j) sum[i * stride + j] = part[j];
  }
}

bool has_avx2_and_fma() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

std::atomic<bool>& simd() {
  static std::atomic<bool> used{has_avx2_and_fma()};
  return used;
}

#if defined(__x86_64__)

// Two registers a row; with six rows twelve sums are under way, more than the eight that two FMA
// units of four cycles need.
template <int kRows>
FLATOUT_AVX2 void multiply_rows(const float* a, const float* b, const int32_t* tap, int taps,
                                ptrdiff_t second, const float* bias, float* y, ptrdiff_t stride) {
  __m256 low[kRows];
  __m256 high[kRows];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    low[i] = high[i] = bias != nullptr ? _mm256_set1_ps(bias[i]) : _mm256_setzero_ps();
  }
  for (int k = 0; k < taps; ++k, a += kRows) {
    const float* at = b + tap[k];
    const __m256 left = _mm256_loadu_ps(at);
    const __m256 right = _mm256_loadu_ps(at + second);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m256 w = _mm256_broadcast_ss(a + i);
      low[i] = _mm256_fmadd_ps(w, left, low[i]);
      high[i] = _mm256_fmadd_ps(w, right, high[i]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    _mm256_storeu_ps(y + i * stride, low[i]);
    _mm256_storeu_ps(y + i * stride + 8, high[i]);
  }
}

template <int kRows>
FLATOUT_AVX2 void accumulate_rows(const float* b, const int32_t* tap, const int32_t* pixel,
                                  int pixels, const float* panel, float* sum, ptrdiff_t stride) {
  __m256 low[kRows];
  __m256 high[kRows];
  const float* from[kRows];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    from[i] = b + tap[i];
    low[i] = _mm256_loadu_ps(sum + i * stride);
    high[i] = _mm256_loadu_ps(sum + i * stride + 8);
  }
  for (int p = 0; p < pixels; ++p, panel += kColumns) {
    const __m256 left = _mm256_loadu_ps(panel);
    const __m256 right = _mm256_loadu_ps(panel + 8);
    const int32_t at = pixel[p];
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m256 value = _mm256_broadcast_ss(from[i] + at);
      low[i] = _mm256_fmadd_ps(value, left, low[i]);
      high[i] = _mm256_fmadd_ps(value, right, high[i]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    _mm256_storeu_ps(sum + i * stride, low[i]);
    _mm256_storeu_ps(sum + i * stride + 8, high[i]);
  }
}

using Multiply = void (*)(const float*, const float*, const int32_t*, int, ptrdiff_t, const float*,
                          float*, ptrdiff_t);
using Accumulate = void (*)(const float*, const int32_t*, const int32_t*, int, const float*, float*,
                            ptrdiff_t);
constexpr Multiply kMultiply[] = {multiply_rows<1>, multiply_rows<2>, multiply_rows<3>,
                                  multiply_rows<4>, multiply_rows<5>, multiply_rows<6>};
constexpr Accumulate kAccumulate[] = {accumulate_rows<1>, accumulate_rows<2>, accumulate_rows<3>,
                                      accumulate_rows<4>, accumulate_rows<5>, accumulate_rows<6>};

#endif

}  // namespace

bool simd_is_used() { return simd().load(std::memory_order_relaxed); }
void use_simd(bool on) { simd() = on && has_avx2_and_fma(); }

void multiply_tile(const float* a, int rows, const float* b, const int32_t* tap, int taps,
                   ptrdiff_t second, const float* bias, float* y, ptrdiff_t stride) {
#if defined(__x86_64__)
  if (simd_is_used()) return kMultiply[rows - 1](a, b, tap, taps, second, bias, y, stride);
#endif
  multiply_portable(a, rows, b, tap, taps, second, bias, y, stride);
}

void multiply_tile(const double* a, int rows, const double* b, const int32_t* tap, int taps,
                   ptrdiff_t second, const double* bias, double* y, ptrdiff_t stride) {
  multiply_portable(a, rows, b, tap, taps, second, bias, y, stride);
}

void accumulate_tile(const float* b, const int32_t* tap, int rows, const int32_t* pixel, int pixels,
                     const float* panel, float* sum, ptrdiff_t stride) {
#if defined(__x86_64__)
  if (simd_is_used()) return kAccumulate[rows - 1](b, tap, pixel, pixels, panel, sum, stride);
#endif
  accumulate_portable(b, tap, rows, pixel, pixels, panel, sum, stride);
}

void accumulate_tile(const double* b, const int32_t* tap, int rows, const int32_t* pixel,
                     int pixels, const double* panel, double* sum, ptrdiff_t stride) {
  accumulate_portable(b, tap, rows, pixel, pixels, panel, sum, stride);
}

}  // namespace flatout::train
