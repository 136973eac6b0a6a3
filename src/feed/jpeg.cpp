#include "feed/jpeg.h"

#include <csetjmp>
#include <cstdio>
#include <cstring>

// After <cstdio>: it needs FILE and size_t.
#include <jpeglib.h>
// After <jpeglib.h>: they need its types.
#include <jerror.h>
#include <jpegint.h>

#include <algorithm>

#include "feed/jpeg_scan.h"
#include "feed/resize.h"
#include "feed/seek_index.h"

namespace flatout::feed {
namespace {

constexpr size_t kMcuMost = 32;  // pixels: sampling factors go to 4

// What libjpeg's errors, which end a picture, mean for a sample.
Outcome outcome_of_error(int code) {
  switch (code) {
    case JERR_NO_SOI:
      return Outcome::kNotAnImage;
    case JERR_INPUT_EOF:
    case JERR_INPUT_EMPTY:
    case JERR_NO_IMAGE:
      return Outcome::kTruncated;
    case JERR_BAD_PRECISION:
    case JERR_SOF_UNSUPPORTED:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_CCIR601_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_ARITH_NOTIMPL:
    case JERR_NOT_COMPILED:
    case JERR_BAD_J_COLORSPACE:
      return Outcome::kUnsupported;
    case JERR_IMAGE_TOO_BIG:
    case JERR_WIDTH_OVERFLOW:
    case JERR_OUT_OF_MEMORY:
      return Outcome::kTooLarge;
    default:
      return Outcome::kCorrupt;
  }
}

// The last two bytes of a JPEG are the end marker; where others follow, it is looked for.
bool has_end_marker(std::span<const uint8_t> data) {
  for (size_t i = data.size(); i >= 2; --i) {
    if (data[i - 2] == 0xFF && data[i - 1] == 0xD9) return true;
    if (data[i - 2] == 0xFF && data[i - 1] == 0xDA) return false;  // a scan that does not end
  }
  return false;
}

// Ink is stored inverted, as Adobe does; so Pillow takes it, too, and multiplies by what is not
// black.
void inks_to_rgb(uint8_t* row, unsigned pixels) {
  for (uint8_t* pixel = row; pixel < row + size_t{pixels} * 4; pixel += 4) {
    const int white = pixel[3];
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - pixel[c]) * white + 128;
      const int ink = ((product >> 8) + product) >> 8;
      pixel[c] = static_cast<uint8_t>(std::clamp(white - ink, 0, 255));
    }
  }
}

// Pixels of a block, on each side, in a reduced picture.
int block_pixels(const jpeg_decompress_struct& info) {
#if JPEG_LIB_VERSION >= 70
  return info.min_DCT_h_scaled_size;
#else
  return info.min_DCT_scaled_size;
#endif
}

// Scans that begin in `data`, counted up to one more than `most`.
int count_scans(std::span<const uint8_t> data, int most) {
  int scans = 0;
  for (size_t i = 0; i + 1 < data.size() && scans <= most; ++i) {
    const void* found = std::memchr(data.data() + i, 0xFF, data.size() - 1 - i);
    if (found == nullptr) break;
    i = static_cast<size_t>(static_cast<const uint8_t*>(found) - data.data());
    if (data[i + 1] == 0xDA) ++scans;
  }
  return scans;
}

}  // namespace

struct JpegDecoder::State {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_source_mgr source{};
  jmp_buf escape{};
  Limits limits;
  std::span<const uint8_t> data;
  bool lenient = false;
  bool ended = false;  // libjpeg asked for bytes beyond the last
  Outcome outcome = Outcome::kOk;
  char text[JMSG_LENGTH_MAX] = {};
  size_t row_bytes = 0;
  std::vector<uint8_t> strip;  // a row of MCUs

  // Entropy decoding in libjpeg's place.
  ScanDecoder scan;
  ScanTables tables;
  bool irregular = false;                      // the data are for libjpeg to judge
  uint32_t asked = 0;                          // MCUs that libjpeg has asked for
  uint32_t first_column = 0, last_column = 0;  // of MCUs that are needed
  std::span<const Checkpoint> known;
  std::vector<Checkpoint>* found = nullptr;

