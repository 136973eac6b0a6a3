// Work on numbered things by several threads, with the results taken in order.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/result.h"
#include "feed/start_thread.h"

namespace flatout::feed {

/// take(make(i, worker)) for each i < count, in order, on the caller's thread; make runs on
/// `workers` threads (0: one a core), each with its number. Ends at the first error of take.
template <class Make, class Take>
Status in_order(uint64_t count, size_t workers, const Make& make, const Take& take) {
  constexpr uint64_t kBlock = 256;  // results that are held at a time
  using Made = decltype(make(uint64_t{0}, size_t{0}));
  for (uint64_t begin = 0; begin < count; begin += kBlock) {
    const uint64_t end = std::min(count, begin + kBlock);
    std::vector<Made> made(end - begin);
    std::atomic<uint64_t> next{begin};
    const auto work = [&](size_t worker) {
      for (uint64_t i = next++; i < end; i = next++) made[i - begin] = make(i, worker);
    };
    std::vector<std::thread> running;
    // Where there can be fewer, those do it.
    for (size_t i = 1; i < std::min<uint64_t>(workers, made.size()); ++i)
      if (!start_thread(running, "flatout-feed", [&work, i] { work(i); })) break;
    work(0);
    for (std::thread& thread : running) thread.join();
    for (Made& each : made) FLATOUT_TRY_STATUS(take(std::move(each)));
  }
  return {};
}

/// As many as asked for, or one a core.
inline size_t workers_for(int threads) {
  return threads > 0 ? static_cast<size_t>(threads)
                     : std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace flatout::feed
