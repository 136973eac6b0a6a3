// The four passes that batch norm is made of, over a part of a tensor, for one instruction set and
// one type of data. What the passes mean together stands in batch_norm.cpp.
#pragma once

#include <cstdint>
#include <string_view>

#include "nn/batch_norm.h"

namespace flatout::nn {

/// A part of a tensor: some channels of some images (planes) or of some rows (length 1).
/// Element j of channel c of image i lies at i * stride + c * length + j; pointers are to the
/// first.
struct Tile {
  int64_t outer = 0;   // images, or rows
  int64_t stride = 0;  // elements from one to the next
  int64_t channels = 0;
  int64_t length = 1;       // values of a channel that lie beside each other
  int64_t mask_stride = 0;  // bytes of mask from one image or row to the next
};

/// Bytes of mask for a run of values; a run begins on a byte.
constexpr int64_t mask_run(int64_t length) { return (length + 7) / 8; }

/// What is stored past the caches begins at a multiple of this: a cache line.
constexpr int64_t kStreamBytes = 64;

/// Arrays by channel may be read so many values past their end.
constexpr int64_t kSlack = 16;

// Real is what the arithmetic is done in: double for f64, float for all other types.

/// sum += sum of (x - shift), square += sum of (x - shift)^2.
template <class Real>
struct MomentsPass {
  const void* x;
  const Real* shift;
  double* sum;
  double* square;
};

/// y = (x - shift) * scale + offset (+ residual), then ReLU.
template <class Real>
struct NormalizePass {
  const void* x;
  const void* residual;
  void* y;
  uint8_t* mask;
  bool relu;
  bool stream;  // y goes past the caches
  const Real* shift;
  const Real* scale;
  const Real* offset;
};

/// d_residual = dz = dy where the mask has a one; dz_sum += sum of dz, dot += sum of dz * (x -
/// shift).
template <class Real>
struct SumsPass {
  const void* x;
  const void* dy;
  const uint8_t* mask;
  void* d_residual;  // may be null
  bool stream;       // d_residual goes past the caches
  const Real* shift;
  double* dz_sum;
  double* dot;
};

/// dx = dz * scale + (x - shift) * slope + offset; without x: dx = dz * scale.
template <class Real>
struct GradientPass {
  const void* x;
  const void* dy;
  const uint8_t* mask;
  void* dx;
  bool stream;
  const Real* shift;
  const Real* scale;
  const Real* slope;
  const Real* offset;
};

template <class Real>
struct Kernels {
  void (*moments)(const Tile&, const MomentsPass<Real>&);
  void (*normalize)(const Tile&, const NormalizePass<Real>&);
  void (*sums)(const Tile&, const SumsPass<Real>&);
  void (*gradient)(const Tile&, const GradientPass<Real>&);
  int64_t stream_alignment;  // of each run, if `stream` is to be set; 0: it may not be
};

enum class Isa : uint8_t { kPortable, kAvx2, kAvx512 };
std::string_view isa_name(Isa isa);
bool has_isa(Isa isa);
/// The best that this processor has, unless set_isa() chose.
Isa used_isa();
/// For tests and benchmarks: has_isa(isa) must hold.
void set_isa(Isa isa);

/// Kernels of used_isa() for planes or for rows; type is not kF64.
const Kernels<float>& float_kernels(Type type, bool rows);
/// For kF64, of which there are portable ones only: it is for tests of gradients.
const Kernels<double>& double_kernels(bool rows);

// Of one instruction set each; only where has_isa() says so.
const Kernels<float>& portable_kernels(Type type, bool rows);
const Kernels<float>& avx2_kernels(Type type, bool rows);
const Kernels<float>& avx512_kernels(Type type, bool rows);

}  // namespace flatout::nn
