#include "feed/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flatout::feed {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) * 0x82F63B78U);
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(std::span<const uint8_t> data) {
  uint64_t crc = 0xFFFFFFFF;
  size_t i = 0;
  for (; i + 8 <= data.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, data.data() + i, sizeof word);
    crc = _mm_crc32_u64(crc, word);
  }
  uint32_t rest = static_cast<uint32_t>(crc);
  for (; i < data.size(); ++i) rest = _mm_crc32_u8(rest, data[i]);
  return ~rest;
}
#endif

}  // namespace

uint32_t crc32c_portable(std::span<const uint8_t> data) {
  uint32_t crc = 0xFFFFFFFF;
  for (const uint8_t byte : data) crc = (crc >> 8) ^ kTable[(crc ^ byte) & 0xFF];
  return ~crc;
}

uint32_t crc32c(std::span<const uint8_t> data) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return crc32c_sse42(data);
#endif
  return crc32c_portable(data);
}

}  // namespace flatout::feed
