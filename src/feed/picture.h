// A picture of any format: header, limits, and decoding by rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "feed/huffman.h"
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
  // Of its longer side. A filter that shrinks that far has as many weights; no format but PNG gets
  // beyond 65535.
  int side = 1'000'000;
  uint64_t file_bytes = 512ULL << 20;
  int scans = 500;  // of a progressive JPEG
};

/// Takes rows from the top.
class RowSink {
 public:
  virtual ~RowSink() = default;
  /// What came so far is void: the rows come again, from the first.
  virtual void restart() = 0;
  /// `count` rows of the part, RGBX, `stride` bytes apart, each with kRowSlack readable bytes
  /// behind it. The fourth byte of a pixel means nothing.
  virtual void rows(const uint8_t* first, size_t stride, int count) = 0;
};

/// How a part of a picture is decoded.
struct Decoding {
  int denominator = 1;   // of JPEG: 1, 2, 4 or 8; the part is in pixels of the picture so reduced
  bool whole = false;    // look at everything up to the end, not only at what the part needs
  bool lenient = false;  // damage does not end it: all rows come
  bool stock = false;    // entropy decoding by libjpeg itself, which ours is checked against
  std::span<const Checkpoint> checkpoints;   // of this very picture, where there are any
  std::vector<Checkpoint>* found = nullptr;  // made those of the picture; empty: it can have none
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
  Verdict decode(const Rect& part, const Decoding& how, RowSink& rows);

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
