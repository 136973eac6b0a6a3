#include "feed/order.h"

#include <algorithm>
#include <bit>

#include "feed/philox.h"

namespace flatout::feed {

Order::Order(uint64_t count, uint64_t seed, bool shuffle)
    : count_(count),
      seed_(seed),
      shuffle_(shuffle),
      half_bits_((static_cast<unsigned>(std::bit_width(std::max<uint64_t>(count, 2) - 1)) + 1) /
                 2) {}

// A Feistel network permutes the smallest even number of bits that holds all positions; what falls
// outside is permuted again ("cycle walking"), less than four times on average.
uint64_t Order::index(uint32_t epoch, uint64_t position) const {
  if (!shuffle_ || count_ < 2) return position;
  constexpr uint32_t kRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t value = position;
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const PhiloxBlock random = philox({static_cast<uint32_t>(right), round, epoch,
                                         static_cast<uint32_t>(Purpose::kOrder) << 24},
                                        seed_);
      const uint64_t next = left ^ (random[0] & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits_) | right;
  } while (value >= count_);
  return value;
}

uint64_t Shard::size() const {
  const uint64_t left = count - std::min(first, count);
  return drop_last ? left / ranks : (left + ranks - 1) / ranks;
}

uint64_t Shard::position(uint64_t k) const {
  const uint64_t left = count - first;
  return first + (k * ranks + rank) % left;
}

}  // namespace flatout::feed
