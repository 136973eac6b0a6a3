#include "feed/mix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"

namespace flatout::feed {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Marsaglia and Tsang, "A simple method for generating gamma variables", 2000.
double gamma(double alpha, SampleRandom& random) {
  // Uniform in (0, 1]: its logarithm is finite.
  const auto above_zero = [&random] { return 1.0 - random.uniform(); };
  if (alpha < 1) {
    const double power = std::pow(above_zero(), 1 / alpha);
    return gamma(alpha + 1, random) * power;
  }
  const double d = alpha - 1.0 / 3.0;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double radius = std::sqrt(-2 * std::log(above_zero()));
    const double normal = radius * std::cos(2 * kPi * random.uniform());
    const double v = std::pow(1 + c * normal, 3);
    const double u = above_zero();
    if (v > 0 && std::log(u) < 0.5 * normal * normal + d - d * v + d * std::log(v)) return d * v;
  }
}

double beta(double alpha, SampleRandom& random) {
  const double a = gamma(alpha, random);
  const double b = gamma(alpha, random);
  return a + b > 0 ? a / (a + b) : 0.5;  // both underflow where alpha is tiny
}

template <class Value, class From, class To>
void blend_into(void* into, const void* other, size_t values, float weight, const From& from,
                const To& to) {
  auto* out = static_cast<Value*>(into);
  const auto* in = static_cast<const Value*>(other);
  for (size_t i = 0; i < values; ++i) {
    const float own = from(out[i]) * weight;
    out[i] = to(own + from(in[i]) * (1 - weight));
  }
}

void blend_samples(Type type, void* into, const void* other, size_t bytes, float weight) {
  const auto itself = [](float v) { return v; };
  if (type == Type::kF32) return blend_into<float>(into, other, bytes / 4, weight, itself, itself);
  if (type == Type::kF16)
    return blend_into<uint16_t>(
        into, other, bytes / 2, weight, [](uint16_t v) { return from_f16(v); },
        [](float v) { return to_f16(v); });
  blend_into<uint16_t>(
      into, other, bytes / 2, weight, [](uint16_t v) { return from_bf16(v); },
      [](float v) { return to_bf16(v); });
}

void copy_box(const Target& sample, const Rect& box, void* into, const void* other) {
  const bool planes = sample.layout == Layout::kNchw;
  const size_t pixel = type_bytes(sample.type) * (planes ? 1 : 3);
  const size_t row = static_cast<size_t>(sample.width) * pixel;
  for (int plane = 0; plane < (planes ? 3 : 1); ++plane) {
    for (int y = box.y; y < box.y + box.height; ++y) {
      const size_t line =
          static_cast<size_t>(plane) * static_cast<size_t>(sample.height) + static_cast<size_t>(y);
      const size_t at = line * row + static_cast<size_t>(box.x) * pixel;
      std::memcpy(static_cast<uint8_t*>(into) + at, static_cast<const uint8_t*>(other) + at,
                  static_cast<size_t>(box.width) * pixel);
    }
  }
}

}  // namespace

Mix choose_mix(const MixOptions& options, int width, int height, SampleRandom& random) {
  Mix mix;
  if (!options.any()) return mix;
  const bool both = options.mixup > 0 && options.cutmix > 0;
  const bool cut = both ? random.below(2) == 1 : options.cutmix > 0;
  mix.kind = cut ? Mix::Kind::kCutmix : Mix::Kind::kMixup;
  const double weight = beta(cut ? options.cutmix : options.mixup, random);
  mix.weight = static_cast<float>(weight);
  if (!cut) return mix;
  // A box of the area 1 - weight around any point; what is outside the picture is lost.
  const double half = 0.5 * std::sqrt(1 - weight);
  const int x = static_cast<int>(random.below(static_cast<uint64_t>(width)));
  const int y = static_cast<int>(random.below(static_cast<uint64_t>(height)));
  const int across = static_cast<int>(half * width), down = static_cast<int>(half * height);
  const int left = std::max(0, x - across), top = std::max(0, y - down);
  mix.box = {left, top, std::min(width, x + across) - left, std::min(height, y + down) - top};
  mix.weight = static_cast<float>(1 - static_cast<double>(mix.box.width) * mix.box.height /
                                          (static_cast<double>(width) * height));
  return mix;
}

// From the last to the first, so that a partner is not mixed itself yet; the last one is the first
// one's, and kept.
void mix_batch(const Mix& mix, const Target& sample, void* data, int count,
               std::vector<uint8_t>& scratch) {
  if (mix.kind == Mix::Kind::kNone || count < 1) return;
  const size_t bytes = sample.bytes();
  auto* const first = static_cast<uint8_t*>(data);
  const uint8_t* last = first + static_cast<size_t>(count - 1) * bytes;
  scratch.assign(last, last + bytes);
  for (int i = count - 1; i >= 0; --i) {
    uint8_t* const own = first + static_cast<size_t>(i) * bytes;
    const uint8_t* const partner = i > 0 ? own - bytes : scratch.data();
    if (mix.kind == Mix::Kind::kMixup) {
      blend_samples(sample.type, own, partner, bytes, mix.weight);
    } else {
      copy_box(sample, mix.box, own, partner);
    }
  }
}

}  // namespace flatout::feed
