// Finds out whether slow steps recur every N steps, and what they cost.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"

namespace flatout::timeline {

/// Steps phase, phase + period, phase + 2 * period, ... take `extra` longer than the others.
struct Period {
  int64_t period = 0;  // in steps, at least 2
  int64_t phase = 0;   // index modulo period
  Nanos extra{};       // median of the slow steps less the median of the others
  int64_t seen = 0;    // slow steps that lie on the grid
  double share = 0;    // of the slow steps that lie on the grid; 1: all
};

/// `index`: step numbers, ascending (gaps allowed); `length`: of these steps. The strongest period,
/// nullopt unless at least 3 slow steps recur with it and the rest stays fast. General: a slow step
/// is one far outside the noise of its neighbours, no absolute threshold.
std::optional<Period> find_period(std::span<const int64_t> index, std::span<const Nanos> length);

/// Time from one to the next of `times` when it is nearly constant (in nanoseconds); nullopt else.
std::optional<Nanos> find_time_period(std::span<const TimePoint> times);

}  // namespace flatout::timeline
