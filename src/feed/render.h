// From the bytes of a picture to its place in the batch: decode, resize and write in one pass over
// the rows, so that no more of the picture is held than a few of them.
#pragma once

#include <chrono>
#include <functional>
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

/// A stage of one's own: the finished picture, RGBX of the target's size, before it is normalised.
using PictureStage = std::function<void(uint8_t* rgbx, int width, int height)>;

/// One per thread.
class Renderer {
 public:
  explicit Renderer(Limits limits = {}) : decoder_(limits) {}

  /// `orient`: as its EXIF data say that it is to be shown, as PIL.ImageOps.exif_transpose does.
  Verdict open(std::span<const uint8_t> data, bool orient = false);
  Size size() const { return turn_.seen(decoder_.size()); }
  /// Renders the opened picture. Where the verdict is not ok and how.lenient was not asked for, the
  /// target holds anything. how.denominator follows from the mode. `stage` is called once where all
  /// rows are there, after colours and distortions.
  Verdict render(const View& view, Mode mode, const Target& target, Decoding how = {},
                 const PictureStage& stage = {});
  /// All rows of the last picture were written, though some may be of damaged data.
  bool complete() const { return resizer_.complete(); }
  /// Wall time since the renderer was made in resizing and writing, and in what is done to a
  /// picture that is complete; the rest of render() is decoding.
  struct Spent {
    Nanos resize{0}, finish{0};
    Spent operator-(const Spent& before) const {
      return {resize - before.resize, finish - before.finish};
    }
  };
  const Spent& spent() const { return resizer_.spent; }

 private:
  class Resizer : public RowSink {
   public:
    struct Plan {
      bool down_first = false;  // columns are resized before rows
      bool upward = false;      // the first row is the target's last
      bool transpose = false;   // rows become the target's columns
      bool on_canvas = false;   // there is something to do when all rows are there
    };
    void start(const Target& target, const Plan& plan);
    void restart() override;
    void rows(const uint8_t* first, size_t stride, int count) override;
    bool complete() const { return next_out_ == height_; }
    /// Does to the complete picture what is left to do, where plan.on_canvas says that there is.
    void finish(const View& view, const PictureStage& stage);

    Axis across;
    Axis down;
    Spent spent;

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
    std::vector<uint8_t> scratch_;
  };

  PictureDecoder decoder_;
  Turn turn_;
  Resizer resizer_;
};

}  // namespace flatout::feed
