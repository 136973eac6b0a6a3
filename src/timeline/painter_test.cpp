#include "timeline/painter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace flatout::timeline {
namespace {

using model::Slice;
using model::SliceKind;

Slice slice(SliceKind kind, int64_t begin, int64_t end) {
  Slice s;
  s.kind = kind;
  s.begin = time_point_ns(begin);
  s.end = time_point_ns(end);
  return s;
}

SliceKind at(const std::vector<Painted>& painted, int64_t ns) {
  for (const Painted& p : painted) {
    if (to_ns(p.begin) <= ns && ns < to_ns(p.end)) return p.kind;
  }
  return SliceKind{};
}

TEST(Painter, TheInnermostSliceWinsAndTheOuterOneGoesOnAfterIt) {
  const std::vector<Slice> slices = {slice(SliceKind::kSync, 20, 30),
                                     slice(SliceKind::kForward, 10, 50)};
  const auto painted = paint(slices);
  EXPECT_EQ(at(painted, 15), SliceKind::kForward);
  EXPECT_EQ(at(painted, 25), SliceKind::kSync);
  EXPECT_EQ(at(painted, 45), SliceKind::kForward);
  EXPECT_EQ(at(painted, 50), SliceKind{});
}

TEST(Painter, CollectorPausesStayWithTheirPhase) {
  const auto painted =
      paint(std::vector{slice(SliceKind::kForward, 0, 50), slice(SliceKind::kGc, 10, 20)});
  ASSERT_EQ(painted.size(), 1u);
  EXPECT_EQ(painted[0].kind, SliceKind::kForward);
}

TEST(Painter, WhatALoaderDoesInsideTheWaitIsTheWait) {
  const auto painted =
      paint(std::vector{slice(SliceKind::kInputWait, 0, 100), slice(SliceKind::kFetch, 10, 90),
                        slice(SliceKind::kForward, 20, 40), slice(SliceKind::kH2d, 50, 60)});
  EXPECT_EQ(at(painted, 30), SliceKind::kInputWait);
  EXPECT_EQ(at(painted, 55), SliceKind::kH2d);
  EXPECT_EQ(at(painted, 95), SliceKind::kInputWait);
}

TEST(Painter, RecomputedForwardBelongsToBackward) {
  const auto painted =
      paint(std::vector{slice(SliceKind::kBackward, 0, 100), slice(SliceKind::kForward, 20, 40)});
  EXPECT_EQ(at(painted, 30), SliceKind::kBackward);
}

TEST(Painter, ClosuresOfAnOptimizerAreForwardAndBackward) {
  const auto painted =
      paint(std::vector{slice(SliceKind::kOptimizer, 0, 100), slice(SliceKind::kForward, 20, 40),
                        slice(SliceKind::kBackward, 40, 80)});
  EXPECT_EQ(at(painted, 10), SliceKind::kOptimizer);
  EXPECT_EQ(at(painted, 30), SliceKind::kForward);
  EXPECT_EQ(at(painted, 50), SliceKind::kBackward);
  EXPECT_EQ(at(painted, 90), SliceKind::kOptimizer);
}

// The rule of painter.h, one nanosecond at a time.
SliceKind naive(const std::vector<Slice>& order, size_t i);
size_t owner(const std::vector<Slice>& order, int64_t ns, size_t below) {
  for (size_t i = below; i-- > 0;) {
    if (to_ns(order[i].begin) <= ns && ns < to_ns(order[i].end)) return i;
  }
  return order.size();
}
SliceKind naive(const std::vector<Slice>& order, size_t i) {
  SliceKind own = order[i].kind;
  if (part_of(own) == model::Part::kInputWait) own = SliceKind::kInputWait;
  const size_t outer = owner(order, to_ns(order[i].begin), i);
  if (outer == order.size()) return own;
  const SliceKind around = naive(order, outer);
  const auto is = [&](std::initializer_list<SliceKind> kinds) {
    return std::find(kinds.begin(), kinds.end(), own) != kinds.end();
  };
  if (around == SliceKind::kValidation || around == SliceKind::kCheckpoint) return around;
  if (around == SliceKind::kInputWait && !is({SliceKind::kH2d, SliceKind::kCommunication,
                                              SliceKind::kCheckpoint, SliceKind::kValidation})) {
    return around;
  }
  if (around == SliceKind::kBackward && own == SliceKind::kForward) return around;
  return own;
}

TEST(Painter, EqualsANaivePainterOnRandomSlices) {
  std::mt19937 random(7);
  constexpr SliceKind kKinds[] = {
      SliceKind::kInputWait,  SliceKind::kForward, SliceKind::kBackward, SliceKind::kOptimizer,
      SliceKind::kH2d,        SliceKind::kSync,    SliceKind::kFetch,    SliceKind::kCheckpoint,
      SliceKind::kValidation, SliceKind::kLogging, SliceKind::kZeroGrad, SliceKind::kCommunication};
  for (int round = 0; round < 300; ++round) {
    std::vector<Slice> slices;
    const int count = static_cast<int>(random() % 12);
    for (int i = 0; i < count; ++i) {
      const auto begin = static_cast<int64_t>(random() % 100);
      slices.push_back(slice(kKinds[random() % std::size(kKinds)], begin,
                             begin + static_cast<int64_t>(random() % 60)));
    }
    std::vector<Slice> order = slices;
    std::erase_if(order, [](const Slice& s) { return s.begin == s.end; });
    std::stable_sort(order.begin(), order.end(), [](const Slice& a, const Slice& b) {
      return std::tuple(a.begin, b.end, a.kind) < std::tuple(b.begin, a.end, b.kind);
    });
    const auto painted = paint(slices);
    for (size_t i = 1; i < painted.size(); ++i) ASSERT_LE(painted[i - 1].end, painted[i].begin);
    for (int64_t ns = 0; ns < 170; ++ns) {
      const size_t i = owner(order, ns, order.size());
      const SliceKind expected = i == order.size() ? SliceKind{} : naive(order, i);
      ASSERT_EQ(at(painted, ns), expected) << "round " << round << " ns " << ns;
    }
  }
}

}  // namespace
}  // namespace flatout::timeline
