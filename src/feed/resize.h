// Antialiased resize, bilinear or bicubic, in integers, streamed: source rows go in from the top,
// finished rows come out. Both passes round to 8 bits, as Pillow's Image.resize does, so that
// pictures equal Pillow's but for the last digit of its 22-bit weights (ours have 15 to 22).
// Pixels are 4 bytes, RGBX: one load holds four of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace flatout::feed {

enum class Filter : uint8_t { kBilinear, kBicubic };

/// The weights of one axis. Output i is the sum over k of weight(i)[k] * source[begin[i] + k].
struct Axis {
  int taps = 0;  // of each output, a multiple of 4; the rest are zero
  int shift = 0;
  std::vector<int32_t> begin;
  std::vector<int32_t> used;  // taps that are not padding
  std::vector<int16_t> weights;
  int first = 0;  // source samples in use: [first, last)
  int last = 0;

  /// Weights of outputs [skip, skip + count) of the `whole` that the interval [from, to) of the
  /// source is resized to; samples outside [low, high) are not touched. `mirror` reverses outputs.
  void make(double from, double to, int low, int high, int whole, int skip, int count, bool mirror,
            Filter filter = Filter::kBilinear);
  const int16_t* weight(int i) const { return weights.data() + size_t(i) * size_t(taps); }
  /// Bytes from a row's first pixel, source sample `origin`, to the first that output i looks at.
  size_t offset(int i, int origin) const { return size_t(begin[size_t(i)] - origin) * 4; }
};

/// Bytes past the end of each row, source or result, that the kernels may touch.
constexpr int kRowSlack = 64;

/// out[0..count) RGBX = the row, whose first pixel is source sample `origin`, through `axis`.
void resize_row(const Axis& axis, const uint8_t* row, int origin, uint8_t* out, int count);
/// out[0..pixels) RGBX = sum of weights[k] * rows[k], shifted. taps is even.
void combine_rows(const uint8_t* const* rows, const int16_t* weights, int taps, int shift,
                  uint8_t* out, int pixels);

/// The same without SIMD: what the fast ones are checked against, and what runs where there is
/// none.
void resize_row_portable(const Axis& axis, const uint8_t* row, int origin, uint8_t* out, int count);
void combine_rows_portable(const uint8_t* const* rows, const int16_t* weights, int taps, int shift,
                           uint8_t* out, int pixels);

}  // namespace flatout::feed
