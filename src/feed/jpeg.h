// JPEG by libjpeg-turbo: only the rows and columns that are asked for, at full, half, quarter or
// eighth size, with every irregularity told.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "feed/picture.h"

namespace flatout::feed {

/// One per thread; keeps its memory between pictures.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  /// Reads the header. `data` must live until decode() is over.
  Verdict open(std::span<const uint8_t> data, const Limits& limits, Size& size);
  /// Decodes `part` (in pixels of the picture reduced by `denominator`: 1, 2, 4 or 8) into `rows`,
  /// top to bottom. Pixels equal those of a full decode to the bit. With `whole` everything up to
  /// the end marker is looked at; else what lies below the part is not. What libjpeg warns of ends
  /// decoding, unless `lenient`: then all rows come, and the verdict is that of the first warning.
  Verdict decode(const Rect& part, int denominator, bool whole, bool lenient, RowSink& rows);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace flatout::feed
