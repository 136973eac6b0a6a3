// Archives for tests, made byte by byte.
#pragma once

#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "feed/tfrecord_source.h"

namespace flatout::feed::testing {

inline void append(std::vector<uint8_t>& out, std::string_view text) {
  out.insert(out.end(), text.begin(), text.end());
}
inline std::string_view text_of(const std::vector<uint8_t>& data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

/// A member of a ustar archive.
inline void add_member(std::vector<uint8_t>& tar, const std::string& name, std::string_view content,
                       char type = '0') {
  char header[512] = {};
  std::snprintf(header, 100, "%s", name.c_str());
  std::snprintf(header + 100, 8, "%07o", 0644);
  std::snprintf(header + 124, 12, "%011o", static_cast<unsigned>(content.size()));
  header[156] = type;
  constexpr std::array<char, 8> kMagic = {'u', 's', 't', 'a', 'r', '\0', '0', '0'};
  std::memcpy(header + 257, kMagic.data(), kMagic.size());
  std::memset(header + 148, ' ', 8);
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  std::snprintf(header + 148, 7, "%06o", sum);
  append(tar, {header, sizeof header});
  append(tar, content);
  tar.resize((tar.size() + 511) / 512 * 512);
}
inline void end_tar(std::vector<uint8_t>& tar) { tar.resize(tar.size() + 1024); }

inline void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
inline std::string field(int number, std::string_view bytes) {
  std::string out;
  put_varint(out, static_cast<uint64_t>(number) << 3 | 2);
  put_varint(out, bytes.size());
  return out.append(bytes);
}
inline std::string bytes_feature(std::string_view key, std::string_view value) {
  return field(1, field(1, key) + field(2, field(1, field(1, value))));
}
inline std::string integer_feature(std::string_view key, uint64_t value, bool packed) {
  std::string list;
  if (packed) {
    std::string varint;
    put_varint(varint, value);
    list = field(1, varint);
  } else {
    list = std::string(1, '\x08');
    put_varint(list, value);
  }
  return field(1, field(1, key) + field(2, field(3, list)));
}
/// A tf.train.Example of such features.
inline std::string example(const std::string& features) { return field(1, features); }

inline void add_record(std::vector<uint8_t>& file, std::string_view data) {
  const auto put = [&](const void* p, size_t n) { append(file, {static_cast<const char*>(p), n}); };
  const auto masked = [](const void* p, size_t n) {
    return masked_crc32c({static_cast<const uint8_t*>(p), n});
  };
  const uint64_t length = data.size();
  const uint32_t of_length = masked(&length, 8), of_data = masked(data.data(), data.size());
  put(&length, 8);
  put(&of_length, 4);
  append(file, data);
  put(&of_data, 4);
}

}  // namespace flatout::feed::testing
