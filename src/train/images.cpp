#include "train/images.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/bytes.h"
#include "train/random.h"

namespace flatout::train {
namespace {

constexpr int kMaxSide = 8192;

struct Shape {
  int label;
  float x, y, radius, turn;
};

bool inside(const Shape& s, float x, float y) {
  const float dx = x - s.x;
  const float dy = y - s.y;
  const float c = std::cos(s.turn);
  const float d = std::sin(s.turn);
  const float u = (dx * c + dy * d) / s.radius;
  const float v = (dy * c - dx * d) / s.radius;
  switch (s.label) {
    case 0:
      return u * u + v * v < 0.85f;
    case 1:
      return std::max(std::fabs(u), std::fabs(v)) < 0.8f;
    case 2:
      return v > -0.6f && v < 1.0f - 1.8f * std::fabs(u);
    default:
      return (std::fabs(u) < 0.26f && std::fabs(v) < 1.0f) ||
             (std::fabs(v) < 0.26f && std::fabs(u) < 1.0f);
  }
}

}  // namespace

Image draw_image(uint64_t seed, uint64_t index, int side) {
  Random random(seed, index);
  Image image;
  image.side = side;
  image.label = static_cast<int>(random.below(kClasses));
  const float size = static_cast<float>(side);
  const Shape shape{image.label, size * random.range(0.38f, 0.62f),
                    size * random.range(0.38f, 0.62f), size * random.range(0.24f, 0.36f),
                    random.range(-0.25f, 0.25f)};
  std::array<float, 3> ground{};
  std::array<float, 3> ink{};
  for (size_t c = 0; c < 3; ++c) {
    ground[c] = random.range(20, 110);
    ink[c] = random.range(140, 240);
  }
  image.rgb.resize(static_cast<size_t>(side) * static_cast<size_t>(side) * 3);
  uint8_t* out = image.rgb.data();
  for (int y = 0; y < side; ++y) {
    for (int x = 0; x < side; ++x) {
      const std::array<float, 3>& colour =
          inside(shape, static_cast<float>(x) + 0.5f, static_cast<float>(y) + 0.5f) ? ink : ground;
      for (size_t c = 0; c < 3; ++c) {
        const float value = colour[c] + random.range(-14, 14);
        *out++ = static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f));
      }
    }
  }
  return image;
}

std::string encode_image(const Image& image) {
  std::string out = "FLI1";
  put(out, static_cast<uint32_t>(image.side));
  put(out, static_cast<uint32_t>(image.label));
  const size_t row = static_cast<size_t>(image.side) * 3;
  std::vector<uint8_t> filtered(image.rgb.size());
  for (size_t i = 0; i < filtered.size(); ++i) {
    filtered[i] = static_cast<uint8_t>(image.rgb[i] - (i >= row ? image.rgb[i - row] : 0));
  }
  uLongf size = compressBound(filtered.size());
  const size_t head = out.size();
  out.resize(head + size);
  FLATOUT_CHECK(compress2(reinterpret_cast<Bytef*>(out.data() + head), &size, filtered.data(),
                          filtered.size(), 1) == Z_OK);
  out.resize(head + size);
  return out;
}

// The loader's work per sample; stands in stacks by this name.
__attribute__((noinline)) Result<Image> decode_image(std::string_view bytes) {
  ByteReader reader(bytes);
  const std::string_view magic = reader.take(4);
  Image image;
  const uint32_t side = reader.get<uint32_t>();
  const uint32_t label = reader.get<uint32_t>();
  if (!reader.ok() || magic != "FLI1" || side == 0 || side > kMaxSide || label >= kClasses) {
    return Error{Code::kBadInput, "not an image of ours", ""};
  }
  image.side = static_cast<int>(side);
  image.label = static_cast<int>(label);
  image.rgb.resize(size_t{side} * side * 3);
  uLongf size = image.rgb.size();
  const std::string_view body = reader.take(reader.left());
  if (uncompress(image.rgb.data(), &size, reinterpret_cast<const Bytef*>(body.data()),
                 body.size()) != Z_OK ||
      size != image.rgb.size()) {
    return Error{Code::kBadInput, "damaged image", ""};
  }
  const size_t row = size_t{side} * 3;
  for (size_t i = row; i < image.rgb.size(); ++i) {
    image.rgb[i] = static_cast<uint8_t>(image.rgb[i] + image.rgb[i - row]);
  }
  return image;
}

Image scale_down(const Image& image, int side) {
  FLATOUT_CHECK(side > 0 && image.side % side == 0);
  const int factor = image.side / side;
  if (factor == 1) return image;
  Image out;
  out.side = side;
  out.label = image.label;
  out.rgb.resize(static_cast<size_t>(side) * static_cast<size_t>(side) * 3);
  const size_t row = static_cast<size_t>(image.side) * 3;
  const uint32_t area = static_cast<uint32_t>(factor * factor);
  for (int y = 0; y < side; ++y) {
    for (int x = 0; x < side; ++x) {
      std::array<uint32_t, 3> sum{};
      for (int v = 0; v < factor; ++v) {
        const uint8_t* in = image.rgb.data() + static_cast<size_t>(y * factor + v) * row +
                            static_cast<size_t>(x * factor) * 3;
        for (int u = 0; u < factor * 3; ++u) sum[static_cast<size_t>(u % 3)] += in[u];
      }
      for (size_t c = 0; c < 3; ++c) {
        out.rgb[static_cast<size_t>(y * side + x) * 3 + c] = static_cast<uint8_t>(sum[c] / area);
      }
    }
  }
  return out;
}

}  // namespace flatout::train
