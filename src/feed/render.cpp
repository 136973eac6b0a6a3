#include "feed/render.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace flatout::feed {
namespace {

int reduction(const View& view) {
  for (const int by : {8, 4, 2}) {
    if (view.box.width >= int64_t{2} * by * view.whole_width &&
        view.box.height >= int64_t{2} * by * view.whole_height)
      return by;
  }
  return 1;
}

void make_axis(Axis& axis, int from, int length, int by, int full, int whole, int skip, int count,
               bool mirror, Filter filter) {
  const double low = static_cast<double>(from) / by;
  const double high = static_cast<double>(from + length) / by;
  const int reduced = (full + by - 1) / by;
  axis.make(low, high, static_cast<int>(low), std::min(reduced, static_cast<int>(std::ceil(high))),
            whole, skip, count, mirror, filter);
}

// Pillow 13 resizes columns first where the height shrinks by more than twice what the width does
// (in pixels); before, and else, rows come first. Each pass rounds, so the order shows.
bool goes_down_first(const View& view) {
  return view.box.height > view.whole_height &&
         view.box.height - view.whole_height > 2 * (view.box.width - view.whole_width);
}

}  // namespace

void Renderer::Resizer::start(const Target& target, const Plan& plan) {
  target_ = target;
  plan_ = plan;
  width_ = plan.transpose ? target.height : target.width;
  height_ = plan.transpose ? target.width : target.height;
  const int pixels = plan.down_first ? across.last - across.first : width_;
  row_bytes_ = static_cast<size_t>(pixels) * 4 + kRowSlack;
  if (plan.down_first) wide_.resize(row_bytes_);
  ring_.resize(row_bytes_ * static_cast<size_t>(down.taps));
  taps_.resize(static_cast<size_t>(down.taps));
  finished_.resize(static_cast<size_t>(width_) * 4 + kRowSlack);
  if (plan.on_canvas)
    canvas_.resize(static_cast<size_t>(width_) * static_cast<size_t>(height_) * 4 + kRowSlack);
  restart();
}

void Renderer::Resizer::restart() {
  next_source_ = down.first;
  next_out_ = 0;
}

void Renderer::Resizer::rows(const uint8_t* first, size_t stride, int count) {
  const TimePoint begin = MonotonicClock::now();
  const auto slot = [this](int row) {
    return ring_.data() + static_cast<size_t>(row % down.taps) * row_bytes_;
  };
  for (int i = 0; i < count; ++i, ++next_source_) {
    const uint8_t* row = first + static_cast<size_t>(i) * stride;
    if (plan_.down_first) {
      std::memcpy(slot(next_source_), row, row_bytes_ - kRowSlack);
    } else {
      resize_row(across, row, across.first, slot(next_source_), width_);
    }
    for (; next_out_ < height_; ++next_out_) {
      const size_t out = static_cast<size_t>(next_out_);
      const int used = down.used[out];
      if (down.begin[out] + used - 1 > next_source_) break;
      const int even = used + used % 2;
      for (int k = 0; k < even; ++k)
        taps_[static_cast<size_t>(k)] = slot(down.begin[out] + std::min(k, used - 1));
      if (plan_.down_first) {
        combine_rows(taps_.data(), down.weight(next_out_), even, down.shift, wide_.data(),
                     across.last - across.first);
        resize_row(across, wide_.data(), across.first, finished_.data(), width_);
      } else {
        combine_rows(taps_.data(), down.weight(next_out_), even, down.shift, finished_.data(),
                     width_);
      }
      write(finished_.data());
    }
  }
  spent.resize += MonotonicClock::now() - begin;
}

// Row next_out_, to its place: in the target, or, where it is not as it has to be yet, on the
// canvas.
void Renderer::Resizer::write(const uint8_t* row) {
  const int place = plan_.upward ? height_ - 1 - next_out_ : next_out_;
  if (!plan_.on_canvas) return write_row(target_, place, row);
  const size_t stride = static_cast<size_t>(target_.width) * 4;
  if (plan_.transpose) {
    uint8_t* column = canvas_.data() + static_cast<size_t>(place) * 4;
    for (size_t y = 0; y < static_cast<size_t>(width_); ++y)
      std::memcpy(column + y * stride, row + y * 4, 4);
  } else {
    std::memcpy(canvas_.data() + static_cast<size_t>(place) * stride, row, stride);
  }
}

void Renderer::Resizer::finish(const View& view, const PictureStage& stage) {
  if (!plan_.on_canvas || !complete()) return;
  const TimePoint begin = MonotonicClock::now();
  change_colours(view.colours, canvas_.data(),
                 static_cast<size_t>(width_) * static_cast<size_t>(height_));
  distort(view.distortions, canvas_.data(), target_.width, target_.height, scratch_);
  if (stage) stage(canvas_.data(), target_.width, target_.height);
  for (int y = 0; y < target_.height; ++y)
    write_row(target_, y,
              canvas_.data() + static_cast<size_t>(y) * static_cast<size_t>(target_.width) * 4);
  spent.finish += MonotonicClock::now() - begin;
}

Verdict Renderer::open(std::span<const uint8_t> data, bool orient) {
  turn_ = orient ? Turn(exif_orientation(data)) : Turn();
  return decoder_.open(data);
}

Verdict Renderer::render(const View& view, Mode mode, const Target& target, Decoding how,
                         const PictureStage& stage) {
  const TimePoint begin = MonotonicClock::now();
  how.denominator = mode == Mode::kScaled && decoder_.reducible() ? reduction(view) : 1;
  const int by = how.denominator;
  // In the picture as it is stored: what is mirrored there is mirrored back on the way out.
  const Size stored = decoder_.size();
  const Rect box = turn_.stored(view.box, stored);
  const Size whole = turn_.seen({view.whole_width, view.whole_height});
  const Rect shown = turn_.stored({view.skip_x, view.skip_y, target.width, target.height}, whole);
  const bool mirrored = turn_.mirrors_x() != (view.flip && !turn_.transposes());
  Resizer::Plan plan;
  plan.transpose = turn_.transposes();
  plan.upward = turn_.mirrors_y() != (view.flip && turn_.transposes());
  plan.on_canvas =
      plan.transpose || view.colours.count > 0 || view.distortions.count > 0 || stage != nullptr;
  plan.down_first = goes_down_first(view) != turn_.transposes();
  make_axis(resizer_.across, box.x, box.width, by, stored.width, whole.width, shown.x, shown.width,
            mirrored, view.filter);
  make_axis(resizer_.down, box.y, box.height, by, stored.height, whole.height, shown.y,
            shown.height, false, view.filter);
  resizer_.start(target, plan);
  resizer_.spent.resize += MonotonicClock::now() - begin;
  const Axis& across = resizer_.across;
  const Axis& down = resizer_.down;
  const Rect part{across.first, down.first, across.last - across.first, down.last - down.first};
  Verdict verdict = decoder_.decode(part, how, resizer_);
  if (verdict.ok() || how.lenient) resizer_.finish(view, stage);
  return verdict;
}

}  // namespace flatout::feed
