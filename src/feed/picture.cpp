#include "feed/picture.h"

#include <spng.h>
#include <webp/decode.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "feed/jpeg.h"
#include "feed/resize.h"

namespace flatout::feed {
namespace {

bool starts_with(std::span<const uint8_t> data, std::string_view magic, size_t at = 0) {
  return data.size() >= at + magic.size() &&
         std::memcmp(data.data() + at, magic.data(), magic.size()) == 0;
}

// Formats that people keep pictures in and that are not read here.
std::string_view unsupported_format(std::span<const uint8_t> data) {
  if (starts_with(data, "GIF8")) return "GIF";
  if (starts_with(data, "BM") && data.size() >= 26 && data[6] == 0 && data[7] == 0 &&
      data[8] == 0 && data[9] == 0)
    return "BMP";
  if (starts_with(data, {"II*\0", 4}) || starts_with(data, {"MM\0*", 4})) return "TIFF";
  if (starts_with(data, "ftyp", 4)) return "HEIF or AVIF";
  if (starts_with(data, {"\0\0\0\x0CjP  ", 8}) || starts_with(data, "\xFF\x4F\xFF\x51"))
    return "JPEG 2000";
  if (starts_with(data, "\xFF\x0A") || starts_with(data, {"\0\0\0\x0CJXL ", 8})) return "JPEG XL";
  if (starts_with(data, "8BPS")) return "Photoshop";
  if (starts_with(data, {"\0\0\1\0", 4})) return "icon";
  if (data.size() >= 3 && data[0] == 'P' && data[1] >= '1' && data[1] <= '7' &&
      (data[2] == '\n' || data[2] == ' ' || data[2] == '\r' || data[2] == '\t'))
    return "PNM";
  return {};
}

Outcome outcome_of_png(int code) {
  switch (code) {
    case SPNG_IO_EOF:
    case SPNG_EINVAL:
      return Outcome::kTruncated;
    case SPNG_EMEM:
    case SPNG_EOVERFLOW:
    case SPNG_EUSER_WIDTH:
    case SPNG_EUSER_HEIGHT:
    case SPNG_ECHUNK_LIMITS:
      return Outcome::kTooLarge;
    case SPNG_ESIGNATURE:
      return Outcome::kNotAnImage;
    default:
      return Outcome::kCorrupt;
  }
}

Outcome outcome_of_webp(VP8StatusCode code) {
  switch (code) {
    case VP8_STATUS_OK:
      return Outcome::kOk;
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      return Outcome::kTruncated;
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return Outcome::kUnsupported;
    case VP8_STATUS_OUT_OF_MEMORY:
      return Outcome::kTooLarge;
    default:
      return Outcome::kCorrupt;
  }
}

Verdict png_error(int code) { return {outcome_of_png(code), spng_strerror(code)}; }

// A context that is set up to read `data`, or null.
using PngContext = std::unique_ptr<spng_ctx, void (*)(spng_ctx*)>;
PngContext png_context(std::span<const uint8_t> data) {
  PngContext context(spng_ctx_new(0), spng_ctx_free);
  if (!context) return context;
  spng_set_chunk_limits(context.get(), 64 << 20, 64 << 20);
  // Only the checksums of what makes the picture count: Pillow and browsers read on past the rest.
  spng_set_crc_action(context.get(), SPNG_CRC_ERROR, SPNG_CRC_DISCARD);
  spng_set_png_buffer(context.get(), data.data(), data.size());
  return context;
}

}  // namespace

struct PictureDecoder::State {
  JpegDecoder jpeg;
  std::vector<uint8_t> pixels;  // of formats that are decoded whole
};

PictureDecoder::PictureDecoder(Limits limits)
    : limits_(limits), state_(std::make_unique<State>()) {}
PictureDecoder::~PictureDecoder() = default;

Verdict PictureDecoder::open(std::span<const uint8_t> data) {
  data_ = data;
  size_ = {};
  format_ = Format::kNone;
  if (data.empty()) return {Outcome::kEmpty, "no bytes"};
  if (data.size() > limits_.file_bytes)
    return {Outcome::kTooLarge, std::to_string(data.size()) + " bytes"};
  if (starts_with(data, "\xFF\xD8\xFF")) {
    format_ = Format::kJpeg;
    return state_->jpeg.open(data, limits_, size_);
  }
  if (starts_with(data, "\xFF\xD8")) {
    return data.size() == 2 ? Verdict{Outcome::kTruncated, "nothing follows the first marker"}
                            : Verdict{Outcome::kCorrupt, "no marker follows the first"};
  }
  if (starts_with(data, "\x89PNG\r\n\x1A\n")) {
    const PngContext context = png_context(data);
    if (!context) return {Outcome::kTooLarge, "out of memory"};
    spng_ihdr header{};
    if (data.size() < 33) return {Outcome::kTruncated, "the header is cut"};
    if (const int code = spng_get_ihdr(context.get(), &header); code != 0) return png_error(code);
    size_ = {static_cast<int>(header.width), static_cast<int>(header.height)};
    format_ = Format::kPng;
  } else if (starts_with(data, "RIFF") && starts_with(data, "WEBP", 8)) {
    WebPBitstreamFeatures features{};
    const VP8StatusCode code = WebPGetFeatures(data.data(), data.size(), &features);
    if (code != VP8_STATUS_OK) return {outcome_of_webp(code), "WebP header"};
    if (features.has_animation) return {Outcome::kUnsupported, "an animated WebP"};
    size_ = {features.width, features.height};
    format_ = Format::kWebp;
  } else if (const std::string_view other = unsupported_format(data); !other.empty()) {
    return {Outcome::kUnsupported, std::string(other) + " is not read"};
  } else {
    return {Outcome::kNotAnImage, "no known format"};
  }
  const uint64_t pixels = static_cast<uint64_t>(size_.width) * static_cast<uint64_t>(size_.height);
  if (pixels > limits_.pixels || pixels * 4 > limits_.buffer_bytes ||
      std::max(size_.width, size_.height) > limits_.side)
    return {Outcome::kTooLarge, std::to_string(size_.width) + " x " + std::to_string(size_.height)};
  return {};
}

Verdict PictureDecoder::decode(const Rect& part, const Decoding& how, RowSink& rows) {
  if (format_ == Format::kJpeg) return state_->jpeg.decode(part, how, rows);

  const size_t stride = static_cast<size_t>(size_.width) * 4;
  const size_t bytes = stride * static_cast<size_t>(size_.height);
  std::vector<uint8_t>& pixels = state_->pixels;
  pixels.assign(bytes + kRowSlack, 0);
  Verdict verdict;
  if (format_ == Format::kPng) {
    const PngContext context = png_context(data_);
    if (!context) return {Outcome::kTooLarge, "out of memory"};
    // Rows one by one: what comes before the damage is there.
    int code =
        spng_decode_image(context.get(), nullptr, 0, SPNG_FMT_RGBA8, SPNG_DECODE_PROGRESSIVE);
    while (code == 0) {
      spng_row_info row{};
      code = spng_get_row_info(context.get(), &row);
      if (code != 0) break;
      code = spng_decode_row(context.get(), pixels.data() + row.row_num * stride, stride);
    }
    // What follows the last row is read too: the checksum and the end of the file.
    if (code == SPNG_EOI) code = spng_decode_chunks(context.get());
    if (code != 0) verdict = png_error(code);
  } else {
    WebPDecoderConfig config;
    WebPInitDecoderConfig(&config);
    config.output.colorspace = MODE_RGBA;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = pixels.data();
    config.output.u.RGBA.stride = static_cast<int>(stride);
    config.output.u.RGBA.size = bytes;
    const VP8StatusCode code = WebPDecode(data_.data(), data_.size(), &config);
    if (code != VP8_STATUS_OK) verdict = {outcome_of_webp(code), "WebP data"};
  }
  if (!verdict.ok() && !how.lenient) return verdict;
  rows.rows(pixels.data() + static_cast<size_t>(part.y) * stride + static_cast<size_t>(part.x) * 4,
            stride, part.height);
  return verdict;
}

}  // namespace flatout::feed
