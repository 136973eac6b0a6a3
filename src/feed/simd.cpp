#include "feed/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define FLATOUT_AVX2 __attribute__((target("avx2")))
#endif

#include "base/result.h"

namespace flatout::feed {

#if defined(__x86_64__)

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

// Four source pixels make one madd: the low lane takes pixels 0 and 1, the high lane 2 and 3, each
// channel's two values beside each other, against the pair of their weights.
FLATOUT_AVX2 void resize_row_avx2(const Axis& axis, const uint8_t* row, int origin, uint8_t* out,
                                  int count) {
  const __m256i pairs =
      _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1,  //
                       8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1);
  const __m256i spread = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  const __m128i half = _mm_set1_epi32(1 << (axis.shift - 1));
  const __m128i shift = _mm_cvtsi32_si128(axis.shift);
  const int16_t* weight = axis.weights.data();
  for (int i = 0; i < count; ++i, weight += axis.taps) {
    const uint8_t* source = row + axis.offset(i, origin);
    __m256i sum = _mm256_setzero_si256();
    const size_t used = static_cast<size_t>(axis.used[static_cast<size_t>(i)]);
    for (size_t k = 0; k < used; k += 4) {
      const __m256i pixels = _mm256_shuffle_epi8(
          _mm256_broadcastsi128_si256(
              _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + k * 4))),
          pairs);
      const __m256i weights = _mm256_permutevar8x32_epi32(
          _mm256_castsi128_si256(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(weight + k))),
          spread);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pixels, weights));
    }
    __m128i pixel = _mm_add_epi32(_mm_add_epi32(_mm256_castsi256_si128(sum), half),
                                  _mm256_extracti128_si256(sum, 1));
    pixel = _mm_sra_epi32(pixel, shift);
    pixel = _mm_packs_epi32(pixel, pixel);
    pixel = _mm_packus_epi16(pixel, pixel);
    _mm_storeu_si32(out + size_t(i) * 4, pixel);
  }
}

// Thirty-two bytes (eight pixels) at a time; two rows make one madd.
FLATOUT_AVX2 void combine_rows_avx2(const uint8_t* const* rows, const int16_t* weights, int taps,
                                    int shift, uint8_t* out, int pixels) {
  const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
  const __m128i by = _mm_cvtsi32_si128(shift);
  const __m256i zero = _mm256_setzero_si256();
  for (int i = 0; i < pixels * 4; i += 32) {
    __m256i sum0 = half, sum1 = half, sum2 = half, sum3 = half;
    for (int k = 0; k < taps; k += 2) {
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[k] + i));
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[k + 1] + i));
      const __m256i pair = _mm256_set1_epi32(static_cast<uint16_t>(weights[k]) |
                                             (static_cast<int32_t>(weights[k + 1]) << 16));
      const __m256i low = _mm256_unpacklo_epi8(a, b);
      const __m256i high = _mm256_unpackhi_epi8(a, b);
      sum0 = _mm256_add_epi32(sum0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), pair));
      sum1 = _mm256_add_epi32(sum1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), pair));
      sum2 = _mm256_add_epi32(sum2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), pair));
      sum3 = _mm256_add_epi32(sum3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), pair));
    }
    const __m256i first =
        _mm256_packs_epi32(_mm256_sra_epi32(sum0, by), _mm256_sra_epi32(sum1, by));
    const __m256i second =
        _mm256_packs_epi32(_mm256_sra_epi32(sum2, by), _mm256_sra_epi32(sum3, by));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_packus_epi16(first, second));
  }
}

FLATOUT_AVX2 void write_planes_f32_avx2(const uint8_t* row, int pixels, const Normalize& normalize,
                                        float* const planes[3]) {
  int i = 0;
  for (; i + 8 <= pixels; i += 8) {
    const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + size_t(i) * 4));
    const __m256i byte = _mm256_set1_epi32(0xFF);
    const __m256i channels[3] = {_mm256_and_si256(eight, byte),
                                 _mm256_and_si256(_mm256_srli_epi32(eight, 8), byte),
                                 _mm256_and_si256(_mm256_srli_epi32(eight, 16), byte)};
    for (int c = 0; c < 3; ++c) {
      const __m256 scaled =
          _mm256_mul_ps(_mm256_cvtepi32_ps(channels[c]), _mm256_set1_ps(normalize.scale[c]));
      _mm256_storeu_ps(planes[c] + i, _mm256_add_ps(scaled, _mm256_set1_ps(normalize.shift[c])));
    }
  }
  float* const rest[3] = {planes[0] + i, planes[1] + i, planes[2] + i};
  write_planes_f32_portable(row + size_t(i) * 4, pixels - i, normalize, rest);
}

#else

bool has_avx2() { return false; }
void resize_row_avx2(const Axis&, const uint8_t*, int, uint8_t*, int) { FLATOUT_CHECK(false); }
void combine_rows_avx2(const uint8_t* const*, const int16_t*, int, int, uint8_t*, int) {
  FLATOUT_CHECK(false);
}
void write_planes_f32_avx2(const uint8_t*, int, const Normalize&, float* const[3]) {
  FLATOUT_CHECK(false);
}

#endif

}  // namespace flatout::feed
