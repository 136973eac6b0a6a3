#include "feed/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "feed/simd.h"

namespace flatout::feed {
namespace {

uint8_t clamp8(int32_t value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

double triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

// Keys's cubic convolution with a = -0.5, as Pillow's.
double cubic(double x) {
  x = std::abs(x);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

}  // namespace

void Axis::make(double from, double to, int low, int high, int whole, int skip, int count,
                bool mirror, Filter filter) {
  const double scale = (to - from) / whole;
  const double stretch = std::max(scale, 1.0);  // where it shrinks, the filter widens
  const double support = filter == Filter::kBicubic ? 2 * stretch : stretch;  // half its width
  const int most = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps = (most + 3) / 4 * 4;
  begin.resize(static_cast<size_t>(count));
  used.resize(static_cast<size_t>(count));
  std::vector<double> exact(static_cast<size_t>(count) * static_cast<size_t>(most));
  double largest = 0;
  first = high;
  last = low;
  for (int i = 0; i < count; ++i) {
    const double center = from + (skip + i + 0.5) * scale;
    const int lowest = std::max(static_cast<int>(std::floor(center - support + 0.5)), low);
    const int beyond =
        std::max(std::min(static_cast<int>(std::floor(center + support + 0.5)), high), lowest + 1);
    double* weight = exact.data() + static_cast<size_t>(i) * static_cast<size_t>(most);
    const int n = std::min(beyond - lowest, most);
    double sum = 0;
    for (int k = 0; k < n; ++k) {
      const double x = (lowest + k - center + 0.5) / stretch;
      weight[k] = filter == Filter::kBicubic ? cubic(x) : triangle(x);
      sum += weight[k];
    }
    for (int k = 0; k < n; ++k) {
      weight[k] = sum > 0 ? weight[k] / sum : 1.0 / n;
      largest = std::max(largest, weight[k]);
    }
    const size_t at = static_cast<size_t>(mirror ? count - 1 - i : i);
    begin[at] = lowest;
    used[at] = n;
    first = std::min(first, lowest);
    last = std::max(last, lowest + n);
  }
  // As many bits as 16-bit weights and 32-bit sums allow. A weight of one itself is 32767 / 32768,
  // which rounds to the same pixel; beside a negative one it can be larger than one.
  shift = largest > 1 ? 14 : 15;
  while (shift < 22 && largest * (1 << (shift + 1)) < 32767) ++shift;
  weights.assign(static_cast<size_t>(count) * static_cast<size_t>(taps), 0);
  for (int i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(mirror ? count - 1 - i : i);
    const double* weight = exact.data() + static_cast<size_t>(i) * static_cast<size_t>(most);
    int16_t* rounded = weights.data() + at * static_cast<size_t>(taps);
    int32_t left = 1 << shift;
    int heaviest = 0;
    for (int k = 0; k < used[at]; ++k) {
      rounded[k] = static_cast<int16_t>(std::min(std::lround(weight[k] * (1 << shift)), 32767L));
      left -= rounded[k];
      if (rounded[k] > rounded[heaviest]) heaviest = k;
    }
    // They add up to one exactly: a flat area stays as it is.
    rounded[heaviest] = static_cast<int16_t>(std::min(rounded[heaviest] + left, 32767));
  }
}

void resize_row_portable(const Axis& axis, const uint8_t* row, int origin, uint8_t* out,
                         int count) {
  for (int i = 0; i < count; ++i) {
    const uint8_t* source = row + axis.offset(i, origin);
    const int16_t* weight = axis.weight(i);
    int32_t sum[3] = {1 << (axis.shift - 1), 1 << (axis.shift - 1), 1 << (axis.shift - 1)};
    for (int k = 0; k < axis.used[static_cast<size_t>(i)]; ++k) {
      for (int c = 0; c < 3; ++c) sum[c] += weight[k] * source[k * 4 + c];
    }
    for (int c = 0; c < 3; ++c) out[i * 4 + c] = clamp8(sum[c] >> axis.shift);
  }
}

void combine_rows_portable(const uint8_t* const* rows, const int16_t* weights, int taps, int shift,
                           uint8_t* out, int pixels) {
  for (int i = 0; i < pixels * 4; ++i) {
    int32_t sum = 1 << (shift - 1);
    for (int k = 0; k < taps; ++k) sum += weights[k] * rows[k][i];
    out[i] = clamp8(sum >> shift);
  }
}

void resize_row(const Axis& axis, const uint8_t* row, int origin, uint8_t* out, int count) {
  if (has_avx2()) return resize_row_avx2(axis, row, origin, out, count);
  resize_row_portable(axis, row, origin, out, count);
}

void combine_rows(const uint8_t* const* rows, const int16_t* weights, int taps, int shift,
                  uint8_t* out, int pixels) {
  if (has_avx2()) return combine_rows_avx2(rows, weights, taps, shift, out, pixels);
  combine_rows_portable(rows, weights, taps, shift, out, pixels);
}

}  // namespace flatout::feed
