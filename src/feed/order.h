// The order of an epoch: a bijection computed from (seed, epoch, position). Nothing is kept, so an
// epoch starts, resumes and is sharded in constant time and memory.
#pragma once

#include <cstdint>

namespace flatout::feed {

class Order {
 public:
  Order(uint64_t count, uint64_t seed, bool shuffle);

  /// The index of the sample at `position` (< count) of the epoch. Each index comes exactly once.
  uint64_t index(uint32_t epoch, uint64_t position) const;
  uint64_t count() const { return count_; }

 private:
  uint64_t count_;
  uint64_t seed_;
  bool shuffle_;
  unsigned half_bits_;
};

/// One rank's part of an epoch: from `first` on, every `ranks`-th position. All ranks get equally
/// many; without `drop_last` the first positions of the rest fill the last round up.
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
