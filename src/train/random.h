// Random numbers that depend on nothing but their seed (splitmix64).
#pragma once

#include <cstdint>

namespace flatout::train {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  /// A generator of its own for (seed, a, b): equal whatever was drawn before.
  Random(uint64_t seed, uint64_t a, uint64_t b = 0)
      : state_(seed * 0x9E3779B97F4A7C15u ^ (a + 1) * 0xBF58476D1CE4E5B9u ^
               (b + 1) * 0x94D049BB133111EBu) {
    next();
  }
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// 0 <= value < n.
  uint32_t below(uint32_t n) { return static_cast<uint32_t>((next() >> 32) * n >> 32); }
  /// 0 <= value < 1.
  float unit() { return static_cast<float>(next() >> 40) * (1.0f / 16777216.0f); }
  float range(float low, float high) { return low + (high - low) * unit(); }

 private:
  uint64_t state_;
};

}  // namespace flatout::train