  // Of reduced pictures with more than two chroma steps libjpeg-turbo 2.1.5 cuts columns wrong.
  bool needs_all_columns(int denominator) const {
    return denominator > 1 && info.max_h_samp_factor > 2;
  }
  void make_strip(size_t columns) {
    row_bytes = (columns + 4 * kMcuMost) * 4 + kRowSlack;
    if (strip.size() < row_bytes * kMcuMost) strip.resize(row_bytes * kMcuMost);
  }
  void run(const Rect& part, const Decoding& how, RowSink& rows);
  bool take_over(const Decoding& how);
  void take_mcu(JBLOCKROW* blocks);
  void go_to(uint32_t mcu);
  void next_mcu(JBLOCKROW* blocks);
  void find_the_rest();

  static State& of(j_common_ptr info) { return *static_cast<State*>(info->client_data); }

  Verdict verdict() const { return {outcome, outcome == Outcome::kOk ? "" : text}; }

  // The first irregularity names the outcome.
  void note(Outcome what) {
    if (outcome != Outcome::kOk) return;
    outcome = what;
    errors.format_message(reinterpret_cast<j_common_ptr>(&info), text);
  }
  void note(Outcome what, const char* words) {
    if (outcome != Outcome::kOk) return;
    outcome = what;
    std::snprintf(text, sizeof text, "%s", words);
  }

  // Leaves libjpeg for the setjmp below. Only libjpeg's own C frames and these callbacks, which own
  // nothing, lie between.
  [[noreturn]] void leave() { longjmp(escape, 1); }

  static void on_error(j_common_ptr info) {
    State& self = of(info);
    self.outcome = Outcome::kOk;  // an error outweighs the warnings before it
    self.note(self.ended ? Outcome::kTruncated : outcome_of_error(info->err->msg_code));
    self.leave();
  }

  static void on_message(j_common_ptr info, int level) {
    if (level >= 0) return;
    State& self = of(info);
    const auto& decoder = self.info;
    switch (info->err->msg_code) {
      case JWRN_ADOBE_XFORM:
      case JWRN_JFIF_MAJOR:
        return;  // unusual, not damaged
      case JWRN_JPEG_EOF:
        self.note(Outcome::kTruncated);
        break;
      case JWRN_HIT_MARKER:
        // The end comes rows too early: the data were cut. Within the last row, or at another
        // marker, bits were damaged.
        self.note(decoder.unread_marker == JPEG_EOI &&
                          decoder.input_iMCU_row + 1 < decoder.total_iMCU_rows
                      ? Outcome::kTruncated
                      : Outcome::kCorrupt);
        break;
      default:
        self.note(Outcome::kCorrupt);
    }
    if (!self.lenient) self.leave();
  }

  static boolean on_mcu(j_decompress_ptr info, JBLOCKROW* blocks) {
    of(reinterpret_cast<j_common_ptr>(info)).take_mcu(blocks);
    return TRUE;
  }

  static void on_start(j_decompress_ptr) {}
  static void on_end(j_decompress_ptr) {}
  static boolean on_fill(j_decompress_ptr info) {
    State& self = of(reinterpret_cast<j_common_ptr>(info));
    self.ended = true;
    self.note(Outcome::kTruncated, "the data end before the picture does");
    if (!self.lenient) self.leave();
    static const JOCTET kEnd[2] = {0xFF, JPEG_EOI};
    info->src->next_input_byte = kEnd;
    info->src->bytes_in_buffer = 2;
    return TRUE;
  }
  static void on_skip(j_decompress_ptr info, long bytes) {
    jpeg_source_mgr* source = info->src;
    if (bytes <= 0) return;
    if (static_cast<size_t>(bytes) > source->bytes_in_buffer) {
      on_fill(info);
      return;
    }
    source->next_input_byte += bytes;
    source->bytes_in_buffer -= static_cast<size_t>(bytes);
  }
};

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.info.err = jpeg_std_error(&s.errors);
  s.errors.error_exit = State::on_error;
  s.errors.emit_message = State::on_message;
  s.errors.output_message = [](j_common_ptr) {};
  s.source.init_source = State::on_start;
  s.source.fill_input_buffer = State::on_fill;
  s.source.skip_input_data = State::on_skip;
  s.source.resync_to_restart = jpeg_resync_to_restart;
  s.source.term_source = State::on_end;
}

JpegDecoder::~JpegDecoder() { jpeg_destroy_decompress(&state_->info); }

