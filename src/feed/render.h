// From the bytes of a picture to its place in the batch: decode, resize and write in one pass over
// the rows, so that no more of the picture is held than a few of them.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "base/clock.h"
#include "feed/augment.h"
#include "feed/picture.h"
#include "feed/resize.h"
#include "feed/write.h"

namespace flatout::feed {

/// How exactly pictures are decoded.
enum class Mode : uint8_t {
  kExact,   // as Pillow: full decode, crop, antialiased bilinear
  kScaled,  // JPEG at 1/2, 1/4 or 1/8, while both sides stay at least twice the target's
};

/// One per thread.
class Renderer {
 public:
  explicit Renderer(Limits limits = {}) : decoder_(limits) {}

  Verdict open(std::span<const uint8_t> data) { return decoder_.open(data); }
  Size size() const { return decoder_.size(); }
  /// Renders the opened picture. Where the verdict is not ok and `lenient` was not asked for, the
  /// target holds anything.
  Verdict render(const View& view, Mode mode, bool lenient, const Target& target);
  /// All rows of the last picture were written, though some may be of damaged data.
  bool complete() const { return resizer_.complete(); }
  /// Time in resizing and writing since the renderer was made; the rest of render() is decoding.
  Nanos resize_time() const { return resizer_.spent; }

 private:
  class Resizer : public RowSink {
   public:
    /// `down_first`: columns are resized before rows.
    void start(const Target& target, bool down_first);
    void rows(const uint8_t* first, size_t stride, int count) override;
    bool complete() const { return next_out_ == target_.height; }

    Axis across;
    Axis down;
    Nanos spent{0};

   private:
    Target target_;
    size_t row_bytes_ = 0;
    int next_source_ = 0;
    int next_out_ = 0;
    bool down_first_ = false;
    std::vector<uint8_t> ring_;  // the last down.taps rows, resized across unless down_first_
    std::vector<uint8_t> wide_;  // down_first_: a row that is not resized across yet
    std::vector<const uint8_t*> taps_;
    std::vector<uint8_t> finished_;
  };

  PictureDecoder decoder_;
  Resizer resizer_;
};

}  // namespace flatout::feed
