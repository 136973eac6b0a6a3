// Pictures of simple shapes, generated; and a small compressed image format of our own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flatout::train {

inline constexpr int kClasses = 4;  // circle, square, triangle, cross
inline constexpr int kSide = 32;    // what the network eats: 32 x 32, 3 colours

struct Image {
  int side = 0;  // square
  int label = 0;
  std::vector<uint8_t> rgb;  // side * side * 3
};

/// The picture number `index` of a data set: a filled shape of random place, size and colours on a
/// noisy ground. Equal seeds give equal pictures.
Image draw_image(uint64_t seed, uint64_t index, int side = kSide);

/// "FLI1", side, label, then the rows as differences from the row above, deflated.
std::string encode_image(const Image& image);
/// Errors: kBadInput.
Result<Image> decode_image(std::string_view bytes);
/// Mean of the pixels that fall onto one (box filter). image.side is a multiple of `side`.
Image scale_down(const Image& image, int side);

}  // namespace flatout::train
