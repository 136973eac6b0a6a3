// The CPU time of the whole job as one total that never falls.
//
// A process that ended hands its time to the parent that reaps it. So each process is counted
// while it lives, and what was counted is taken off its parent's increase when it is reaped;
// children too short-lived to be seen are counted there for the first time.
#pragma once

#include <algorithm>
#include <map>

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
  /// their nearest living ancestor reaped only now: one may be read after it reaped and before its
  /// child is missed. False: one ended of which nobody here reaps what it used last.
  bool end_round() {
    bool complete = true;
    for (auto& [pid, kept] : kept_) {
      if (kept.seen) continue;
      auto above = kept_.find(kept.ppid);
      for (size_t hops = 0; above != kept_.end() && !above->second.seen; ++hops) {
        above = hops < kept_.size() ? kept_.find(above->second.ppid) : kept_.end();
      }
      if (above == kept_.end()) {
        complete = false;
      } else {
        above->second.counted_ns += kept.own_ns + kept.children_ns;
      }
    }
    std::erase_if(kept_, [](const auto& entry) { return !entry.second.seen; });
    for (auto& [pid, kept] : kept_) {
      const double already = std::min(kept.reaped_ns, kept.counted_ns);
      kept.counted_ns -= already;
      total_ns_ += kept.reaped_ns - already;
      kept.reaped_ns = 0;
      kept.seen = false;
    }
    return complete;
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
