// A C++ program with a device-memory pool of its own (flatout/devmem.h): one limit, two streams, a
// buffer that both use, a request that does not fit, and a snapshot to replay.
//
//   g++ -std=c++20 -I include examples/device_pool.cpp -L build/release -lflatout_devmem -o
//   device_pool LD_LIBRARY_PATH=build/release ./device_pool            # on the card
//   LD_LIBRARY_PATH=build/release ./device_pool --host     # on the machine's memory, without one
//   flatout devmem replay device_pool.jsonl
#include <cstdio>
#include <cstring>

#include "flatout/devmem.h"

using flatout::devmem::Buffer;
using flatout::devmem::Options;
using flatout::devmem::OutOfMemory;
using flatout::devmem::Pool;

int main(int count, char** words) {
  const bool host = count > 1 && std::strcmp(words[1], "--host") == 0;
  Options options = {};
  options.kind = host ? FLATOUT_DEVMEM_HOST : FLATOUT_DEVMEM_CUDA;
  options.limit_bytes = 64 << 20;
  try {
    Pool pool(options);
    // Streams are the program's own; here any two will do.
    void *const compute = nullptr, *const copies = host ? &pool : nullptr;
    for (int step = 0; step < 100; ++step) {
      const Buffer batch(pool, 12 << 20, copies);
      const Buffer activations(pool, (8 << 20) + step * 4096, compute);
      pool.record_stream(batch.data(), compute);  // what was copied is computed with
    }
    try {
      const Buffer too_much(pool, 80 << 20, compute);
    } catch (const OutOfMemory& error) {
      std::printf("%s\n", error.what());
    }
    const flatout::devmem::Stats stats = pool.stats();
    std::printf("peak %.1f MiB live, %.1f MiB reserved; %llu requests, %llu driver calls\n",
                static_cast<double>(stats.peak_live) / (1 << 20),
                static_cast<double>(stats.peak_reserved) / (1 << 20),
                static_cast<unsigned long long>(stats.allocations),
                static_cast<unsigned long long>(stats.driver_calls));
    pool.snapshot("device_pool.jsonl");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
