// Loader threads: batch number b is made by thread b % threads and put into that thread's bounded
// queue; next() takes them in order. So batches do not depend on the number of threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "train/learner.h"
#include "train/random.h"
#include "train/source.h"

namespace flatout::train {

enum class Collate {
  kOnce,           // each sample is written to its place
  kConcatenation,  // sample after sample is appended, everything before it copied again
};

/// What a model wants of a picture: [channels][side][side], 1 channel (grey) or 3.
struct View {
  int channels = 3;
  int side = kSide;
  bool augment = true;  // shifted by up to two pixels, of another brightness
};

/// Writes the middle of the picture (its edges go on where it is smaller), scaled to -1..1, and
/// augmented by `random` where the view says so. x: [channels][side][side].
void write_view(const Image& image, const View& view, Random& random, float* x);

/// Where the training loop takes its batches from.
class Batches {
 public:
  virtual ~Batches() = default;
  /// The next batch in order; waits for it.
  virtual Result<Batch> next() = 0;
  /// What was left out until now since it cannot be read, in words; "": nothing.
  virtual std::string bad_files() const { return {}; }
};

struct LoaderOptions {
  int threads = 2;
  int batch = 32;           // of all ranks together
  int part = 0, parts = 1;  // this rank's share of each batch
  View view;
  bool shuffle = true;
  size_t depth = 2;  // finished batches that wait per thread
  size_t samples = 1024;
  int64_t first = 0;    // batch to begin with
  int64_t batches = 0;  // to make in all, counted from batch 0
  uint64_t seed = 1;
  Collate collate = Collate::kOnce;
  std::function<void(int64_t batch)> before_batch;  // called by the loader thread; may be empty
};

class Loader : public Batches {
 public:
  Loader(const Source& source, LoaderOptions options);
  ~Loader() override;
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Call at most options.batches - options.first times.
  Result<Batch> next() override;
  /// Numbers of the samples of a batch, all ranks': epochs are permutations, by seed.
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
  int64_t taken_;
  std::atomic<bool> stop_{false};
};

}  // namespace flatout::train
