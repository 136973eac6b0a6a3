// A picture of any format: header, limits, and decoding by rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "feed/outcome.h"

namespace flatout::feed {

struct Size {
  int width = 0;
  int height = 0;
};

struct Rect {
  int x = 0;
  int y = 0;
  int width = 0;
  int height = 0;
};

/// Checked before memory is taken.
struct Limits {
  uint64_t pixels = 178'956'970;         // as Pillow's bound against decompression bombs
  uint64_t buffer_bytes = 320ULL << 20;  // where a picture has to be held whole
  uint64_t file_bytes = 512ULL << 20;
  int scans = 500;  // of a progressive JPEG
};

/// Takes rows from the top.
class RowSink {
 public:
  virtual ~RowSink() = default;
  /// `count` rows of the part, RGBX, `stride` bytes apart, each with kRowSlack readable bytes
  /// behind it. The fourth byte of a pixel means nothing.
  virtual void rows(const uint8_t* first, size_t stride, int count) = 0;
};

/// Reads JPEG, PNG and WebP. One per thread; keeps its memory between pictures.
class PictureDecoder {
 public:
  explicit PictureDecoder(Limits limits = {});
  ~PictureDecoder();

  /// Reads the header. `data` must live until decode() is over.
  Verdict open(std::span<const uint8_t> data);
  Size size() const { return size_; }
  /// The picture can be decoded at 1/denominator of its size.
  bool reducible() const { return format_ == Format::kJpeg; }
  /// As JpegDecoder::decode. Pixels are those of Pillow's convert("RGB").
  Verdict decode(const Rect& part, int denominator, bool whole, bool lenient, RowSink& rows);

 private:
  enum class Format : uint8_t { kNone, kJpeg, kPng, kWebp };
  struct State;
  Limits limits_;
  Format format_ = Format::kNone;
  Size size_;
  std::span<const uint8_t> data_;
  std::unique_ptr<State> state_;
};

}  // namespace flatout::feed
