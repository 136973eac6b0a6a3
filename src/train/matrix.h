// Products of matrices out of the tiles of kernels.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "train/layer.h"
#include "train/strips.h"

namespace flatout::train {

/// Element (i, k) is at[i * row + k * column].
template <class T>
struct MatrixView {
  const T* at;
  ptrdiff_t row, column;
};

/// Working memory of multiply() in each part: a panel of `depth` rows.
inline size_t multiply_scratch(int depth) { return static_cast<size_t>(depth) * kColumns; }

/// c[rows][columns] = a * b; a: rows x depth, b: depth x columns. packed: [rows * depth].
template <class T>
void multiply(const Pass<T>& pass, int rows, int columns, int depth, MatrixView<T> a,
              MatrixView<T> b, T* packed, T* c) {
  pack_strips(
      rows, depth, [&](int i, int k) { return a.at[i * a.row + k * a.column]; }, packed);
  std::vector<int32_t> tap(static_cast<size_t>(depth));
  for (int k = 0; k < depth; ++k) tap[static_cast<size_t>(k)] = k * kColumns;
  pass.device->pool().run(kParts, [&](int part) {
    T* panel = pass.plan->scratch_of(part);
    for (int first = part * kColumns; first < columns; first += kParts * kColumns) {
      const int width = std::min(kColumns, columns - first);
      for (int k = 0; k < depth; ++k) {
        const T* from = b.at + k * b.row + first * b.column;
        for (int j = 0; j < kColumns; ++j) {
          panel[k * kColumns + j] = j < width ? from[j * b.column] : T{0};
        }
      }
      for_strips(rows, [&](int row, int count) {
        T tile[kMostRows * kColumns];
        multiply_tile(packed + static_cast<ptrdiff_t>(row) * depth, count, panel, tap.data(), depth,
                      kColumns / 2, static_cast<const T*>(nullptr), tile, kColumns);
        for (int i = 0; i < count; ++i) {
          std::copy(tile + i * kColumns, tile + i * kColumns + width,
                    c + static_cast<ptrdiff_t>(row + i) * columns + first);
        }
      });
    }
  });
}

}  // namespace flatout::train
