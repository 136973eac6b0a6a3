// From the bytes of a picture to its place in the batch: decode, resize and write in one pass over
// the rows, so that no more of the picture is held than a few of them.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "base/clock.h"
#include "feed/augment.h"
#include "feed/orientation.h"
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

  /// `orient`: as its EXIF data say that it is to be shown, as PIL.ImageOps.exif_transpose does.
  Verdict open(std::span<const uint8_t> data, bool orient = false);
  Size size() const { return turn_.seen(decoder_.size()); }
  /// Renders the opened picture. Where the verdict is not ok and how.lenient was not asked for, the
  /// target holds anything. how.denominator follows from the mode.
  Verdict render(const View& view, Mode mode, const Target& target, Decoding how = {});
  /// All rows of the last picture were written, though some may be of damaged data.
  bool complete() const { return resizer_.complete(); }
  /// Time in resizing and writing since the renderer was made; the rest of render() is decoding.
  Nanos resize_time() const { return resizer_.spent; }

 private:
  class Resizer : public RowSink {
   public:
    struct Plan {
      bool down_first = false;  // columns are resized before rows
      bool upward = false;      // the first row is the target's last
      bool transpose = false;   // rows become the target's columns
      ColourChange colours;
    };
    void start(const Target& target, const Plan& plan);
    void restart() override;
    void rows(const uint8_t* first, size_t stride, int count) override;
    bool complete() const { return next_out_ == height_; }

    Axis across;
    Axis down;
    Nanos spent{0};

   private:
    void write(const uint8_t* row);

    Target target_;
    Plan plan_;
    int width_ = 0, height_ = 0;  // of the target before it is transposed
    size_t row_bytes_ = 0;
    int next_source_ = 0;
    int next_out_ = 0;
    std::vector<uint8_t> ring_;  // the last down.taps rows, resized across unless down_first
    std::vector<uint8_t> wide_;  // down_first: a row that is not resized across yet
    std::vector<const uint8_t*> taps_;
    std::vector<uint8_t> finished_;
    std::vector<uint8_t> canvas_;  // the target's rows before they are all there
  };

  PictureDecoder decoder_;
  Turn turn_;
  Resizer resizer_;
};

}  // namespace flatout::feed
