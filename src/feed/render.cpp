#include "feed/render.h"

#include <algorithm>
#include <cmath>

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

}  // namespace

void Renderer::Resizer::start(const Target& target) {
  target_ = target;
  row_bytes_ = static_cast<size_t>(target.width) * 4 + kRowSlack;
  next_source_ = down.first;
  next_out_ = 0;
  ring_.resize(row_bytes_ * static_cast<size_t>(down.taps));
  taps_.resize(static_cast<size_t>(down.taps));
  finished_.resize(row_bytes_);
}

void Renderer::Resizer::rows(const uint8_t* first, size_t stride, int count) {
  const TimePoint begin = MonotonicClock::now();
  const auto slot = [this](int row) {
    return ring_.data() + static_cast<size_t>(row % down.taps) * row_bytes_;
  };
  for (int i = 0; i < count; ++i, ++next_source_) {
    resize_row(across, first + static_cast<size_t>(i) * stride, across.first, slot(next_source_),
               target_.width);
    for (; next_out_ < target_.height; ++next_out_) {
      const size_t out = static_cast<size_t>(next_out_);
      const int used = down.used[out];
      if (down.begin[out] + used - 1 > next_source_) break;
      const int even = used + used % 2;
      for (int k = 0; k < even; ++k)
        taps_[static_cast<size_t>(k)] = slot(down.begin[out] + std::min(k, used - 1));
      combine_rows(taps_.data(), down.weight(next_out_), even, down.shift, finished_.data(),
                   target_.width);
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
  resizer_.start(target);
  resizer_.spent += MonotonicClock::now() - begin;
  const Axis& across = resizer_.across;
  const Axis& down = resizer_.down;
  const Rect part{across.first, down.first, across.last - across.first, down.last - down.first};
  return decoder_.decode(part, by, false, lenient, resizer_);
}

}  // namespace flatout::feed
