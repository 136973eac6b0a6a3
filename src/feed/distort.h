// The operations of RandAugment (arXiv 1909.13719) on a finished 8-bit picture, as torchvision's
// RandAugment does them to a Pillow image: nearest neighbour, black where nothing is known.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace flatout::feed {

struct Distortion {
  enum class Kind : uint8_t {
    kNone,
    kShearX,
    kShearY,
    kTranslateX,
    kTranslateY,
    kRotate,
    kBrightness,
    kSaturation,
    kContrast,
    kSharpness,
    kPosterize,
    kSolarize,
    kAutoContrast,
    kEqualize,
  };
  static constexpr int kKinds = 14;
  Kind kind = Kind::kNone;
  /// Shear: tangent. Translate: pixels. Rotate: degrees. Brightness to sharpness: what is added to
  /// the factor 1. Posterize: bits that stay. Solarize: the first value that is inverted.
  double amount = 0;
};

constexpr int kMostDistortions = 8;

struct Distortions {
  std::array<Distortion, kMostDistortions> steps{};
  int count = 0;
};

/// The strength of `kind` at `magnitude` of 31 equal steps (0 to 30), for a picture of this size,
/// without its sign. `has_sign`: half of the time it is to be negated.
double distortion_strength(Distortion::Kind kind, int magnitude, int width, int height,
                           bool& has_sign);

/// `rgbx`: width * height pixels of 4 bytes, the fourth of which means nothing. `scratch` is memory
/// to be used again.
void distort(const Distortions& distortions, uint8_t* rgbx, int width, int height,
             std::vector<uint8_t>& scratch);

}  // namespace flatout::feed
