// Rows of a matrix in strips of at most kMostRows, as even as they can be.
#pragma once

#include "train/kernels.h"

namespace flatout::train {

/// strip(first, rows) for each strip of `rows`.
template <class Strip>
void for_strips(int rows, const Strip& strip) {
  const int strips = (rows + kMostRows - 1) / kMostRows;
  for (int s = 0; s < strips; ++s) {
    const int first = rows * s / strips;
    strip(first, rows * (s + 1) / strips - first);
  }
}

/// packed: strip after strip, each [depth][its rows]; a strip begins at its first row * depth.
/// value(row, k): the matrix.
template <class T, class Value>
void pack_strips(int rows, int depth, const Value& value, T* packed) {
  for_strips(rows, [&](int first, int count) {
    T* to = packed + static_cast<ptrdiff_t>(first) * depth;
    for (int k = 0; k < depth; ++k) {
      for (int i = 0; i < count; ++i) *to++ = value(first + i, k);
    }
  });
}

}  // namespace flatout::train
