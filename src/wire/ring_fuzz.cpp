// The reader of a ring on hostile shared memory: any bytes, reading, skipping and reading again.
#include <cstdint>
#include <cstring>
#include <vector>

#include "wire/ring.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint64_t> memory(2048);  // 16 KiB, aligned
  const size_t bytes = memory.size() * sizeof(uint64_t);
  if (!flatout_ring_init(memory.data(), bytes)) return 0;
  flatout_ring_reader reader{};
  // The first byte says whether the header is a lie from the start or becomes one later.
  const bool early = size > 0 && (data[0] & 1) != 0;
  if (!early && !flatout_ring_reader_open(&reader, memory.data(), bytes)) return 0;
  // The rest are the words of head and data (and, when lying early, of the whole header).
  const size_t from = early ? 0 : 64;
  if (size > 1) {
    const size_t n = size - 1 < bytes - from ? size - 1 : bytes - from;
    std::memcpy(reinterpret_cast<char*>(memory.data()) + from, data + 1, n);
  }
  if (early && !flatout_ring_reader_open(&reader, memory.data(), bytes)) return 0;
  std::vector<char> out(FLATOUT_RING_MAX_PACKET);
  for (int i = 0; i < 4096; ++i) {
    const long got = flatout_ring_read(&reader, out.data(), out.size());
    if (got < 0) break;
    if (got == 0 && !flatout_ring_skip(&reader)) break;
  }
  return 0;
}
