// How often to read the stacks so that flatout stays cheap, whatever one reading costs.
#pragma once

#include <algorithm>

#include "base/clock.h"
#include "base/uneven_beat.h"

namespace flatout::recorder {

class StackPace {
 public:
  /// `fastest`: the period where readings cost next to nothing.
  explicit StackPace(Nanos fastest) : fastest_(fastest) {}

  /// A reading took `cost` of CPU time; `age` is how long the recording lasts.
  void took(Nanos cost, Nanos age) {
    // A mean that follows a change within ten readings, and is not fooled by one.
    mean_ = mean_.count() == 0 ? cost : mean_ + (cost - mean_) / 8;
    const double share = age < kBurst ? kBurstShare : kShare;
    const auto wanted = nanos(static_cast<double>(mean_.count()) / share);
    period_ = std::clamp(wanted, fastest_, std::max(fastest_, kSlowest));
  }
  Nanos period() const { return std::max(period_, fastest_); }

  /// Until the next reading.
  Nanos next() { return beat_.vary(period()); }

 private:
  static constexpr double kShare = 0.007;       // of one core, for stacks alone
  static constexpr double kBurstShare = 0.025;  // at first: a verdict needs readings early
  static constexpr Nanos kBurst = std::chrono::seconds(20);
  static constexpr Nanos kSlowest = std::chrono::seconds(1);

  Nanos fastest_;
  Nanos period_{0};
  Nanos mean_{0};
  UnevenBeat beat_;
};

}  // namespace flatout::recorder
