// Walks a thread's slices alongside its readings: which slice was open at a time.
#pragma once

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "model/run.h"

namespace flatout::diagnose {

/// Intervals of one thread, well nested or not; at(t) must be called with ascending t.
template <class Tag>
class Cursor {
 public:
  void add(TimePoint begin, TimePoint end, Tag tag) { all_.push_back({begin, end, tag}); }
  void ready() {
    const auto outer_first = [](const Item& a, const Item& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    };
    // Slices come by their end: without nesting that is the order wanted.
    if (std::is_sorted(all_.begin(), all_.end(), outer_first)) return;
    std::stable_sort(all_.begin(), all_.end(), outer_first);
  }
  /// The tag of the innermost interval that holds t; `none` if there is none.
  Tag at(TimePoint t, Tag none) {
    while (next_ < all_.size() && all_[next_].begin <= t) {
      if (all_[next_].end > t) open_.push_back(all_[next_]);
      ++next_;
    }
    while (!open_.empty() && open_.back().end <= t) open_.pop_back();
    return open_.empty() ? none : open_.back().tag;
  }
  bool empty() const { return all_.empty(); }

 private:
  struct Item {
    TimePoint begin, end;
    Tag tag;
  };
  std::vector<Item> all_;
  std::vector<Item> open_;
  size_t next_ = 0;
};

/// Which part of its step the training thread is in at a time: by its slices, where there is none
/// by its reading of then, where there is none either `rest`.
class PartCursor {
 public:
  PartCursor(const model::Run& run, model::ThreadId trainer, model::Part rest)
      : moments_(run.steps.moments), rest_(rest) {
    for (const model::Slice& s : run.slices) {
      const model::Part part = model::part_of(s.kind);
      if (s.thread == trainer && part != model::Part::kCount) slices_.add(s.begin, s.end, part);
    }
    slices_.ready();
  }
  /// Must be called with ascending t.
  model::Part at(TimePoint t) {
    while (next_ < moments_.size() && moments_[next_].at < t) ++next_;
    return slices_.at(t, next_ < moments_.size() ? moments_[next_].part : rest_);
  }

 private:
  Cursor<model::Part> slices_;
  const std::vector<model::Moment>& moments_;
  model::Part rest_;
  size_t next_ = 0;
};

}  // namespace flatout::diagnose
