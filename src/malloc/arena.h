// Memory of the allocator's own books, which is never given back. The caller has the lock.
#pragma once

#include <cstddef>

#include "malloc/os.h"

namespace flatout::malloc {

class Arena {
 public:
  /// Zeroed, aligned to 16 bytes; nullptr without memory. At most kChunk bytes.
  void* take(size_t bytes) {
    bytes = (bytes + 15) & ~size_t{15};
    if (left_ < bytes) {
      chunk_ = static_cast<char*>(os_map(kChunk));
      left_ = chunk_ == nullptr ? 0 : kChunk;
      if (left_ < bytes) return nullptr;
    }
    void* const out = chunk_;
    chunk_ += bytes;
    left_ -= bytes;
    return out;
  }

 private:
  static constexpr size_t kChunk = 256 << 10;
  char* chunk_ = nullptr;
  size_t left_ = 0;
};

}  // namespace flatout::malloc
