// The size of an OS page.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace flatout {

inline uint64_t page_bytes() {
  static const auto bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace flatout