Verdict JpegDecoder::open(std::span<const uint8_t> data, const Limits& limits, Size& size) {
  State& s = *state_;
  s.limits = limits;
  s.data = data;
  s.ended = false;
  s.lenient = false;
  s.outcome = Outcome::kOk;
  if (setjmp(s.escape)) {
    jpeg_abort_decompress(&s.info);
    return s.verdict();
  }
  // A new object for each picture, since tables outlive jpeg_abort_decompress: a file without its
  // own would be decoded with those of the one before.
  jpeg_destroy_decompress(&s.info);
  jpeg_create_decompress(&s.info);
  s.info.client_data = &s;
  s.source.next_input_byte = data.data();
  s.source.bytes_in_buffer = data.size();
  s.info.src = &s.source;
  jpeg_read_header(&s.info, TRUE);
  size = {static_cast<int>(s.info.image_width), static_cast<int>(s.info.image_height)};
  const uint64_t pixels = uint64_t{s.info.image_width} * s.info.image_height;
  uint64_t held = 0;  // the coefficients of a picture in several scans
  if (jpeg_has_multiple_scans(&s.info)) {
    if (count_scans(data.last(s.source.bytes_in_buffer), limits.scans) > limits.scans) {
      jpeg_abort_decompress(&s.info);
      return {Outcome::kTooLarge, "more scans than any camera or program writes"};
    }
    for (int i = 0; i < s.info.num_components; ++i) {
      const jpeg_component_info& part = s.info.comp_info[i];
      held += uint64_t{part.width_in_blocks} * part.height_in_blocks * sizeof(JBLOCK);
    }
  }
  if (pixels > limits.pixels || held > limits.buffer_bytes) {
    jpeg_abort_decompress(&s.info);
    return {Outcome::kTooLarge, std::to_string(size.width) + " x " + std::to_string(size.height)};
  }
  return {};
}

// Puts our entropy decoder in the place of libjpeg's, where the scan is one that it knows.
bool JpegDecoder::State::take_over(const Decoding& how) {
  ScanLayout layout;
  if (how.stock || how.whole || jpeg_has_multiple_scans(&info) ||
      !describe_scan(info, tables, layout))
    return false;
  scan.start(data.last(source.bytes_in_buffer), layout);
  const bool can_index = source.bytes_in_buffer < UINT32_MAX / 8;
  const size_t checkpoints = size_t{checkpoints_of_row(info.MCUs_per_row)} * info.MCU_rows_in_scan;
  known = can_index && how.checkpoints.size() == checkpoints ? how.checkpoints
                                                             : std::span<const Checkpoint>();
  found = can_index && known.empty() ? how.found : nullptr;
  asked = 0;
  info.entropy->decode_mcu = on_mcu;
  return true;
}

// What libjpeg asks for, MCU by MCU; without blocks it only passes one by. Blocks that nothing is
// put into are zero, and no pixel is made of them.
void JpegDecoder::State::take_mcu(JBLOCKROW* blocks) {
  const uint32_t mcu = asked++;
  const uint32_t column = mcu % info.MCUs_per_row;
  const bool needed = blocks != nullptr && column >= first_column && column <= last_column;
  if (!known.empty()) {
    if (!needed) return;
    go_to(mcu);
  }
  next_mcu(needed ? blocks : nullptr);
}

// From the last checkpoint before it, unless that would be a way back.
void JpegDecoder::State::go_to(uint32_t mcu) {
  const uint32_t row = mcu / info.MCUs_per_row;
  const uint32_t number = mcu % info.MCUs_per_row / kCheckpointMcus;
  const uint32_t nearest = row * info.MCUs_per_row + number * kCheckpointMcus;
  if (scan.mcu() < nearest || scan.mcu() > mcu) {
    const Checkpoint& place = known[row * checkpoints_of_row(info.MCUs_per_row) + number];
    if (!scan.seek(nearest, place)) {
      irregular = true;
      leave();
    }
  }
  while (scan.mcu() < mcu) next_mcu(nullptr);
}

