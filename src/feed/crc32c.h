// CRC-32C (Castagnoli), as TFRecord has it: by the processor's instruction where it has one.
#pragma once

#include <cstdint>
#include <span>

namespace flatout::feed {

uint32_t crc32c(std::span<const uint8_t> data);

/// Without the instruction: what the fast one is checked against.
uint32_t crc32c_portable(std::span<const uint8_t> data);

}  // namespace flatout::feed
