#include "feed/orientation.h"

#include <cstring>
#include <string_view>

namespace flatout::feed {
namespace {

using Bytes = std::span<const uint8_t>;

// TIFF's and JPEG's numbers; 0 behind the end.
uint32_t number(Bytes data, size_t at, int bytes, bool big) {
  if (at > data.size() || data.size() - at < static_cast<size_t>(bytes)) return 0;
  uint32_t value = 0;
  for (int i = 0; i < bytes; ++i)
    value |= uint32_t{data[at + static_cast<size_t>(i)]} << 8 * (big ? bytes - 1 - i : i);
  return value;
}

bool starts_with(Bytes data, std::string_view magic) {
  return data.size() >= magic.size() && std::memcmp(data.data(), magic.data(), magic.size()) == 0;
}

constexpr std::string_view kExif{"Exif\0\0", 6};

// The first image file directory of TIFF 6.0, tag 0x0112.
int of_tiff(Bytes tiff) {
  const bool big = starts_with(tiff, "MM");
  if (!big && !starts_with(tiff, "II")) return 1;
  const size_t directory = number(tiff, 4, 4, big);
  const uint32_t entries = number(tiff, directory, 2, big);
  for (uint32_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + size_t{i} * 12;
    if (entry > tiff.size()) return 1;
    if (number(tiff, entry, 2, big) != 0x0112) continue;
    const uint32_t value = number(tiff, entry + 8, 2, big);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

int of_jpeg(Bytes data) {
  for (size_t at = 2; at + 4 <= data.size() && data[at] == 0xFF;) {
    const uint8_t marker = data[at + 1];
    if (marker == 0xFF) {  // padding
      ++at;
      continue;
    }
    const size_t length = number(data, at + 2, 2, true);
    if (marker == 0xDA || marker == 0xD9 || length < 2 || length > data.size() - at - 2) return 1;
    const Bytes body = data.subspan(at + 4, length - 2);
    if (marker == 0xE1 && starts_with(body, kExif)) return of_tiff(body.subspan(kExif.size()));
    at += 2 + length;
  }
  return 1;
}

// PNG's chunks have their length first, RIFF's their name.
int of_png(Bytes data) {
  for (size_t at = 8; at + 12 <= data.size();) {
    const size_t length = number(data, at, 4, true);
    if (length > data.size() - at - 12) return 1;
    if (starts_with(data.subspan(at + 4), "eXIf")) return of_tiff(data.subspan(at + 8, length));
    at += 12 + length;
  }
  return 1;
}

int of_webp(Bytes data) {
  for (size_t at = 12; at + 8 <= data.size();) {
    const size_t length = number(data, at + 4, 4, false);
    if (length > data.size() - at - 8) return 1;
    if (starts_with(data.subspan(at), "EXIF")) {
      const Bytes body = data.subspan(at + 8, length);
      return of_tiff(starts_with(body, kExif) ? body.subspan(kExif.size()) : body);
    }
    at += 8 + length + length % 2;
  }
  return 1;
}

}  // namespace

int exif_orientation(Bytes picture) {
  if (starts_with(picture, "\xFF\xD8")) return of_jpeg(picture);
  if (starts_with(picture, "\x89PNG\r\n\x1A\n")) return of_png(picture);
  if (starts_with(picture, "RIFF")) return of_webp(picture);
  return 1;
}

}  // namespace flatout::feed
