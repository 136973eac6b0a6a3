// The CPU time of the whole job as one total that never falls.
//
// A process that ended hands its time to the parent that reaps it. So each process is counted
// while it lives, and what was counted is taken off its parent's increase when it is reaped;
// children too short-lived to be seen are counted there for the first time.
#pragma once

#include <algorithm>
#include <map>
#include <utility>

#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::probe {

class JobCpu {
 public:
  /// A reading of a live process of the job.
  void note(const PidStat& stat) {
    Kept& kept = kept_[stat.pid];
    if (kept.start_ticks != stat.start_ticks) kept = Kept{.start_ticks = stat.start_ticks};
    const auto ns = [](uint64_t ticks) { return static_cast<double>(ticks) * tick_ns(); };
    const double own = ns(stat.user_ticks + stat.system_ticks);
    const double children = ns(stat.children_user_ticks + stat.children_system_ticks);
    total_ns_ += std::max(0.0, own - kept.own_ns);
    kept.own_ns = std::max(own, kept.own_ns);
    kept.reaped_ns = std::max(0.0, children - kept.children_ns);
    kept.children_ns = std::max(children, kept.children_ns);
    kept.ppid = stat.ppid;
    kept.seen = true;
  }

  /// Processes that were not noted since the last call have ended. Their time is taken off what
  /// their parents reaped only now: a parent may be read after it reaped and before its child is
  /// missed.
  void end_round() {
    for (auto it = kept_.begin(); it != kept_.end();) {
      Kept& kept = it->second;
      if (std::exchange(kept.seen, false)) {
        ++it;
        continue;
      }
      const auto parent = kept_.find(kept.ppid);
      if (parent != kept_.end()) parent->second.counted_ns += kept.own_ns + kept.children_ns;
      it = kept_.erase(it);
    }
    for (auto& [pid, kept] : kept_) {
      const double already = std::min(kept.reaped_ns, kept.counted_ns);
      kept.counted_ns -= already;
      total_ns_ += kept.reaped_ns - already;
      kept.reaped_ns = 0;
    }
  }

  double total_ns() const { return total_ns_; }

 private:
  struct Kept {
    uint64_t start_ticks = 0;
    int32_t ppid = 0;
    bool seen = false;
    double own_ns = 0, children_ns = 0;  // last known
    double reaped_ns = 0;                // increase of the latter in this round
    double counted_ns = 0;               // time of ended children that the total has already
  };
  std::map<int32_t, Kept> kept_;
  double total_ns_ = 0;
};

}  // namespace flatout::probe
