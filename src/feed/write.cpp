#include "feed/write.h"

#include "base/half.h"
#include "feed/simd.h"

namespace flatout::feed {
namespace {

constexpr std::string_view kTypes[] = {"u8", "f32", "f16", "bf16"};

// One value of a channel, converted: the same expression for every type.
template <Type type>
auto convert(uint8_t value, const Normalize& normalize, int channel) {
  if constexpr (type == Type::kU8) {
    return value;
  } else {
    const float scaled = static_cast<float>(value) * normalize.scale[channel];
    const float shifted = scaled + normalize.shift[channel];
    if constexpr (type == Type::kF32) return shifted;
    if constexpr (type == Type::kF16) return to_f16(shifted);
    if constexpr (type == Type::kBf16) return to_bf16(shifted);
  }
}

template <Type type>
void write_typed(const Target& target, int y, const uint8_t* row) {
  using Value = decltype(convert<type>(0, target.normalize, 0));
  const size_t width = static_cast<size_t>(target.width);
  auto* data = static_cast<Value*>(target.data);
  if (target.layout == Layout::kNhwc) {
    Value* out = data + static_cast<size_t>(y) * width * 3;
    for (size_t x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c)
        out[x * 3 + c] = convert<type>(row[x * 4 + c], target.normalize, c);
    }
    return;
  }
  const size_t plane = width * static_cast<size_t>(target.height);
  for (int c = 0; c < 3; ++c) {
    Value* out = data + c * plane + static_cast<size_t>(y) * width;
    for (size_t x = 0; x < width; ++x) out[x] = convert<type>(row[x * 4 + c], target.normalize, c);
  }
}

}  // namespace

size_t type_bytes(Type type) {
  constexpr size_t kBytes[] = {1, 4, 2, 2};
  return kBytes[static_cast<int>(type)];
}

std::string_view type_name(Type type) { return kTypes[static_cast<int>(type)]; }

Normalize Normalize::from_mean_std(const float mean[3], const float std[3]) {
  Normalize out{};
  for (int c = 0; c < 3; ++c) {
    out.scale[c] = static_cast<float>(1.0 / (255.0 * std[c]));
    out.shift[c] = static_cast<float>(-static_cast<double>(mean[c]) / std[c]);
  }
  return out;
}

void write_planes_f32_portable(const uint8_t* row, int pixels, const Normalize& normalize,
                               float* const planes[3]) {
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < pixels; ++i)
      planes[c][i] = convert<Type::kF32>(row[i * 4 + c], normalize, c);
  }
}

void write_row(const Target& target, int y, const uint8_t* row) {
  if (target.type == Type::kF32 && target.layout == Layout::kNchw && has_avx2()) {
    const size_t plane = static_cast<size_t>(target.width) * static_cast<size_t>(target.height);
    float* first = static_cast<float*>(target.data) +
                   static_cast<size_t>(y) * static_cast<size_t>(target.width);
    float* const planes[3] = {first, first + plane, first + 2 * plane};
    return write_planes_f32_avx2(row, target.width, target.normalize, planes);
  }
  switch (target.type) {
    case Type::kU8:
      return write_typed<Type::kU8>(target, y, row);
    case Type::kF32:
      return write_typed<Type::kF32>(target, y, row);
    case Type::kF16:
      return write_typed<Type::kF16>(target, y, row);
    case Type::kBf16:
      return write_typed<Type::kBf16>(target, y, row);
  }
}

}  // namespace flatout::feed
