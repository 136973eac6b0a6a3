// Sets of time: sorted intervals that do not touch, their length, and how much two of them share.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace flatout::timeline {

struct Interval64 {
  int64_t begin = 0, end = 0;
};

class Intervals {
 public:
  /// Adds [begin, end); begins must not decrease. Empty ones are ignored.
  void add(int64_t begin, int64_t end) {
    if (end <= begin) return;
    if (!all_.empty() && begin <= all_.back().end) {
      if (end > all_.back().end) {
        length_ += end - all_.back().end;
        all_.back().end = end;
      }
      return;
    }
    length_ += end - begin;
    all_.push_back({begin, end});
  }
  /// Drops what is over at `time`.
  void forget(int64_t time);
  int64_t length() const { return length_; }
  const std::vector<Interval64>& all() const { return all_; }
  bool empty() const { return all_.empty(); }

 private:
  std::vector<Interval64> all_;
  int64_t length_ = 0;
};

/// Sorts and joins.
Intervals unite(std::vector<Interval64> pieces);
/// How much of [begin, end) is in `set`.
int64_t overlap(const Intervals& set, int64_t begin, int64_t end);
/// How much is in both.
int64_t overlap(const Intervals& a, const Intervals& b);
/// How much of [begin, end) is in both.
int64_t overlap(const Intervals& a, const Intervals& b, int64_t begin, int64_t end);

}  // namespace flatout::timeline
