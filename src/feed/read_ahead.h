// Has samples that will be read soon brought into the page cache, many at a time: by one thread
// with io_uring, or, where that is not allowed, by as many threads as the pace needs. Nothing runs
// until something is wanted.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "feed/source.h"

namespace flatout::feed {

class ReadAhead {
 public:
  enum class Way : uint8_t { kBest, kThreads };
  static constexpr size_t kMostThreads = 32;

  explicit ReadAhead(const Source& source, Way way = Way::kBest) : source_(source), way_(way) {}
  ~ReadAhead() { stop(); }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Thread-safe.
  void want(std::span<const uint64_t> samples);
  /// Forgets what was wanted and ends the threads; want() starts them again.
  void stop();

  struct State {
    std::string_view way;  // "", "io_uring", "threads"
    size_t threads = 0;
    uint64_t done = 0;     // samples that were brought in
    uint64_t waiting = 0;  // that are still wanted
  };
  State state() const;

 private:
  void by_threads();
  void by_ring();
  void add_threads();

  const Source& source_;
  const Way way_;
  mutable std::mutex mutex_;
  std::condition_variable wanted_;
  std::deque<uint64_t> queue_;
  std::vector<std::thread> threads_;
  std::string_view running_;
  bool stop_ = false;
  uint64_t done_ = 0;
  // How many threads the pace needs: what one sample takes, and how often one is wanted.
  TimePoint since_;
  uint64_t asked_ = 0;
  double took_s_ = 0;
};

}  // namespace flatout::feed
