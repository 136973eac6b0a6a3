// How much free memory to keep: so much that the peak demand of the last window could come again
// without asking the kernel. The window is two seconds at first. Where memory that was given back
// is wanted again within a minute, the window grows so that the same pause would not have cost
// anything: jobs with long steps, validation or checkpoints lose it once or twice.
// Pure: the clock and the counts are arguments.
#pragma once

#include <algorithm>
#include <cstdint>

#include "malloc/page_heap.h"

namespace flatout::malloc {

class DemandWindow {
 public:
  static constexpr uint64_t kSecond = 1'000'000'000;
  static constexpr uint64_t kShortest = 2 * kSecond, kLongest = 60 * kSecond;
  static constexpr uint32_t kSlack = (2u << 20) >> kPageShift;  // pages that are always kept
  static constexpr uint32_t kParts = 8;

  /// Pages to give back now. `counts` since the last call.
  uint32_t tick(uint64_t now_ns, const PageCounts& counts) {
    learn(counts);
    peaks_[next_] = {now_ns, counts.peak};
    next_ = (next_ + 1) % kEntries;
    uint32_t peak = counts.used;
    for (const Peak& p : peaks_) {
      // An entry is of the time before it: one part of the window, and one to be early.
      if (p.at_ns != 0 && p.at_ns + window_ns_ > now_ns + 2 * interval_ns()) {
        peak = std::max(peak, p.pages);
      }
    }
    // Once memory was missed: sizes that vary from step to step never fit without some room.
    uint32_t room = peak - counts.used;
    if (window_ns_ > kShortest) room += room / 8;
    const uint32_t keep = room + kSlack;
    return counts.dirty_free > keep ? counts.dirty_free - keep : 0;
  }
  void released(uint64_t now_ns) { released_ns_ = now_ns; }

  /// The step's length, where steps are marked: the window is at least two of them.
  void mark_step(uint64_t now_ns) {
    if (step_ns_ != 0 && now_ns > step_ns_) grow(2 * (now_ns - step_ns_));
    step_ns_ = now_ns;
  }
  uint64_t window_ns() const { return window_ns_; }
  uint64_t interval_ns() const { return window_ns_ / kParts; }

 private:
  struct Peak {
    uint64_t at_ns;
    uint32_t pages;
  };
  static constexpr uint32_t kEntries = 16;
  static constexpr uint64_t kMissed = (1u << 20) >> kPageShift;  // pages: less is no loss

  void learn(const PageCounts& counts) {
    missed_ += counts.refaulted - refaulted_;
    refaulted_ = counts.refaulted;
    if (missed_ < kMissed || counts.missed_ns == 0) return;
    missed_ = 0;
    if (released_ns_ == 0 || counts.missed_ns < released_ns_) return;
    const uint64_t pause = counts.missed_ns - released_ns_ + window_ns_;
    released_ns_ = 0;  // one lesson from each loss
    if (pause < kLongest + window_ns_) grow(std::max(2 * window_ns_, pause + pause / 2));
  }
  void grow(uint64_t wanted_ns) { window_ns_ = std::clamp(wanted_ns, window_ns_, kLongest); }

  uint64_t window_ns_ = kShortest;
  Peak peaks_[kEntries] = {};
  uint32_t next_ = 0;
  uint64_t released_ns_ = 0, refaulted_ = 0, missed_ = 0, step_ns_ = 0;
};

}  // namespace flatout::malloc
