// The snapshots of the last ten minutes, within a bound of memory: where they would take more,
// every second one of the older half is let go, so that the past grows coarser, not shorter.
#pragma once

#include <deque>
#include <memory>

#include "screen/snapshot.h"

namespace flatout::screen {

class History {
 public:
  explicit History(Nanos length = std::chrono::minutes(10), size_t max_bytes = size_t{64} << 20)
      : length_(length), max_bytes_(max_bytes) {}

  void add(std::shared_ptr<const Snapshot> snapshot);
  size_t size() const { return snapshots_.size(); }
  /// 0 is the newest; beyond the oldest: the oldest. nullptr where there is none.
  std::shared_ptr<const Snapshot> back(size_t steps) const;
  /// Oldest first.
  const std::deque<std::shared_ptr<const Snapshot>>& all() const { return snapshots_; }

 private:
  void thin();

  Nanos length_;
  size_t max_bytes_;
  size_t bytes_ = 0;
  std::deque<std::shared_ptr<const Snapshot>> snapshots_;
};

}  // namespace flatout::screen
