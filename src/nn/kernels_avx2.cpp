// AVX2 with FMA and F16C: eight floats at a time.
#if defined(__x86_64__)

#include <immintrin.h>

#define FLATOUT_TARGET __attribute__((target("avx2,fma,f16c")))
#include "nn/kernels_impl.h"

namespace flatout::nn {
namespace {

struct Avx2 {
  using Real = float;
  static constexpr int kLanes = 8;
  static constexpr bool kStreams = true;

  using Vec = __m256;
  FLATOUT_SIMD Vec set(float value) { return _mm256_set1_ps(value); }
  FLATOUT_SIMD Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  FLATOUT_SIMD Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  FLATOUT_SIMD Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  FLATOUT_SIMD Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  // The second operand where one is NaN, so that a NaN stays.
  FLATOUT_SIMD Vec relu(Vec v) { return _mm256_max_ps(_mm256_setzero_ps(), v); }
  FLATOUT_SIMD uint32_t passes(Vec v) {
    return static_cast<uint32_t>(
        _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NLE_UQ)));
  }
  FLATOUT_SIMD Vec keep(uint32_t bits, Vec v) {
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), each);
    return _mm256_and_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(set, each)), v);
  }

  FLATOUT_SIMD Vec load(const float* from) { return _mm256_loadu_ps(from); }
  FLATOUT_SIMD Vec load(const Bf16* from) { return from_bf16(load128(from)); }
  FLATOUT_SIMD Vec load(const F16* from) { return _mm256_cvtph_ps(load128(from)); }

  FLATOUT_SIMD Vec load_some(const float* from, int lanes) {
    const __m256i each = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), each));
  }
  FLATOUT_SIMD Vec load_some(const Bf16* from, int lanes) {
    return from_bf16(some128(from, lanes));
  }
  FLATOUT_SIMD Vec load_some(const F16* from, int lanes) {
    return _mm256_cvtph_ps(some128(from, lanes));
  }
  // Not _mm256_maskstore_ps, which is microcode on AMD's processors.
  FLATOUT_SIMD void store_some(float* to, Vec v, int lanes) {
    __m128 left = _mm256_castps256_ps128(v);
    if ((lanes & 4) != 0) {
      _mm_storeu_ps(to, left);
      left = _mm256_extractf128_ps(v, 1);
      to += 4;
    }
    if ((lanes & 2) != 0) {
      _mm_storel_pi(reinterpret_cast<__m64*>(to), left);
      left = _mm_movehl_ps(left, left);
      to += 2;
    }
    if ((lanes & 1) != 0) _mm_store_ss(to, left);
  }
  FLATOUT_SIMD void store_some(Bf16* to, Vec v, int lanes) { store128(to, bf16(v), lanes); }
  FLATOUT_SIMD void store_some(F16* to, Vec v, int lanes) { store128(to, f16(v), lanes); }

  FLATOUT_SIMD void store(float* to, Vec v) { _mm256_storeu_ps(to, v); }
  FLATOUT_SIMD void store(Bf16* to, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bf16(v));
  }
  FLATOUT_SIMD void store(F16* to, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), f16(v));
  }
  // Stores of 32 bytes: pairs of 16 leave half-filled buffers behind where there are two results.
  FLATOUT_SIMD void stream_line(float* to, const Vec* v) {
    _mm256_stream_ps(to, v[0]);
    _mm256_stream_ps(to + 8, v[1]);
  }
  FLATOUT_SIMD void stream_line(Bf16* to, const Vec* v) {
    stream32(to, bf16(v[0]), bf16(v[1]));
    stream32(to + 16, bf16(v[2]), bf16(v[3]));
  }
  FLATOUT_SIMD void stream_line(F16* to, const Vec* v) {
    stream32(to, f16(v[0]), f16(v[1]));
    stream32(to + 16, f16(v[2]), f16(v[3]));
  }
  FLATOUT_SIMD void fence() { _mm_sfence(); }

  FLATOUT_SIMD float value(float v) { return v; }
  FLATOUT_SIMD float value(Bf16 v) {
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(v.bits << 16)));
  }
  FLATOUT_SIMD float value(F16 v) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(v.bits))); }

  struct Wide {
    __m256d low, high;
  };
  FLATOUT_SIMD Wide wide_set(double value) {
    return {_mm256_set1_pd(value), _mm256_set1_pd(value)};
  }
  FLATOUT_SIMD Wide widen(Vec v) {
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(v)),
            _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))};
  }
  FLATOUT_SIMD Wide widen(const float* from) {
    return {_mm256_cvtps_pd(_mm_loadu_ps(from)), _mm256_cvtps_pd(_mm_loadu_ps(from + 4))};
  }
  FLATOUT_SIMD Wide wide_add(const Wide& a, const Wide& b) {
    return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)};
  }
  FLATOUT_SIMD Wide wide_fma(const Wide& a, const Wide& b, const Wide& c) {
    return {_mm256_fmadd_pd(a.low, b.low, c.low), _mm256_fmadd_pd(a.high, b.high, c.high)};
  }
  FLATOUT_SIMD double wide_sum(const Wide& w) {
    const __m256d four = _mm256_add_pd(w.low, w.high);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
  FLATOUT_SIMD Wide load_wide(const double* from) {
    return {_mm256_loadu_pd(from), _mm256_loadu_pd(from + 4)};
  }
  FLATOUT_SIMD void store_wide(double* to, const Wide& w) {
    _mm256_storeu_pd(to, w.low);
    _mm256_storeu_pd(to + 4, w.high);
  }

 private:
  FLATOUT_SIMD Vec from_bf16(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  // The first `lanes` values of 16 bits, fewer than eight, and zeros; read from the end on.
  template <class T>
  FLATOUT_SIMD __m128i some128(const T* from, int lanes) {
    __m128i out = _mm_setzero_si128();
    if ((lanes & 1) != 0) out = _mm_insert_epi16(out, from[lanes - 1].bits, 0);
    if ((lanes & 2) != 0) {
      int32_t two;
      std::memcpy(&two, from + (lanes & 4), sizeof(two));
      out = _mm_insert_epi32(_mm_slli_si128(out, 4), two, 0);
    }
    if ((lanes & 4) != 0) {
      out = _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)), out);
    }
    return out;
  }
  template <class T>
  FLATOUT_SIMD void store128(T* to, __m128i left, int lanes) {
    if ((lanes & 4) != 0) {
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to), left);
      left = _mm_srli_si128(left, 8);
      to += 4;
    }
    if ((lanes & 2) != 0) {
      const int32_t two = _mm_cvtsi128_si32(left);
      std::memcpy(to, &two, sizeof(two));
      left = _mm_srli_si128(left, 4);
      to += 2;
    }
    if ((lanes & 1) != 0) to->bits = static_cast<uint16_t>(_mm_extract_epi16(left, 0));
  }
  FLATOUT_SIMD __m128i load128(const void* from) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
  }
  FLATOUT_SIMD void stream32(void* to, __m128i low, __m128i high) {
    _mm256_stream_si256(static_cast<__m256i*>(to), _mm256_set_m128i(high, low));
  }
  // To nearest, ties to even; NaN as 0x7FC0.
  FLATOUT_SIMD __m128i bf16(Vec v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i half =
        _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(0x7FC0), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  }
  FLATOUT_SIMD __m128i f16(Vec v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
};

}  // namespace

const Kernels<float>& avx2_kernels(Type type, bool rows) { return kernels_of<Avx2>(type, rows); }

}  // namespace flatout::nn

#else
#include "nn/kernels.h"
namespace flatout::nn {
const Kernels<float>& avx2_kernels(Type, bool) { FLATOUT_CHECK(false); }
}  // namespace flatout::nn
#endif
