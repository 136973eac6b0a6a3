// How a picture is to be turned before it is shown: the orientation in its EXIF data.
#pragma once

#include <cstdint>
#include <span>

#include "feed/picture.h"

namespace flatout::feed {

/// 1 to 8, from a JPEG's, PNG's or WebP's EXIF data; 1 where they say nothing, or nothing valid.
int exif_orientation(std::span<const uint8_t> picture);

/// The way from a picture as it is seen to the picture as it is stored.
class Turn {
 public:
  explicit Turn(int orientation = 1) : orientation_(orientation) {}

  /// Rows and columns change places. Mirroring is told of the stored picture.
  bool transposes() const { return orientation_ >= 5; }
  bool mirrors_x() const {
    return orientation_ == 2 || orientation_ == 3 || orientation_ == 7 || orientation_ == 8;
  }
  bool mirrors_y() const {
    return orientation_ == 3 || orientation_ == 4 || orientation_ == 6 || orientation_ == 7;
  }

  /// From stored to seen and back.
  Size seen(Size size) const { return transposes() ? Size{size.height, size.width} : size; }
  /// A part of the seen picture, in the stored one, which is of `size`.
  Rect stored(const Rect& part, Size size) const {
    Rect out = transposes() ? Rect{part.y, part.x, part.height, part.width} : part;
    if (mirrors_x()) out.x = size.width - out.x - out.width;
    if (mirrors_y()) out.y = size.height - out.y - out.height;
    return out;
  }

 private:
  int orientation_;
};

}  // namespace flatout::feed
