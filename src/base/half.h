// The two 16-bit floating-point formats, for code without hardware for them. Rounding is to the
// nearest, ties to even; a NaN stays one.
#pragma once

#include <bit>
#include <cstdint>

namespace flatout {

/// bfloat16: the upper half of a float.
inline uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float from_bf16(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

/// IEEE 754 binary16.
inline uint16_t to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude >= 0x47800000) {  // 65536 and more, infinity, NaN
    return static_cast<uint16_t>(sign | (magnitude > 0x7F800000 ? 0x7E00 : 0x7C00));
  }
  if (magnitude < 0x38800000) {
    // Below the smallest normal number, 2^-14: adding 0.5 leaves the rounded digits at the end.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000));
  }
  const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

inline float from_f16(uint16_t value) {
  const uint32_t sign = uint32_t{value & 0x8000U} << 16;
  const uint32_t magnitude = value & 0x7FFFU;
  if (magnitude >= 0x7C00) {  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7F800000 | ((magnitude & 0x3FF) << 13));
  }
  if (magnitude < 0x400) {  // below 2^-14: steps of 2^-24
    const float value_of = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value_of) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000));
}

}  // namespace flatout
