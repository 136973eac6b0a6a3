#include "nn/geometry.h"

namespace flatout::nn {
namespace {

constexpr int64_t kChunks = 16;        // at most
constexpr int64_t kRowsOfChunk = 128;  // at least
constexpr int64_t kShortPlane = 32;    // of such planes a chunk has kValuesOfChunk values a channel
constexpr int64_t kValuesOfChunk = 512;   // at least: they are summed up over the images
constexpr int64_t kSample = 16;           // values of a plane, for a guess
constexpr int64_t kPageBytes = 4096;      // of planes beside each other in a block, at least
constexpr int64_t kBlockBytes = 1 << 20;  // of a block's tensors together: what a core may cache

}  // namespace

Geometry::Geometry(const Shape& shape, int arrays, int threads)
    : size_(static_cast<int64_t>(size_of(shape.type))), channels_(shape.c) {
  const int64_t plane = shape.h * shape.w;
  // With one channel, and with one value a plane, both layouts are the same bytes.
  rows_ = shape.c > 1 && (shape.layout == Layout::kNhwc || plane == 1);
  outer_ = rows_ ? shape.n * plane : plane == 1 ? 1 : shape.n;
  length_ = rows_ ? 1 : plane == 1 ? shape.n : plane;
  stride_ = channels_ * length_;
  mask_stride_ = rows_ ? mask_run(channels_) : channels_ * mask_run(length_);
  const int64_t images = length_ <= kShortPlane ? kValuesOfChunk / length_ : 1;
  chunk_ = std::max((outer_ + kChunks - 1) / kChunks, rows_ ? kRowsOfChunk : images);

  // Rows are never cut: memory is slow to read, and slower to write, by parts of its pages, by more
  // than a second pass out of the cache would save.
  if (rows_) {
    block_ = channels_;
    return;
  }
  const int64_t least = std::max<int64_t>(kPageBytes / (length_ * size_), 1);
  const int64_t fits =
      std::max(kBlockBytes / (outer_ * length_ * size_ * arrays) / least * least, least);
  // As many blocks for each thread.
  const int64_t wanted = ((channels_ + fits - 1) / fits + threads - 1) / threads * threads;
  const int64_t even = (channels_ + wanted - 1) / wanted;
  block_ = (even + least - 1) / least * least;
}

Geometry::Part Geometry::part(Range channels, int64_t chunk) const {
  const int64_t first = chunk * chunk_;
  Part part;
  part.tile = {std::min(chunk_, outer_ - first), stride_, channels.size(), length_, mask_stride_};
  part.element = first * stride_ + channels.begin * length_;
  part.mask =
      first * mask_stride_ + (rows_ ? channels.begin / 8 : channels.begin * mask_run(length_));
  return part;
}

Geometry::Part Geometry::sample(Range channels) const {
  Part some = part(channels, 0);
  some.tile.outer = rows_ ? std::min<int64_t>(some.tile.outer, 8) : 1;
  some.tile.length = std::min(some.tile.length, kSample);
  return some;
}

bool Geometry::samples_together() const { return rows_ || length_ <= kSample; }

bool Geometry::aligned(int64_t alignment) const {
  return (rows_ ? stride_ : length_) * size_ % alignment == 0;
}

}  // namespace flatout::nn
