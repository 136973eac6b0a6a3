// How batch norm is spread over the blocks of a CUDA device: host logic, without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "nn/batch_norm.h"

namespace flatout::nn::cuda {

constexpr int kThreads = 256;  // of a block
constexpr int kWarp = 32;
constexpr int kMaxTile = 64;  // channels of a tile

/// What is known of a device.
struct Device {
  int multiprocessors = 0;
  size_t shared_bytes = 0;  // of a multiprocessor
};

/// Division of numbers below 2^31 by one that is known beforehand, without dividing.
/// Source: Granlund, Montgomery 1994.
struct Divisor {
  uint32_t value = 1;
  uint32_t factor = 0;
  uint32_t shift = 0;
};
Divisor divisor_of(uint32_t value);

/// A tile is a channel (planes), or as many channels side by side as `columns` lanes hold (rows).
/// It belongs to a team of `members` blocks, each of which has a `share` of its units and keeps
/// what it read of them in shared memory until the team knows the tile's sums. Teams take tiles in
/// turns; all blocks run at once.
///
/// A unit is what a lane takes at once: `wide` values of a plane; or of a row, then counted in
/// rows.
struct Plan {
  bool rows = false;
  int wide = 0;  // values: 16 bytes of them (f32: 4, else 8), or 4, or 1
  int64_t channels = 0;
  int64_t outer = 0;        // images, or rows
  int64_t length = 0;       // of a plane; rows: 1
  int64_t stride = 0;       // elements from one image or row to the next
  int64_t mask_stride = 0;  // bytes
  uint32_t groups = 0;      // bytes of mask of a plane, or of a row
  Divisor lanes;            // planes: units of a plane, 8 / wide for each byte of mask
  int columns = 1;
  int tile = 1;        // channels
  int tiles = 0;       // in all
  uint32_t units = 0;  // of a tile
  int members = 1;
  int teams = 0;
  uint32_t share = 0;  // units
  uint32_t turns = 0;  // of a block's threads over its share
  uint32_t kept = 0;   // of them, the first, whose data stay
  size_t shared_bytes = 0;
  size_t most_shared_bytes = 0;  // of any plan with the same `rows` for the device
};

/// Blocks of a multiprocessor: each has its part of the shared memory.
constexpr int blocks_at_once(bool rows) { return rows ? 2 : 4; }

/// What to choose instead of what make_plan() would, for measurements.
struct Choice {
  int members = 0;
  int tile_bytes = 0;
};

/// `tensors` of a call are read twice and kept in between: x (forward), x and dy (backward).
/// Errors: kUnsupported for f64 and for more than 2^31 units a channel.
Result<Plan> make_plan(const Shape& shape, const Device& device, int tensors, bool aligned,
                       const Choice& choice = {});

/// Where things lie in a block's shared memory: three doubles for each warp and channel of the
/// tile, two and four floats a channel, then what is kept.
size_t scratch_bytes(const Plan& plan);

/// Bytes of device memory that a call needs beside its arguments, which must be zero when it
/// begins: the letters between the blocks of teams.
size_t workspace_bytes(const Plan& plan);
/// Enough for all plans of this device.
size_t workspace_bytes(const Device& device);

}  // namespace flatout::nn::cuda
