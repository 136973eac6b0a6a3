// How batch norm is spread over the blocks of a CUDA device: host logic, without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "nn/batch_norm.h"

namespace flatout::nn::cuda {

constexpr int kThreads = 256;  // of a block
constexpr int kWide = 8;       // values that a thread takes at once: a byte of mask

/// Work is cut into units of up to kWide values: of a plane, or of a row. A block takes `tile`
/// channels (planes: one; rows: kWide for each of `columns` threads, the others take other rows) and
/// one of `splits` ranges of units.
struct Plan {
  bool rows = false;
  bool aligned = false;  // every unit is whole, and 16-byte loads may be used if tensors begin so
  int64_t outer = 0;     // images, or rows
  int64_t channels = 0;
  int64_t length = 0;       // of a plane; rows: 1
  int64_t stride = 0;       // elements from one image or row to the next
  int64_t mask_stride = 0;  // bytes
  int64_t groups = 0;       // units of a plane, or of a row
  int64_t units = 0;        // per tile: images * groups, or rows
  int64_t per_split = 0;
  int tiles = 0;
  int splits = 0;
  int tile = 0;
  int columns = 0;
};

/// Errors: kUnsupported for f64 and for more than 2^31 units a channel.
Result<Plan> make_plan(const Shape& shape, int multiprocessors);

/// Bytes of device memory that a call needs beside its arguments.
size_t workspace_bytes(const Plan& plan);

}  // namespace flatout::nn::cuda
