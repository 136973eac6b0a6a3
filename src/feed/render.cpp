#include "feed/render.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace flatout::feed {
namespace {

int reduction(const View& view) {
  for (const int by : {8, 4, 2}) {
    if (view.box.width >= 2 * by * view.whole_width &&
        view.box.height >= 2 * by * view.whole_height)
      return by;
  }
  return 1;
}

void make_axis(Axis& axis, int from, int length, int by, int full, int whole, int skip, int count,
               bool mirror) {
  const double low = static_cast<double>(from) / by;
  const double high = static_cast<double>(from + length) / by;
  const int reduced = (full + by - 1) / by;
  axis.make(low, high, static_cast<int>(low), std::min(reduced, static_cast<int>(std::ceil(high))),
            whole, skip, count, mirror);
}

// Pillow 13 resizes columns first where the height shrinks by more than twice what the width does
// (in pixels); before, and else, rows come first. Each pass rounds, so the order shows.
bool goes_down_first(const View& view) {
  return view.box.height > view.whole_height &&
         view.box.height - view.whole_height > 2 * (view.box.width - view.whole_width);
}

}  // namespace

void Renderer::Resizer::start(const Target& target, bool down_first) {
  target_ = target;
  down_first_ = down_first;
  const int pixels = down_first ? across.last - across.first : target.width;
  row_bytes_ = static_cast<size_t>(pixels) * 4 + kRowSlack;
  if (down_first) wide_.resize(row_bytes_);
  next_source_ = down.first;
  next_out_ = 0;
  ring_.resize(row_bytes_ * static_cast<size_t>(down.taps));
  taps_.resize(static_cast<size_t>(down.taps));
  finished_.resize(static_cast<size_t>(target.width) * 4 + kRowSlack);
}

void Renderer::Resizer::rows(const uint8_t* first, size_t stride, int count) {
  const TimePoint begin = MonotonicClock::now();
  const auto slot = [this](int row) {
    return ring_.data() + static_cast<size_t>(row % down.taps) * row_bytes_;
  };
  for (int i = 0; i < count; ++i, ++next_source_) {
    const uint8_t* row = first + static_cast<size_t>(i) * stride;
    if (down_first_) {
      std::memcpy(slot(next_source_), row, row_bytes_ - kRowSlack);
    } else {
      resize_row(across, row, across.first, slot(next_source_), target_.width);
    }
    for (; next_out_ < target_.height; ++next_out_) {
      const size_t out = static_cast<size_t>(next_out_);
      const int used = down.used[out];
      if (down.begin[out] + used - 1 > next_source_) break;
      const int even = used + used % 2;
      for (int k = 0; k < even; ++k)
        taps_[static_cast<size_t>(k)] = slot(down.begin[out] + std::min(k, used - 1));
      if (down_first_) {
        combine_rows(taps_.data(), down.weight(next_out_), even, down.shift, wide_.data(),
                     across.last - across.first);
        resize_row(across, wide_.data(), across.first, finished_.data(), target_.width);
      } else {
        combine_rows(taps_.data(), down.weight(next_out_), even, down.shift, finished_.data(),
                     target_.width);
      }
      write_row(target_, next_out_, finished_.data());
    }
  }
  spent += MonotonicClock::now() - begin;
}

Verdict Renderer::render(const View& view, Mode mode, bool lenient, const Target& target) {
  const TimePoint begin = MonotonicClock::now();
  const int by = mode == Mode::kScaled && decoder_.reducible() ? reduction(view) : 1;
  make_axis(resizer_.across, view.box.x, view.box.width, by, size().width, view.whole_width,
            view.skip_x, target.width, view.flip);
  make_axis(resizer_.down, view.box.y, view.box.height, by, size().height, view.whole_height,
            view.skip_y, target.height, false);
  resizer_.start(target, goes_down_first(view));
  resizer_.spent += MonotonicClock::now() - begin;
  const Axis& across = resizer_.across;
  const Axis& down = resizer_.down;
  const Rect part{across.first, down.first, across.last - across.first, down.last - down.first};
  return decoder_.decode(part, by, false, lenient, resizer_);
}

}  // namespace flatout::feed
