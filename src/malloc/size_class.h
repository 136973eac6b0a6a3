// Size classes: 8, 16, then steps of 16 to 128, then eight for each doubling up to 64 KiB, so that
// above 128 bytes at most one byte in nine is lost; and 1008 for the popular 1000.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace flatout::malloc {

// A page is ours, 16 KiB; the kernel's is an OS page. A huge page is the kernel's, 2 MiB.
constexpr unsigned kPageShift = 14;
constexpr size_t kPageBytes = size_t{1} << kPageShift;
constexpr size_t kHugeBytes = size_t{2} << 20;
constexpr uint32_t kHugePages = kHugeBytes >> kPageShift;  // pages in a huge page

constexpr size_t kMaxSmall = 65536;
constexpr size_t kFineLimit = 1024;  // up to here the class is looked up in steps of 8 bytes
constexpr unsigned kClasses = 82;

/// From here on a freed block is better given again while it is in the processor's caches.
constexpr uint32_t kBig = 4096;
/// Blocks of whole OS pages all begin at the same place of a page, so in few sets of the first
/// caches: their links lie at changing places in them (slab colouring).
constexpr uint32_t kColouredBytes = 4096;
constexpr bool is_coloured(size_t block_bytes) { return block_bytes % kColouredBytes == 0; }

struct ClassTable {
  std::array<uint32_t, kClasses> bytes{};
  std::array<int16_t, kClasses> start_mask{};  // what is left of a link's address is the block's
  std::array<uint8_t, kFineLimit / 8 + 1> fine{};
  std::array<uint8_t, kMaxSmall / 128 + 1> coarse{};
};

constexpr ClassTable make_class_table() {
  ClassTable table;
  unsigned n = 0;
  table.bytes[n++] = 8;
  for (uint32_t size = 16; size <= 128; size += 16) table.bytes[n++] = size;
  for (uint32_t low = 128; low < kMaxSmall; low *= 2) {
    for (uint32_t i = 1; i <= 8; ++i) {
      if (low == 512 && i == 8) table.bytes[n++] = 1008;
      table.bytes[n++] = low + low / 8 * i;
    }
  }
  for (unsigned c = 0; c < kClasses; ++c) {
    table.start_mask[c] = is_coloured(table.bytes[c]) ? -int16_t{kColouredBytes} : -1;
  }
  for (unsigned i = 0, c = 0; i < table.fine.size(); ++i) {
    while (table.bytes[c] < i * 8) ++c;
    table.fine[i] = static_cast<uint8_t>(c);
  }
  for (unsigned i = 0, c = 0; i < table.coarse.size(); ++i) {
    while (table.bytes[c] < i * 128) ++c;
    table.coarse[i] = static_cast<uint8_t>(c);
  }
  return table;
}

inline constexpr ClassTable kClassTable = make_class_table();
static_assert(kClassTable.bytes[kClasses - 1] == kMaxSmall);

/// bytes <= kFineLimit.
inline unsigned fine_class(size_t bytes) { return kClassTable.fine[(bytes + 7) / 8]; }
/// kFineLimit < bytes <= kMaxSmall.
inline unsigned coarse_class(size_t bytes) { return kClassTable.coarse[(bytes + 127) / 128]; }
/// bytes <= kMaxSmall.
inline unsigned class_of(size_t bytes) {
  return bytes <= kFineLimit ? fine_class(bytes) : coarse_class(bytes);
}

/// Pages of a span of this class: a power of two, so that spans tile a huge page.
constexpr uint32_t span_pages_of(size_t block_bytes) {
  if (block_bytes <= 128) return 4;
  if (block_bytes <= 512) return 8;
  if (block_bytes <= 8192) return 16;
  return block_bytes <= 16384 ? 32 : 64;
}

}  // namespace flatout::malloc
