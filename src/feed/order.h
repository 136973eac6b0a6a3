// The order of an epoch: a bijection computed from (seed, epoch, position). Nothing is kept, so an
// epoch starts, resumes and is sharded in constant time and memory.
#pragma once

#include <cstdint>

namespace flatout::feed {

/// Where storage is too slow for an order that goes anywhere: what a shuffle of shards with a
/// buffer does, as a bijection. The data set is cut into runs of neighbours; the runs come in a
/// random order, and each `samples` of that stream are shuffled among themselves.
struct Window {
  uint64_t samples = 0;  // 0: none, the whole epoch is shuffled
  uint64_t run = 256;
};

class Order {
 public:
  Order(uint64_t count, uint64_t seed, bool shuffle, Window window = {});

  /// The index of the sample at `position` (< count) of the epoch. Each index comes exactly once.
  uint64_t index(uint32_t epoch, uint64_t position) const;
  uint64_t count() const { return count_; }
  /// With a window: the index at `position` of the stream that the windows are cut from, which is
  /// the order to read ahead in.
  uint64_t stream(uint32_t epoch, uint64_t position) const;
  const Window& window() const { return window_; }

 private:
  uint64_t count_;
  uint64_t seed_;
  bool shuffle_;
  Window window_;
};

/// One rank's part of an epoch: from `first` on, every `ranks`-th position. All ranks get equally
/// many; without `drop_last` the epoch's first positions fill the last round up, the same ones
/// wherever it is entered.
struct Shard {
  uint64_t count = 0;  // positions of the whole epoch
  uint64_t first = 0;  // where the epoch is entered: 0, or where the state was saved
  uint32_t rank = 0;
  uint32_t ranks = 1;
  bool drop_last = false;

  uint64_t size() const;
  /// The epoch's position of this rank's k-th sample.
  uint64_t position(uint64_t k) const;
};

}  // namespace flatout::feed
