#include "feed/colours.h"

#include <algorithm>
#include <cmath>

namespace flatout::feed {
namespace {

// Pillow's convert("L"), ITU-R 601-2 in 16-bit fixed point.
int grey_of(const uint8_t* pixel) {
  return (pixel[0] * 19595 + pixel[1] * 38470 + pixel[2] * 7471 + 0x8000) >> 16;
}

void brightness(float factor, uint8_t* rgbx, size_t pixels) {
  std::array<uint8_t, 256> table{};
  for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = blend(0, i, factor);
  for (size_t i = 0; i < pixels * 4; ++i) rgbx[i] = table[rgbx[i]];
}

void contrast(float factor, uint8_t* rgbx, size_t pixels) {
  uint64_t sum = 0;
  for (size_t i = 0; i < pixels; ++i) sum += static_cast<uint64_t>(grey_of(rgbx + i * 4));
  const int mean =
      static_cast<int>(std::lround(static_cast<double>(sum) / static_cast<double>(pixels)));
  std::array<uint8_t, 256> table{};
  for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = blend(mean, i, factor);
  for (size_t i = 0; i < pixels * 4; ++i) rgbx[i] = table[rgbx[i]];
}

void saturation(float factor, uint8_t* rgbx, size_t pixels) {
  for (uint8_t* pixel = rgbx; pixel < rgbx + pixels * 4; pixel += 4) {
    const int grey = grey_of(pixel);
    for (int c = 0; c < 3; ++c) pixel[c] = blend(grey, pixel[c], factor);
  }
}

// Through Pillow's 8-bit HSV and back; each way loses what its 8 bits cannot hold, as there.
void turn_hue(uint8_t* pixel, uint8_t turn) {
  const int r = pixel[0], g = pixel[1], b = pixel[2];
  const int most = std::max({r, g, b}), least = std::min({r, g, b});
  if (most == least) return;
  const float range = static_cast<float>(most - least);
  const float red = static_cast<float>(most - r) / range;
  const float green = static_cast<float>(most - g) / range;
  const float blue = static_cast<float>(most - b) / range;
  float sixths = blue - green;
  if (r != most) sixths = static_cast<float>(g == most ? 2.0 + red - blue : 4.0 + green - red);
  const float around = static_cast<float>(std::fmod(sixths / 6.0 + 1.0, 1.0));
  const uint8_t hue = static_cast<uint8_t>(static_cast<int>(around * 255.0) + turn);
  const int strength = static_cast<int>(range / static_cast<float>(most) * 255.0);
  if (strength == 0) {
    pixel[0] = pixel[1] = pixel[2] = static_cast<uint8_t>(most);
    return;
  }
  const float place = static_cast<float>(hue * 6.0 / 255.0);
  const int sector = static_cast<int>(place);
  const float rest = place - static_cast<float>(sector);
  const float share = static_cast<float>(strength / 255.0);
  const auto scaled = [most](double by) {
    return static_cast<uint8_t>(std::clamp(std::round(most * by), 0.0, 255.0));
  };
  const uint8_t v = static_cast<uint8_t>(most);
  const uint8_t p = scaled(1.0 - share);
  const uint8_t q = scaled(1.0 - share * rest);
  const uint8_t t = scaled(1.0 - share * (1.0 - rest));
  const uint8_t sectors[6][3] = {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}};
  std::copy_n(sectors[sector % 6], 3, pixel);
}

}  // namespace

void change_colours(const ColourChange& change, uint8_t* rgbx, size_t pixels) {
  for (int i = 0; i < change.count; ++i) {
    const ColourChange::Step& step = change.steps[static_cast<size_t>(i)];
    switch (step.kind) {
      case ColourChange::Kind::kBrightness:
        brightness(step.factor, rgbx, pixels);
        break;
      case ColourChange::Kind::kContrast:
        contrast(step.factor, rgbx, pixels);
        break;
      case ColourChange::Kind::kSaturation:
        saturation(step.factor, rgbx, pixels);
        break;
      case ColourChange::Kind::kHue: {
        const auto turn = static_cast<uint8_t>(static_cast<int>(step.factor * 255));
        for (size_t k = 0; k < pixels; ++k) turn_hue(rgbx + k * 4, turn);
        break;
      }
    }
  }
}

}  // namespace flatout::feed
