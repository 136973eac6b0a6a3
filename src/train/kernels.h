// The two inner loops that convolutions and matrix products spend their time in, each over a tile
// of at most six rows by sixteen columns that stays in registers. f32 uses AVX2 and FMA where the
// processor has them, chosen at run time; f64 and other processors take the portable loop.
//
// Values of the image are found through offsets ("taps") from where a tile begins, so that a
// window slides over a padded image without being copied out of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flatout::train {

inline constexpr int kColumns = 16;
inline constexpr int kMostRows = 6;

/// y[i][j] = bias[i] + sum over k < taps of a[k * rows + i] * b[tap[k] + at(j)] for i < rows,
/// j < 16; at(j) is j for the first eight columns and second + j - 8 for the others. rows: 1 to 6.
/// y: rows `stride` apart. bias may be null.
void multiply_tile(const float* a, int rows, const float* b, const int32_t* tap, int taps,
                   ptrdiff_t second, const float* bias, float* y, ptrdiff_t stride);
void multiply_tile(const double* a, int rows, const double* b, const int32_t* tap, int taps,
                   ptrdiff_t second, const double* bias, double* y, ptrdiff_t stride);

/// sum[i][j] += sum over p < pixels of b[tap[i] + pixel[p]] * panel[p * 16 + j] for i < rows,
/// j < 16. rows: 1 to 6. sum: rows `stride` apart.
void accumulate_tile(const float* b, const int32_t* tap, int rows, const int32_t* pixel, int pixels,
                     const float* panel, float* sum, ptrdiff_t stride);
void accumulate_tile(const double* b, const int32_t* tap, int rows, const int32_t* pixel,
                     int pixels, const double* panel, double* sum, ptrdiff_t stride);

/// Whether f32 takes the SIMD loops. For tests: use_simd(false) turns them off.
bool simd_is_used();
void use_simd(bool on);

}  // namespace flatout::train
