// How many threads a stage that computes and waits for storage should have, from what it measures.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/clock.h"

namespace flatout::feed {

/// Threads that spend a share w of their time waiting keep (1 - w) processors busy each.
class ThreadTuner {
 public:
  explicit ThreadTuner(int processors = 1) : processors_(processors), threads_(processors) {}

  /// One sample took so long to read, and so long in all else. Reads are told by wall time, as
  /// nothing tells waiting for storage from waiting for a processor more cheaply.
  void took(Nanos read, Nanos rest) {
    read_ += to_s(read);
    rest_ += to_s(rest);
    if (++samples_ < kSamples) return;
    const double busy = std::max(rest_ / std::max(rest_ + read_, 1e-12), 1.0 / kMostFactor);
    threads_ = static_cast<int>(std::lround(processors_ / busy));
    // Old measurements fade: a page cache warms, a neighbour comes.
    read_ /= 2;
    rest_ /= 2;
    samples_ = kSamples / 2;
  }
  int threads() const { return threads_; }

 private:
  static constexpr int kSamples = 64;
  static constexpr int kMostFactor = 4;  // threads for each processor
  int processors_;
  int threads_;
  int samples_ = 0;
  double read_ = 0, rest_ = 0;
};

}  // namespace flatout::feed
