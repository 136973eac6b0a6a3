// How a tensor is cut: into blocks of channels, whose data should stay in a cache between the two
// passes, and chunks of images or rows. Sums are kept by chunk and added in their order. Chunks
// depend on the shape alone, so that results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "nn/batch_norm.h"
#include "nn/kernels.h"

namespace flatout::nn {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

class Geometry {
 public:
  /// `arrays`: how many tensors the two passes read.
  Geometry(const Shape& shape, int arrays, int threads);

  bool rows() const { return rows_; }
  int64_t channels() const { return channels_; }
  int64_t per_channel() const { return outer_ * length_; }
  size_t mask_bytes() const { return static_cast<size_t>(outer_ * mask_stride_); }

  int64_t blocks() const { return (channels_ + block_ - 1) / block_; }
  Range block(int64_t i) const { return {i * block_, std::min((i + 1) * block_, channels_)}; }
  int64_t chunks() const { return (outer_ + chunk_ - 1) / chunk_; }

  /// Where a block's part in a chunk begins, in elements and in bytes of mask.
  struct Part {
    Tile tile;
    int64_t element = 0;
    int64_t mask = 0;
  };
  Part part(Range channels, int64_t chunk) const;
  /// A few values of each channel; of one channel only, unless samples_together().
  Part sample(Range channels) const;
  /// Whether a channel's sample ends where the next one's begins.
  bool samples_together() const;
  /// Element j of channel c, j < per_channel().
  int64_t element(int64_t c, int64_t j) const {
    return j / length_ * stride_ + c * length_ + j % length_;
  }

  /// Whether each run of each tile begins at a multiple of `alignment` if the tensor does.
  bool aligned(int64_t alignment) const;

 private:
  bool rows_;
  int64_t size_;  // of an element, in bytes
  int64_t outer_, stride_, channels_, length_, mask_stride_;
  int64_t block_, chunk_;
};

}  // namespace flatout::nn
