// Colour jitter, as torchvision's ColorJitter does it to a Pillow image: brightness, contrast,
// saturation and hue, each by a factor, one after the other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace flatout::feed {

struct ColourChange {
  enum class Kind : uint8_t { kBrightness, kContrast, kSaturation, kHue };
  struct Step {
    Kind kind = Kind::kBrightness;
    float factor = 1;  // of hue: how far round, -0.5 to 0.5
  };
  std::array<Step, 4> steps{};
  int count = 0;
};

/// On `pixels` pixels, RGBX, 8 bits.
void change_colours(const ColourChange& change, uint8_t* rgbx, size_t pixels);

}  // namespace flatout::feed
