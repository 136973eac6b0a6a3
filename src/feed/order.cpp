#include "feed/order.h"

#include <algorithm>
#include <bit>

#include "feed/philox.h"

namespace flatout::feed {

namespace {

// A bijection of [0, count), another one for each seed, epoch, purpose and number. A Feistel
// network permutes the smallest even number of bits that holds all of them; what falls outside is
// permuted again ("cycle walking"), less than four times on average.
uint64_t permute(uint64_t value, uint64_t count, uint64_t seed, uint32_t epoch, Purpose purpose,
                 uint64_t number) {
  if (count < 2) return value;
  constexpr uint32_t kRounds = 6;
  const unsigned half_bits = (static_cast<unsigned>(std::bit_width(count - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const PhiloxBlock random =
          philox({static_cast<uint32_t>(right), round | static_cast<uint32_t>(number << 3), epoch,
                  static_cast<uint32_t>(purpose) << 24 | static_cast<uint32_t>(number >> 29)},
                 seed);
      const uint64_t next = left ^ (random[0] & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= count);
  return value;
}

}  // namespace

Order::Order(uint64_t count, uint64_t seed, bool shuffle, Window window)
    : count_(count), seed_(seed), shuffle_(shuffle), window_(window) {}

uint64_t Order::index(uint32_t epoch, uint64_t position) const {
  if (!shuffle_) return position;
  if (window_.samples == 0) return permute(position, count_, seed_, epoch, Purpose::kOrder, 0);
  const uint64_t number = position / window_.samples;
  const uint64_t first = number * window_.samples;
  const uint64_t size = std::min(window_.samples, count_ - first);
  return stream(epoch,
                first + permute(position - first, size, seed_, epoch, Purpose::kWindow, number));
}

// The samples behind the last whole run stay where they are.
uint64_t Order::stream(uint32_t epoch, uint64_t position) const {
  const uint64_t runs = count_ / window_.run;
  const uint64_t run = position / window_.run;
  if (run >= runs) return position;
  return permute(run, runs, seed_, epoch, Purpose::kRuns, 0) * window_.run + position % window_.run;
}

uint64_t Shard::size() const {
  const uint64_t left = count - std::min(first, count);
  return drop_last ? left / ranks : (left + ranks - 1) / ranks;
}

uint64_t Shard::position(uint64_t k) const { return (first + k * ranks + rank) % count; }

}  // namespace flatout::feed