void JpegDecoder::State::next_mcu(JBLOCKROW* blocks) {
  const uint32_t column = scan.mcu() % info.MCUs_per_row;
  if (column % kCheckpointMcus == 0) {
    const size_t number =
        size_t{scan.mcu() / info.MCUs_per_row} * checkpoints_of_row(info.MCUs_per_row) +
        column / kCheckpointMcus;
    // An index that leads elsewhere than decoding does is of another picture.
    if (!known.empty() && scan.checkpoint() != known[number]) irregular = true;
    if (found != nullptr) found->push_back(scan.checkpoint());
  }
  int16_t* each[ScanLayout::kMostBlocks] = {};
  if (blocks != nullptr) {
    for (int i = 0; i < info.blocks_in_MCU; ++i) each[i] = blocks[i][0];
  }
  if (irregular || !scan.next(blocks != nullptr ? each : nullptr)) {
    irregular = true;
    leave();
  }
}

// The checkpoints below the part.
void JpegDecoder::State::find_the_rest() {
  const uint32_t all = info.MCUs_per_row * info.MCU_rows_in_scan;
  while (scan.mcu() < all) next_mcu(nullptr);
}

// What may leave by longjmp, in a frame of its own that owns nothing.
void JpegDecoder::State::run(const Rect& part, const Decoding& how, RowSink& rows) {
  if (!has_end_marker(data)) {
    note(Outcome::kTruncated, "the end marker is missing");
    if (!lenient) leave();
  }
  const bool inks = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = inks ? JCS_CMYK : JCS_EXT_RGBX;
  info.dct_method = JDCT_ISLOW;
  info.do_fancy_upsampling = TRUE;
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(how.denominator);
  jpeg_start_decompress(&info);

  // One more MCU on each side: upsampled chroma looks at its neighbours, and at the edge of what is
  // decoded it would see none.
  const int full_width = static_cast<int>(info.output_width);
  const int mcu_width = info.max_h_samp_factor * block_pixels(info);
  const int mcu_height = info.max_v_samp_factor * block_pixels(info);
  JDIMENSION left = 0;
  if (!needs_all_columns(how.denominator)) {
    left = static_cast<JDIMENSION>(std::max(0, part.x - mcu_width));
    JDIMENSION width =
        static_cast<JDIMENSION>(std::min(full_width, part.x + part.width + mcu_width)) - left;
    if (width < info.output_width) jpeg_crop_scanline(&info, &left, &width);
  }
  const bool own = take_over(how);
  first_column = left / static_cast<JDIMENSION>(mcu_width);
  last_column = (left + info.output_width - 1) / static_cast<JDIMENSION>(mcu_width);
  const int top = std::max(0, part.y / mcu_height * mcu_height - mcu_height);
  if (top > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(top));

  JSAMPROW lines[kMcuMost];
  for (size_t i = 0; i < kMcuMost; ++i) lines[i] = strip.data() + row_bytes * i;
  const int end = part.y + part.height;
  while (static_cast<int>(info.output_scanline) < end) {
    const int y = static_cast<int>(info.output_scanline);
    const int wanted = std::min(mcu_height, (y < part.y ? part.y : end) - y);
    int got = 0;
    while (got < wanted) {
      got += static_cast<int>(
          jpeg_read_scanlines(&info, lines + got, static_cast<JDIMENSION>(wanted - got)));
    }
    if (y < part.y) continue;
    if (inks) {
      for (int i = 0; i < got; ++i) inks_to_rgb(lines[i], info.output_width);
    }
    rows.rows(lines[0] + (static_cast<size_t>(part.x) - left) * 4, row_bytes, got);
  }
  if (how.whole) {
    jpeg_finish_decompress(&info);
    return;
  }
  if (own && found != nullptr) find_the_rest();
  jpeg_abort_decompress(&info);
}

Verdict JpegDecoder::decode(const Rect& part, const Decoding& how, RowSink& rows) {
  State& s = *state_;
  s.lenient = how.lenient;
  s.irregular = false;
  if (how.found != nullptr) how.found->clear();
  s.make_strip(s.needs_all_columns(how.denominator) ? s.info.image_width
                                                    : static_cast<size_t>(part.width));
  if (setjmp(s.escape)) {
    jpeg_abort_decompress(&s.info);
  } else {
    s.run(part, how, rows);
  }
  if (!s.irregular) return s.verdict();
  // Damage is libjpeg's to judge, from the beginning.
  if (how.found != nullptr) how.found->clear();
  Size size;
  Verdict opened = open(s.data, s.limits, size);
  if (!opened.ok()) return opened;
  rows.restart();
  Decoding again = how;
  again.stock = true;
  again.found = nullptr;
  return decode(part, again, rows);
}

}  // namespace flatout::feed
