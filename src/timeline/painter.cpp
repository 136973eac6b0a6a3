#include "timeline/painter.h"

#include <algorithm>

namespace flatout::timeline {

using model::Part;
using model::Slice;
using model::SliceKind;

namespace {

SliceKind painted_kind(SliceKind kind) {
  return part_of(kind) == Part::kInputWait ? SliceKind::kInputWait : kind;
}

SliceKind within(SliceKind outer, SliceKind inner) {
  switch (outer) {
    case SliceKind::kValidation:
    case SliceKind::kCheckpoint:
      return outer;
    case SliceKind::kInputWait:
      return inner == SliceKind::kH2d || inner == SliceKind::kCommunication ||
                     inner == SliceKind::kCheckpoint || inner == SliceKind::kValidation
                 ? inner
                 : outer;
    case SliceKind::kBackward:
      return inner == SliceKind::kForward ? outer : inner;
    default:
      return inner;
  }
}

}  // namespace

bool paints(SliceKind kind) { return part_of(kind) != Part::kCount; }

std::vector<Painted> paint(std::span<const Slice> slices) {
  std::vector<const Slice*> order;
  for (const Slice& slice : slices) {
    if (paints(slice.kind) && slice.begin < slice.end) order.push_back(&slice);
  }
  std::ranges::stable_sort(order, [](const Slice* a, const Slice* b) {
    if (a->begin != b->begin) return a->begin < b->begin;
    if (a->end != b->end) return a->end > b->end;
    return a->kind < b->kind;
  });

  std::vector<Painted> out;
  const auto emit = [&](TimePoint begin, TimePoint end, SliceKind kind) {
    if (begin >= end) return;
    if (!out.empty() && out.back().end == begin && out.back().kind == kind) {
      out.back().end = end;
    } else {
      out.push_back({begin, end, kind});
    }
  };
  // The slices that have begun and may go on, the last begun on top. One that ended below another
  // stays until it comes to the top.
  std::vector<Painted> open;
  TimePoint at{};
  const auto advance = [&](TimePoint to) {
    while (!open.empty() && at < to) {
      const Painted& top = open.back();
      const TimePoint end = std::min(top.end, to);
      emit(at, end, top.kind);
      at = std::max(at, end);
      if (top.end > to) break;
      open.pop_back();
    }
    while (!open.empty() && open.back().end <= to) open.pop_back();
    at = to;
  };
  for (const Slice* slice : order) {
    advance(slice->begin);
    SliceKind kind = painted_kind(slice->kind);
    if (!open.empty()) kind = within(open.back().kind, kind);
    open.push_back({slice->begin, slice->end, kind});
  }
  while (!open.empty()) advance(open.back().end);
  return out;
}

}  // namespace flatout::timeline
