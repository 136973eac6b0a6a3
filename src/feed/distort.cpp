#include "feed/distort.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "feed/colours.h"

namespace flatout::feed {
namespace {

using Kind = Distortion::Kind;
using Table = std::array<std::array<uint8_t, 256>, 3>;

// x' = a x + b y + c and y' = d x + e y + f: from the result to the picture.
struct Affine {
  double a, b, c, d, e, f;
};

size_t offset_of(int x, int y, int width) {
  return (static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)) * 4;
}

// Pillow's affine_fixed: 16.16 fixed point, sampled at the pixels' centres. Its ScaleAffine, which
// it takes for a translation, comes to the same there: whole pixels.
void transform(const Affine& m, uint8_t* rgbx, int width, int height,
               std::vector<uint8_t>& scratch) {
  const size_t bytes = static_cast<size_t>(width) * static_cast<size_t>(height) * 4;
  scratch.resize(bytes);
  std::memcpy(scratch.data(), rgbx, bytes);
  const auto fixed = [](double v) { return static_cast<int64_t>(std::floor(v * 65536.0 + 0.5)); };
  const int64_t right_x = fixed(m.a), right_y = fixed(m.d);
  const int64_t down_x = fixed(m.b), down_y = fixed(m.e);
  int64_t row_x = fixed(m.c + m.a * 0.5 + m.b * 0.5);
  int64_t row_y = fixed(m.f + m.d * 0.5 + m.e * 0.5);
  for (int y = 0; y < height; ++y, row_x += down_x, row_y += down_y) {
    int64_t at_x = row_x, at_y = row_y;
    for (int x = 0; x < width; ++x, at_x += right_x, at_y += right_y) {
      const int64_t from_x = at_x >> 16, from_y = at_y >> 16;
      uint8_t* out = rgbx + offset_of(x, y, width);
      if (from_x < 0 || from_x >= width || from_y < 0 || from_y >= height) {
        std::memset(out, 0, 4);
      } else {
        std::memcpy(
            out,
            scratch.data() + offset_of(static_cast<int>(from_x), static_cast<int>(from_y), width),
            4);
      }
    }
  }
}

Affine rotation(double degrees, int width, int height) {
  const double angle = -degrees * 3.14159265358979323846 / 180;
  const double x = width / 2.0, y = height / 2.0;
  Affine m{std::cos(angle), std::sin(angle), 0, -std::sin(angle), std::cos(angle), 0};
  m.c = m.a * -x + m.b * -y + x;
  m.f = m.d * -x + m.e * -y + y;
  return m;
}

// From Pillow's ImageFilter.SMOOTH towards and beyond the picture. Pixels at the edge are not
// smoothed. The sum over 13 is never a half, so the rounding is any rounding.
void sharpen(float factor, uint8_t* rgbx, int width, int height, std::vector<uint8_t>& scratch) {
  if (width < 3 || height < 3) return;
  const size_t stride = static_cast<size_t>(width) * 4;
  const size_t bytes = stride * static_cast<size_t>(height);
  scratch.resize(bytes);
  std::memcpy(scratch.data(), rgbx, bytes);
  for (int y = 1; y + 1 < height; ++y) {
    for (int x = 1; x + 1 < width; ++x) {
      const uint8_t* middle = scratch.data() + offset_of(x, y, width);
      uint8_t* out = rgbx + offset_of(x, y, width);
      for (size_t c = 0; c < 3; ++c) {
        int sum = 4 * middle[c];
        for (const uint8_t* row = middle - stride; row <= middle + stride; row += stride)
          sum += row[c - 4] + row[c] + row[c + 4];
        const int smooth = (2 * sum + 13) / 26;
        out[c] = blend(smooth, middle[c], factor);
      }
    }
  }
}

void look_up(const Table& table, uint8_t* rgbx, size_t pixels) {
  for (size_t i = 0; i < pixels; ++i) {
    for (size_t c = 0; c < 3; ++c) rgbx[i * 4 + c] = table[c][rgbx[i * 4 + c]];
  }
}

std::array<std::array<uint32_t, 256>, 3> histogram(const uint8_t* rgbx, size_t pixels) {
  std::array<std::array<uint32_t, 256>, 3> out{};
  for (size_t i = 0; i < pixels; ++i) {
    for (size_t c = 0; c < 3; ++c) ++out[c][rgbx[i * 4 + c]];
  }
  return out;
}

template <class F>
Table table_of(const F& value) {
  Table out{};
  for (auto& channel : out) {
    for (int i = 0; i < 256; ++i) channel[static_cast<size_t>(i)] = static_cast<uint8_t>(value(i));
  }
  return out;
}

// ImageOps.autocontrast without a cut-off.
void auto_contrast(uint8_t* rgbx, size_t pixels) {
  const auto counts = histogram(rgbx, pixels);
  Table table = table_of([](int i) { return i; });
  for (size_t c = 0; c < 3; ++c) {
    int low = 0, high = 255;
    while (low < 255 && counts[c][static_cast<size_t>(low)] == 0) ++low;
    while (high > 0 && counts[c][static_cast<size_t>(high)] == 0) --high;
    if (high <= low) continue;
    const double scale = 255.0 / (high - low);
    const double offset = -low * scale;
    for (int i = 0; i < 256; ++i)
      table[c][static_cast<size_t>(i)] =
          static_cast<uint8_t>(std::clamp(static_cast<int>(i * scale + offset), 0, 255));
  }
  look_up(table, rgbx, pixels);
}

// ImageOps.equalize.
void equalize(uint8_t* rgbx, size_t pixels) {
  const auto counts = histogram(rgbx, pixels);
  Table table = table_of([](int i) { return i; });
  for (size_t c = 0; c < 3; ++c) {
    size_t last = 255;
    while (last > 0 && counts[c][last] == 0) --last;
    const uint64_t step = (pixels - counts[c][last]) / 255;
    if (step == 0) continue;
    uint64_t n = step / 2;
    for (size_t i = 0; i < 256; ++i) {
      table[c][i] = static_cast<uint8_t>(std::min<uint64_t>(n / step, 255));
      n += counts[c][i];
    }
  }
  look_up(table, rgbx, pixels);
}

void change_colour(ColourChange::Kind kind, double amount, uint8_t* rgbx, size_t pixels) {
  ColourChange change;
  change.steps[0] = {kind, static_cast<float>(1.0 + amount)};
  change.count = 1;
  change_colours(change, rgbx, pixels);
}

void apply(const Distortion& step, uint8_t* rgbx, int width, int height,
           std::vector<uint8_t>& scratch) {
  const size_t pixels = static_cast<size_t>(width) * static_cast<size_t>(height);
  const double amount = step.amount;
  switch (step.kind) {
    case Kind::kNone:
      return;
    case Kind::kShearX:
      return transform({1, amount, 0, 0, 1, 0}, rgbx, width, height, scratch);
    case Kind::kShearY:
      return transform({1, 0, 0, amount, 1, 0}, rgbx, width, height, scratch);
    case Kind::kTranslateX:
      return transform({1, 0, -std::trunc(amount), 0, 1, 0}, rgbx, width, height, scratch);
    case Kind::kTranslateY:
      return transform({1, 0, 0, 0, 1, -std::trunc(amount)}, rgbx, width, height, scratch);
    case Kind::kRotate:
      return transform(rotation(amount, width, height), rgbx, width, height, scratch);
    case Kind::kBrightness:
      return change_colour(ColourChange::Kind::kBrightness, amount, rgbx, pixels);
    case Kind::kSaturation:
      return change_colour(ColourChange::Kind::kSaturation, amount, rgbx, pixels);
    case Kind::kContrast:
      return change_colour(ColourChange::Kind::kContrast, amount, rgbx, pixels);
    case Kind::kSharpness:
      return sharpen(static_cast<float>(1.0 + amount), rgbx, width, height, scratch);
    case Kind::kPosterize: {
      const int mask = ~((1 << (8 - static_cast<int>(amount))) - 1) & 0xFF;
      return look_up(table_of([mask](int i) { return i & mask; }), rgbx, pixels);
    }
    case Kind::kSolarize:
      return look_up(table_of([amount](int i) { return i < amount ? i : 255 - i; }), rgbx, pixels);
    case Kind::kAutoContrast:
      return auto_contrast(rgbx, pixels);
    case Kind::kEqualize:
      return equalize(rgbx, pixels);
  }
}

}  // namespace

double distortion_strength(Kind kind, int magnitude, int width, int height, bool& has_sign) {
  const double share = magnitude / 30.0;
  has_sign = true;
  switch (kind) {
    case Kind::kShearX:
    case Kind::kShearY:
      return 0.3 * share;
    case Kind::kTranslateX:
      return 150.0 / 331.0 * width * share;
    case Kind::kTranslateY:
      return 150.0 / 331.0 * height * share;
    case Kind::kRotate:
      return 30.0 * share;
    case Kind::kBrightness:
    case Kind::kSaturation:
    case Kind::kContrast:
    case Kind::kSharpness:
      return 0.9 * share;
    default:
      break;
  }
  has_sign = false;
  if (kind == Kind::kPosterize) return 8 - std::nearbyint(magnitude / (30.0 / 4));
  if (kind == Kind::kSolarize) return 8.5 * (30 - magnitude);
  return 0;
}

void distort(const Distortions& distortions, uint8_t* rgbx, int width, int height,
             std::vector<uint8_t>& scratch) {
  for (int i = 0; i < distortions.count; ++i)
    apply(distortions.steps[static_cast<size_t>(i)], rgbx, width, height, scratch);
}

}  // namespace flatout::feed
