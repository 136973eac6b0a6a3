// The AVX2 kernels and whether this processor has them. Each equals its portable twin to the bit.
#pragma once

#include <cstdint>

#include "feed/resize.h"
#include "feed/write.h"

namespace flatout::feed {

bool has_avx2();

void resize_row_avx2(const Axis& axis, const uint8_t* row, int origin, uint8_t* out, int count);
void combine_rows_avx2(const uint8_t* const* rows, const int16_t* weights, int taps, int shift,
                       uint8_t* out, int pixels);
void write_planes_f32_avx2(const uint8_t* row, int pixels, const Normalize& normalize,
                           float* const planes[3]);

}  // namespace flatout::feed
