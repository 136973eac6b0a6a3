// Loader threads: batch number b is made by thread b % threads and put into that thread's bounded
// queue; next() takes them in order. So batches do not depend on the number of threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "train/network.h"
#include "train/source.h"

namespace flatout::train {

enum class Collate {
  kOnce,           // each sample is written to its place
  kConcatenation,  // sample after sample is appended, everything before it copied again
};

struct LoaderOptions {
  int threads = 2;
  int batch = 32;
  size_t depth = 2;  // finished batches that wait per thread
  size_t samples = 1024;
  int64_t batches = 0;  // to make in all
  uint64_t seed = 1;
  Collate collate = Collate::kOnce;
  std::function<void(int64_t batch)> before_batch;  // called by the loader thread; may be empty
};

class Loader {
 public:
  Loader(const Source& source, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch in order; waits for it. Call at most options.batches times.
  Result<Batch> next();
  /// Numbers of a batch's samples: epochs are permutations, by seed.
  std::vector<size_t> samples_of(int64_t batch) const;
  Result<Batch> make(int64_t batch) const;

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable not_empty, not_full;
    std::deque<Result<Batch>> batches;
  };
  void serve(size_t thread);

  const Source& source_;
  LoaderOptions options_;
  std::vector<Queue> queues_;
  std::vector<std::thread> threads_;
  int64_t taken_ = 0;
  std::atomic<bool> stop_{false};
};

}  // namespace flatout::train
