// One call's work, spread over threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "nn/batch_norm.h"

namespace flatout::nn {

/// threads.run, or what stands for it where that is null.
void run_on_threads(const Threads& threads, int count, void (*task)(void*), void* data);

/// Calls body(i) for each i below `count`, each once, by up to threads.count threads.
template <class Body>
void parallel_for(const Threads& threads, int64_t count, const Body& body) {
  const int wanted = static_cast<int>(count < threads.count ? count : threads.count);
  if (wanted <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  struct Work {
    const Body& body;
    int64_t count;
    std::atomic<int64_t> next{0};
  } work{body, count};
  run_on_threads(
      threads, wanted,
      [](void* data) {
        auto& mine = *static_cast<Work*>(data);
        for (int64_t i = mine.next++; i < mine.count; i = mine.next++) mine.body(i);
      },
      &work);
}

}  // namespace flatout::nn
