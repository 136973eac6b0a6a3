// Bounds-checked reading and appending of little-endian bytes, and CRC-32.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace flatout {

/// Reads plain values off the front of a buffer. After a read past the end ok() is false and
/// every value is zero: check once at the end.
class ByteReader {
 public:
  explicit ByteReader(std::string_view data) : data_(data) {}
  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (data_.size() < sizeof(T)) {
      ok_ = false;
      data_ = {};
      return value;
    }
    std::memcpy(&value, data_.data(), sizeof(T));
    data_.remove_prefix(sizeof(T));
    return value;
  }
  std::string_view take(size_t size) {
    if (data_.size() < size) {
      ok_ = false;
      data_ = {};
      return {};
    }
    const std::string_view out = data_.substr(0, size);
    data_.remove_prefix(size);
    return out;
  }
  size_t left() const { return data_.size(); }
  bool ok() const { return ok_; }

 private:
  std::string_view data_;
  bool ok_ = true;
};

template <class T>
void put(std::string& out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// CRC-32 (IEEE 802.3, as zlib's crc32).
uint32_t crc32(std::string_view data);

}  // namespace flatout
