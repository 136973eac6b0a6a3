// Philox4x32-10: random numbers that are a function of a key and a counter, with no state to keep.
// Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC11.
#pragma once

#include <array>
#include <cstdint>

namespace flatout::feed {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock philox(PhiloxBlock counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(a)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

/// What a block of random numbers is for: no two uses share a counter.
enum class Purpose : uint32_t { kOrder, kAugment, kReplace, kWindow, kRuns, kMix, kStage };

/// The random numbers of one sample in one epoch, in the order in which they are asked for.
class SampleRandom {
 public:
  SampleRandom(uint64_t seed, uint32_t epoch, uint64_t index, Purpose purpose)
      : seed_(seed), epoch_(epoch), index_(index), purpose_(purpose) {}

  uint32_t next() {
    if (used_ == 4) {
      block_ = philox({static_cast<uint32_t>(index_), static_cast<uint32_t>(index_ >> 32), epoch_,
                       (static_cast<uint32_t>(purpose_) << 24) | blocks_++},
                      seed_);
      used_ = 0;
    }
    return block_[used_++];
  }
  /// Uniform in [0, 1).
  double uniform() { return next() * 0x1p-32; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// Uniform in [0, n); n > 0. The bias of n / 2^64 does not matter here.
  uint64_t below(uint64_t n) {
    const uint64_t high = next();
    const uint64_t wide = (high << 32) | next();
    return static_cast<uint64_t>((static_cast<unsigned __int128>(wide) * n) >> 64);
  }

 private:
  uint64_t seed_;
  uint32_t epoch_;
  uint64_t index_;
  Purpose purpose_;
  PhiloxBlock block_{};
  uint32_t blocks_ = 0;
  unsigned used_ = 4;
};

}  // namespace flatout::feed
