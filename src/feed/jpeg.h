// JPEG by libjpeg-turbo: only the rows and columns that are asked for, at full, half, quarter or
// eighth size, with every irregularity told. Entropy decoding of sequential JPEG is our own
// (feed/huffman.h): it takes the place of libjpeg's in libjpeg's own decoder object, so everything
// behind the coefficients is libjpeg's.
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
  /// Decodes `part` into `rows`, top to bottom. Pixels equal those of a full decode to the bit.
  /// Without how.whole nothing below the part is looked at, and with checkpoints nothing before it.
  /// What libjpeg warns of ends decoding, unless how.lenient: then the verdict is that of the first
  /// warning.
  Verdict decode(const Rect& part, const Decoding& how, RowSink& rows);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace flatout::feed
