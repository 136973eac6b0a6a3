#include "timeline/intervals.h"

#include <algorithm>

namespace flatout::timeline {
namespace {

// The first that ends after `time`.
std::vector<Interval64>::const_iterator first_after(const Intervals& set, int64_t time) {
  return std::partition_point(set.all().begin(), set.all().end(),
                              [&](const Interval64& i) { return i.end <= time; });
}

}  // namespace

void Intervals::forget(int64_t time) {
  auto at = all_.begin();
  for (; at != all_.end() && at->end <= time; ++at) length_ -= at->end - at->begin;
  all_.erase(all_.begin(), at);
}

Intervals unite(std::vector<Interval64> pieces) {
  std::sort(pieces.begin(), pieces.end(),
            [](const Interval64& a, const Interval64& b) { return a.begin < b.begin; });
  Intervals out;
  for (const Interval64& piece : pieces) out.add(piece.begin, piece.end);
  return out;
}

int64_t overlap(const Intervals& set, int64_t begin, int64_t end) {
  int64_t sum = 0;
  for (auto at = first_after(set, begin); at != set.all().end() && at->begin < end; ++at)
    sum += std::min(at->end, end) - std::max(at->begin, begin);
  return sum;
}

int64_t overlap(const Intervals& a, const Intervals& b, int64_t begin, int64_t end) {
  int64_t sum = 0;
  auto x = first_after(a, begin);
  auto y = first_after(b, begin);
  while (x != a.all().end() && y != b.all().end() && x->begin < end && y->begin < end) {
    const int64_t from = std::max({x->begin, y->begin, begin});
    const int64_t to = std::min({x->end, y->end, end});
    if (from < to) sum += to - from;
    if (x->end < y->end) {
      ++x;
    } else {
      ++y;
    }
  }
  return sum;
}

int64_t overlap(const Intervals& a, const Intervals& b) {
  if (a.empty() || b.empty()) return 0;
  return overlap(a, b, a.all().front().begin, a.all().back().end);
}

}  // namespace flatout::timeline
