// A batch of samples, and whose turn it is to use its memory.
#pragma once

#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "feed/mix.h"

namespace flatout::feed {

/// All that is needed to go on, to the bit, with any number of threads and ranks.
struct Place {
  uint32_t epoch = 0;
  uint64_t position = 0;  // samples of the epoch that all ranks together have taken
};

/// A batch, its memory included. `data`: [count, 3, height, width] or [count, height, width, 3].
struct Batch {
  explicit Batch(int most)
      : labels(static_cast<size_t>(most)),
        indices(labels.size()),
        partners(labels.size()),
        views(labels.size()) {}

  void* data = nullptr;  // aligned to 64 bytes
  bool lent = false;     // `data` is; see Loader::lend
  bool given = false;    // by next()
  int count = 0;
  uint32_t epoch = 0;
  uint64_t first = 0;  // this rank's number of its first sample in the epoch
  Place after;         // where to go on once it is used
  std::vector<int64_t> labels;
  std::vector<int64_t> indices;   // in the source
  std::vector<int64_t> partners;  // labels of what was mixed in; as labels where none was
  Mix mix;
  std::vector<std::array<int32_t, 5>> views;  // of the source: x, y, width, height, flipped
};

/// The memory of batches, and the loader's lock, which is taken when a batch is let go of. Outlives
/// the loader while somebody holds a batch.
struct BatchPool {
  explicit BatchPool(size_t batch_bytes) : bytes(batch_bytes), process(::getpid()) {}
  ~BatchPool() {
    for (void* memory : free) std::free(memory);
  }
  BatchPool(const BatchPool&) = delete;
  BatchPool& operator=(const BatchPool&) = delete;

  static constexpr size_t kAlignment = 64;

  std::mutex mutex;
  std::condition_variable wanted;  // by workers: memory for a batch, something to do, or the end
  const size_t bytes;              // of a batch
  const pid_t process;
  size_t used = 0;   // batches that have memory: those under way and those that the program keeps
  size_t limit = 0;  // of those, where nobody waits for one more
  std::vector<void*> free;
  std::deque<void*> lent;  // not used yet
  bool only_lent = false;  // memory of our own is not kept

  static std::shared_ptr<Batch> open(const std::shared_ptr<BatchPool>& pool, int most) {
    return {new Batch(most), [pool](Batch* done) {
              pool->take_back(*done);
              delete done;
            }};
  }

  bool is_of_this_process() const { return ::getpid() == process; }

  // Under the lock. False where there is no memory.
  bool provide(Batch& batch) {
    batch.lent = !lent.empty();
    if (batch.lent) {
      batch.data = lent.front();
      lent.pop_front();
    } else if (!free.empty()) {
      batch.data = free.back();
      free.pop_back();
    } else {
      batch.data =
          std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    }
    used += batch.data != nullptr ? 1 : 0;
    return batch.data != nullptr;
  }

 private:
  // Takes the lock, which nobody lets go of in a process that was forked from the loader's.
  void take_back(const Batch& batch) {
    void* memory = batch.data;
    if (memory == nullptr) return;
    if (is_of_this_process()) {
      {
        const std::lock_guard lock(mutex);
        --used;
        if (batch.lent) {
          if (!batch.given) lent.push_back(memory);
        } else if (!only_lent && free.size() + used < limit) {
          free.push_back(std::exchange(memory, nullptr));
        }
      }
      wanted.notify_all();
    }
    if (!batch.lent) std::free(memory);
  }
};

}  // namespace flatout::feed
