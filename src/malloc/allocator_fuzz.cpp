// Any sequence of calls keeps every block's contents and the page heap's books.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "malloc/allocator.h"
#include "malloc/page_heap.h"

namespace fm = flatout::malloc;

namespace {

struct Held {
  unsigned char* at = nullptr;
  size_t bytes = 0;
  unsigned char fill = 0;
};

void require(bool holds) {
  if (!holds) std::abort();
}

size_t size_of(unsigned a, unsigned b) { return (size_t{b} + 1) << (a % 16); }

void check(const Held& h) {
  if (h.bytes == 0) return;
  require(h.at[0] == h.fill && h.at[h.bytes / 2] == h.fill && h.at[h.bytes - 1] == h.fill);
}
void mark(Held& h, unsigned char fill) {
  h.fill = fill;
  if (h.bytes != 0) h.at[0] = h.at[h.bytes / 2] = h.at[h.bytes - 1] = fill;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<Held> held(64);
  for (size_t i = 0; i + 4 <= size; i += 4) {
    Held& h = held[data[i + 1] % held.size()];
    const size_t bytes = size_of(data[i + 2], data[i + 3]);
    switch (data[i] % 8) {
      case 0:
      case 1:
        fm::deallocate(h.at);
        h = {static_cast<unsigned char*>(fm::allocate(bytes)), bytes, 0};
        break;
      case 2:
        fm::deallocate(h.at);
        h = {static_cast<unsigned char*>(fm::allocate_zeroed(1, bytes)), bytes, 0};
        require(h.at[0] == 0 && h.at[bytes - 1] == 0 && h.at[bytes / 2] == 0);
        break;
      case 3: {
        fm::deallocate(h.at);
        const size_t alignment = size_t{1} << (3 + data[i + 1] % 19);
        h = {static_cast<unsigned char*>(fm::allocate_aligned(alignment, bytes)), bytes, 0};
        require(reinterpret_cast<uintptr_t>(h.at) % alignment == 0);
        break;
      }
      case 4:
        check(h);
        h.at = static_cast<unsigned char*>(fm::reallocate(h.at, bytes));
        require(h.bytes == 0 || h.at[0] == h.fill);
        h.bytes = bytes;
        break;
      case 5:
        check(h);
        fm::deallocate(h.at);
        h = {};
        break;
      case 6:
        fm::purge();
        break;
      default:
        require(fm::g_page_heap.check() == nullptr);
    }
    if (h.at != nullptr) {
      require(fm::usable_size(h.at) >= h.bytes);
      mark(h, static_cast<unsigned char>(i + 1));
    }
  }
  for (Held& h : held) {
    check(h);
    fm::deallocate(h.at);
  }
  require(fm::g_page_heap.check() == nullptr);
  return 0;
}
