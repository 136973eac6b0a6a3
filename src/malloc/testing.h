// For tests of the allocator.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace flatout::malloc {

/// OS pages of 4 KiB within [p, p + bytes) that have memory behind them.
inline size_t resident_pages(const void* p, size_t bytes) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(p) & ~uintptr_t{4095};
  const size_t n = (reinterpret_cast<uintptr_t>(p) + bytes - begin + 4095) / 4096;
  std::vector<unsigned char> in(n);
  if (::mincore(reinterpret_cast<void*>(begin), n * 4096, in.data()) != 0) return 0;
  return static_cast<size_t>(
      std::count_if(in.begin(), in.end(), [](unsigned char c) { return (c & 1) != 0; }));
}

}  // namespace flatout::malloc
