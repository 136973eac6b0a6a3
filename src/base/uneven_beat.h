// Intervals between samples that vary: an even beat marches in step with what is sampled. A thread
// that asks for Python's lock every 5 ms would be seen at that moment each time.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace flatout {

class UnevenBeat {
 public:
  /// `interval` varied by up to a quarter; the mean stays.
  Nanos vary(Nanos interval) {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    const double factor = 0.75 + 0.5 * static_cast<double>(random_ >> 11) * 0x1.0p-53;
    return nanos(static_cast<double>(interval.count()) * factor);
  }

 private:
  uint64_t random_ = 0x9E3779B97F4A7C15;
};

}  // namespace flatout
