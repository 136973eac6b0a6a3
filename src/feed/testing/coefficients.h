// Entropy decoding by libjpeg and by ours, side by side.
#pragma once

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "feed/jpeg_scan.h"
// After <jpeglib.h>: it needs its types.
#include <jerror.h>

namespace flatout::feed::testing {

/// A decompressor over bytes in memory, whose errors and warnings are remembered.
class Libjpeg {
 public:
  explicit Libjpeg(std::span<const uint8_t> data) {
    info.err = jpeg_std_error(&errors_);
    errors_.error_exit = [](j_common_ptr common) {
      auto* self = static_cast<Libjpeg*>(common->client_data);
      longjmp(self->escape, 1);
    };
    errors_.emit_message = [](j_common_ptr common, int level) {
      if (level >= 0) return;
      auto* self = static_cast<Libjpeg*>(common->client_data);
      ++self->warnings;
      const int code = common->err->msg_code;
      self->scan_damaged |= code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE;
    };
    jpeg_create_decompress(&info);
    info.client_data = this;
    jpeg_mem_src(&info, data.data(), data.size());
  }
  ~Libjpeg() { jpeg_destroy_decompress(&info); }
  Libjpeg(const Libjpeg&) = delete;
  Libjpeg& operator=(const Libjpeg&) = delete;

  jpeg_decompress_struct info{};
  jmp_buf escape{};
  int warnings = 0;
  bool scan_damaged = false;  // by what a warning says

 private:
  jpeg_error_mgr errors_{};
};

/// The coefficients of all MCUs, block by block, as a scan has them.
using Coefficients = std::vector<int16_t>;

/// By libjpeg; null where it fails or warns. `scan_damaged`: of bits that cannot be right.
inline std::optional<Coefficients> by_libjpeg(std::span<const uint8_t> data,
                                              bool* scan_damaged = nullptr) {
  Libjpeg jpeg(data);
  jpeg_decompress_struct& info = jpeg.info;
  if (setjmp(jpeg.escape)) return std::nullopt;
  jpeg_read_header(&info, TRUE);
  if (uint64_t{info.image_width} * info.image_height > 1 << 20) return std::nullopt;
  jvirt_barray_ptr* arrays = jpeg_read_coefficients(&info);
  if (scan_damaged != nullptr) *scan_damaged = jpeg.scan_damaged;
  if (jpeg.warnings > 0) return std::nullopt;
  Coefficients out;
  const unsigned columns =
      info.comps_in_scan == 1
          ? info.comp_info[0].width_in_blocks
          : (info.image_width + info.max_h_samp_factor * 8U - 1) / (info.max_h_samp_factor * 8U);
  const unsigned rows =
      info.comps_in_scan == 1
          ? info.comp_info[0].height_in_blocks
          : (info.image_height + info.max_v_samp_factor * 8U - 1) / (info.max_v_samp_factor * 8U);
  for (unsigned row = 0; row < rows; ++row) {
    for (unsigned column = 0; column < columns; ++column) {
      for (int c = 0; c < info.num_components; ++c) {
        const unsigned h =
            info.num_components == 1 ? 1U : static_cast<unsigned>(info.comp_info[c].h_samp_factor);
        const unsigned v =
            info.num_components == 1 ? 1U : static_cast<unsigned>(info.comp_info[c].v_samp_factor);
        for (unsigned y = 0; y < v; ++y) {
          JBLOCKARRAY blocks = (*info.mem->access_virt_barray)(
              reinterpret_cast<j_common_ptr>(&info), arrays[c], row * v + y, 1, FALSE);
          for (unsigned x = 0; x < h; ++x) {
            const JCOEF* block = blocks[0][column * h + x];
            out.insert(out.end(), block, block + DCTSIZE2);
          }
        }
      }
    }
  }
  return out;
}

struct Ours {
  Coefficients coefficients;
  std::vector<Checkpoint> checkpoints;  // of every MCU
  bool same_from_checkpoints = true;    // decoding from any of them gives the same blocks
};

/// By ours; null where the scan is not one of ours or its data are irregular.
inline std::optional<Ours> by_ours(std::span<const uint8_t> data) {
  Libjpeg jpeg(data);
  jpeg_decompress_struct& info = jpeg.info;
  if (setjmp(jpeg.escape)) return std::nullopt;
  jpeg_read_header(&info, TRUE);
  if (uint64_t{info.image_width} * info.image_height > 1 << 20 || jpeg_has_multiple_scans(&info))
    return std::nullopt;
  jpeg_start_decompress(&info);
  static ScanTables tables;
  ScanLayout layout;
  if (!describe_scan(info, tables, layout)) return std::nullopt;
  ScanDecoder scan;
  scan.start(data.last(info.src->bytes_in_buffer), layout);
  Ours out;
  const size_t mcu = static_cast<size_t>(layout.blocks) * 64;
  out.coefficients.resize(layout.mcus * mcu);
  const auto decode = [&](int16_t* to) {
    int16_t* blocks[ScanLayout::kMostBlocks];
    for (int b = 0; b < layout.blocks; ++b) blocks[b] = to + ptrdiff_t{b} * 64;
    return scan.next(blocks);
  };
  for (uint32_t i = 0; i < layout.mcus; ++i) {
    out.checkpoints.push_back(scan.checkpoint());
    if (!decode(out.coefficients.data() + i * mcu)) return std::nullopt;
  }
  // Backwards; every other MCU is only passed by.
  Coefficients again(mcu);
  for (uint32_t i = layout.mcus; i-- > 0;) {
    if (!scan.seek(i, out.checkpoints[i])) return std::nullopt;
    if (i % 2 == 1 && (!scan.next(nullptr) ||
                       !(i + 1 == layout.mcus || scan.checkpoint() == out.checkpoints[i + 1])))
      out.same_from_checkpoints = false;
    if (i % 2 == 1) continue;
    std::fill(again.begin(), again.end(), int16_t{0});
    if (!decode(again.data()) ||
        std::memcmp(again.data(), out.coefficients.data() + i * mcu, mcu * 2) != 0)
      out.same_from_checkpoints = false;
  }
  return out;
}

}  // namespace flatout::feed::testing
