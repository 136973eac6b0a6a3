// Work that several threads share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace flatout {

/// Calls work(i) for each i below `count`, on the calling thread and up to `threads` - 1 others, in
/// no certain order. It must not throw.
template <class Work>
void for_all(size_t count, unsigned threads, Work&& work) {
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> others;
  try {
    for (size_t i = 1; i < std::min<size_t>(threads, count); ++i) others.emplace_back(run);
  } catch (const std::system_error&) {  // the limits allow no more of them: those there do it all
  }
  run();
  for (std::thread& thread : others) thread.join();
}

}  // namespace flatout
