// Pictures for tests: gradients, edges and noise, as JPEG of any kind.
#pragma once

#include <cstdio>
// After <cstdio>: it needs FILE and size_t.
#include <jpeglib.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace flatout::feed::testing {

struct JpegKind {
  int width = 160;
  int height = 120;
  int h = 2;  // sampling factors of luma; chroma has 1
  int v = 2;
  int quality = 90;
  bool progressive = false;
  bool grey = false;
  int restart = 0;  // MCUs between restart markers
  bool optimize = false;
  bool noise = false;  // and nothing else
};

inline std::vector<uint8_t> make_pixels(int width, int height, int channels, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> pixels(static_cast<size_t>(width) * static_cast<size_t>(height) *
                              static_cast<size_t>(channels));
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        const int edge = ((x / 13 + y / 17 + c) % 3) * 60;
        const int value =
            x * 97 / width + y * (60 + 40 * c) / height + edge + static_cast<int>(random() % 24);
        pixels[(static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)) *
                   static_cast<size_t>(channels) +
               static_cast<size_t>(c)] = static_cast<uint8_t>(value > 255 ? 255 : value);
      }
    }
  }
  return pixels;
}

inline std::vector<uint8_t> make_jpeg(const JpegKind& kind, unsigned seed = 1) {
  const int channels = kind.grey ? 1 : 3;
  std::vector<uint8_t> pixels = make_pixels(kind.width, kind.height, channels, seed);
  if (kind.noise) {
    std::mt19937 random(seed);
    for (uint8_t& pixel : pixels) pixel = static_cast<uint8_t>(random() >> 24);
  }
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &out, &size);
  info.image_width = static_cast<JDIMENSION>(kind.width);
  info.image_height = static_cast<JDIMENSION>(kind.height);
  info.input_components = channels;
  info.in_color_space = kind.grey ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, kind.quality, TRUE);
  info.optimize_coding = kind.optimize ? TRUE : FALSE;
  info.restart_interval = static_cast<unsigned>(kind.restart);
  if (!kind.grey) {
    info.comp_info[0].h_samp_factor = kind.h;
    info.comp_info[0].v_samp_factor = kind.v;
  }
  if (kind.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = pixels.data() + static_cast<size_t>(info.next_scanline) *
                                       static_cast<size_t>(kind.width) *
                                       static_cast<size_t>(channels);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::vector<uint8_t> data(out, out + size);
  jpeg_destroy_compress(&info);
  std::free(out);
  return data;
}

/// A folder that is gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "flatout-feed-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  void write(const std::string& name, const std::vector<uint8_t>& data) const {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(data.data()),
               static_cast<std::streamsize>(data.size()));
  }

 private:
  std::string path_;
};

}  // namespace flatout::feed::testing
