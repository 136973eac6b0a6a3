// AVX-512 (F, BW, VL, DQ): sixteen floats at a time.
#if defined(__x86_64__)

// gcc 12 takes the "undefined" vectors of its own intrinsics for variables of ours (GCC bug
// 105593).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#define FLATOUT_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#include "nn/kernels_impl.h"

namespace flatout::nn {
namespace {

struct Avx512 {
  using Real = float;
  static constexpr int kLanes = 16;
  static constexpr bool kStreams = true;

  using Vec = __m512;
  FLATOUT_SIMD Vec set(float value) { return _mm512_set1_ps(value); }
  FLATOUT_SIMD Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  FLATOUT_SIMD Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  FLATOUT_SIMD Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  FLATOUT_SIMD Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  // The second operand where one is NaN, so that a NaN stays.
  FLATOUT_SIMD Vec relu(Vec v) { return _mm512_max_ps(_mm512_setzero_ps(), v); }
  FLATOUT_SIMD uint32_t passes(Vec v) {
    return _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NLE_UQ);
  }
  FLATOUT_SIMD Vec keep(uint32_t bits, Vec v) {
    return _mm512_maskz_mov_ps(static_cast<__mmask16>(bits), v);
  }

  FLATOUT_SIMD Vec load(const float* from) { return _mm512_loadu_ps(from); }
  FLATOUT_SIMD Vec load(const Bf16* from) {
    const __m512i bits = _mm512_cvtepu16_epi32(load256(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
  }
  FLATOUT_SIMD Vec load(const F16* from) { return _mm512_cvtph_ps(load256(from)); }

  FLATOUT_SIMD Vec load_some(const float* from, int lanes) {
    return _mm512_maskz_loadu_ps(first(lanes), from);
  }
  FLATOUT_SIMD Vec load_some(const Bf16* from, int lanes) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(lanes), from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
  }
  FLATOUT_SIMD Vec load_some(const F16* from, int lanes) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(lanes), from));
  }

  FLATOUT_SIMD void store_some(float* to, Vec v, int lanes) {
    _mm512_mask_storeu_ps(to, first(lanes), v);
  }
  FLATOUT_SIMD void store_some(Bf16* to, Vec v, int lanes) {
    _mm256_mask_storeu_epi16(to, first(lanes), bf16(v));
  }
  FLATOUT_SIMD void store_some(F16* to, Vec v, int lanes) {
    _mm256_mask_storeu_epi16(to, first(lanes), f16(v));
  }

  FLATOUT_SIMD void store(float* to, Vec v) { _mm512_storeu_ps(to, v); }
  FLATOUT_SIMD void store(Bf16* to, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bf16(v));
  }
  FLATOUT_SIMD void store(F16* to, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), f16(v));
  }
  FLATOUT_SIMD void stream_line(float* to, const Vec* v) { _mm512_stream_ps(to, v[0]); }
  FLATOUT_SIMD void stream_line(Bf16* to, const Vec* v) { stream64(to, bf16(v[0]), bf16(v[1])); }
  FLATOUT_SIMD void stream_line(F16* to, const Vec* v) { stream64(to, f16(v[0]), f16(v[1])); }
  FLATOUT_SIMD void fence() { _mm_sfence(); }

  FLATOUT_SIMD float value(float v) { return v; }
  FLATOUT_SIMD float value(Bf16 v) {
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(v.bits << 16)));
  }
  FLATOUT_SIMD float value(F16 v) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(v.bits))); }

  struct Wide {
    __m512d low, high;
  };
  FLATOUT_SIMD Wide wide_set(double value) {
    return {_mm512_set1_pd(value), _mm512_set1_pd(value)};
  }
  FLATOUT_SIMD Wide widen(Vec v) {
    return {_mm512_cvtps_pd(_mm512_castps512_ps256(v)),
            _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1))};
  }
  FLATOUT_SIMD Wide widen(const float* from) {
    return {_mm512_cvtps_pd(_mm256_loadu_ps(from)), _mm512_cvtps_pd(_mm256_loadu_ps(from + 8))};
  }
  FLATOUT_SIMD Wide wide_add(const Wide& a, const Wide& b) {
    return {_mm512_add_pd(a.low, b.low), _mm512_add_pd(a.high, b.high)};
  }
  FLATOUT_SIMD Wide wide_fma(const Wide& a, const Wide& b, const Wide& c) {
    return {_mm512_fmadd_pd(a.low, b.low, c.low), _mm512_fmadd_pd(a.high, b.high, c.high)};
  }
  FLATOUT_SIMD double wide_sum(const Wide& w) {
    return _mm512_reduce_add_pd(_mm512_add_pd(w.low, w.high));
  }
  FLATOUT_SIMD Wide load_wide(const double* from) {
    return {_mm512_loadu_pd(from), _mm512_loadu_pd(from + 8)};
  }
  FLATOUT_SIMD void store_wide(double* to, const Wide& w) {
    _mm512_storeu_pd(to, w.low);
    _mm512_storeu_pd(to + 8, w.high);
  }

 private:
  FLATOUT_SIMD __mmask16 first(int lanes) { return static_cast<__mmask16>((1U << lanes) - 1); }
  FLATOUT_SIMD __m256i load256(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  FLATOUT_SIMD void stream64(void* to, __m256i low, __m256i high) {
    _mm512_stream_si512(static_cast<__m512i*>(to),
                        _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
  }
  // To nearest, ties to even; NaN as 0x7FC0.
  FLATOUT_SIMD __m256i bf16(Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_mask_mov_epi32(_mm512_srli_epi32(up, 16), nan, _mm512_set1_epi32(0x7FC0)));
  }
  FLATOUT_SIMD __m256i f16(Vec v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
};

}  // namespace

const Kernels<float>& avx512_kernels(Type type, bool rows) {
  return kernels_of<Avx512>(type, rows);
}

}  // namespace flatout::nn

#else
#include "nn/kernels.h"
namespace flatout::nn {
const Kernels<float>& avx512_kernels(Type, bool) { FLATOUT_CHECK(false); }
}  // namespace flatout::nn
#endif
