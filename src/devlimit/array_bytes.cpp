#include "devlimit/array_bytes.h"

namespace flatout::devlimit {
namespace {

// Bytes of one element at most. Formats are tables of the driver's (CU_AD_FORMAT_*): plain ones by
// channel; later ones name their channels themselves, and none takes more than 8 bytes.
uint64_t element_bytes(int format, unsigned channels) {
  switch (format) {
    case 0x01:
    case 0x08:
      return channels;
    case 0x02:
    case 0x09:
    case 0x10:
      return uint64_t{2} * channels;
    case 0x03:
    case 0x0a:
    case 0x20:
      return uint64_t{4} * channels;
    default:
      return 8;
  }
}

constexpr uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels) {
  if ((array.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) return 0;
  // 2^24 elements are far beyond what the driver takes in one direction; it refuses them itself.
  constexpr uint64_t kMost = uint64_t{1} << 24;
  if (array.Width > kMost || array.Height > kMost || array.Depth > kMost || levels > 64)
    return UINT64_MAX;
  constexpr uint64_t kPage = 64 << 10;
  uint64_t width = array.Width, height = array.Height, depth = array.Depth, sum = 0;
  for (unsigned level = 0; level < (levels > 0 ? levels : 1); ++level) {
    uint64_t bytes = round_up(width * element_bytes(array.Format, array.NumChannels), 64);
    if (height > 0) bytes *= round_up(height, 8);
    if (__builtin_mul_overflow(bytes, depth > 0 ? depth : 1, &bytes) ||
        __builtin_add_overflow(sum, bytes, &sum))
      return UINT64_MAX;
    const auto half = [](uint64_t n) { return n > 1 ? n / 2 : n; };
    width = half(width);
    height = half(height);
    // Layers and faces, which lie in the depth too, do not become fewer.
    constexpr unsigned kLayeredOrCube = 0x01 | 0x04;
    if ((array.Flags & kLayeredOrCube) == 0) depth = half(depth);
  }
  return sum > UINT64_MAX - kPage ? UINT64_MAX : round_up(sum, kPage);
}

}  // namespace flatout::devlimit
