// Colour jitter, as torchvision's ColorJitter does it to a Pillow image: brightness, contrast,
// saturation and hue, each by a factor, one after the other.
#pragma once

#include <algorithm>
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

/// Pillow's Image.blend: from `base` towards, and beyond, `value`; fractions are cut off.
inline uint8_t blend(int base, int value, float factor) {
  const float mixed = static_cast<float>(base) + factor * static_cast<float>(value - base);
  return static_cast<uint8_t>(std::clamp(mixed, 0.0F, 255.0F));
}

/// On `pixels` pixels, RGBX, 8 bits.
void change_colours(const ColourChange& change, uint8_t* rgbx, size_t pixels);

}  // namespace flatout::feed
