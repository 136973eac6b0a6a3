// The last stage: a finished 8-bit row becomes a row of the batch, in its type and layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flatout::feed {

enum class Type : uint8_t { kU8, kF32, kF16, kBf16 };
enum class Layout : uint8_t { kNchw, kNhwc };

size_t type_bytes(Type type);
std::string_view type_name(Type type);  // "u8", "f32", "f16", "bf16"

/// value * scale + shift, by channel, of the 8-bit value; one multiplication and one addition, not
/// fused, so that every processor gives the same bits. Not applied to u8.
struct Normalize {
  float scale[3];
  float shift[3];
  /// (value / 255 - mean) / std, as torchvision's ToTensor and Normalize.
  static Normalize from_mean_std(const float mean[3], const float std[3]);
};

/// Where a picture goes: [3, height, width] or [height, width, 3], dense.
struct Target {
  void* data = nullptr;
  Type type = Type::kF32;
  Layout layout = Layout::kNchw;
  int width = 0;
  int height = 0;
  Normalize normalize{};

  size_t bytes() const { return size_t(width) * size_t(height) * 3 * type_bytes(type); }
};

/// Writes row `y` from `row`, RGBX of target.width pixels.
void write_row(const Target& target, int y, const uint8_t* row);

/// f32 planes without SIMD: what the fast one is checked against.
void write_planes_f32_portable(const uint8_t* row, int pixels, const Normalize& normalize,
                               float* const planes[3]);

}  // namespace flatout::feed
