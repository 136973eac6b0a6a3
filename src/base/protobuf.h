// Protobuf's wire format, field by field, without generated code. Any bytes are safe to read: what
// is malformed ends the message and ok() says so.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace flatout {

enum class Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

class ProtoReader {
 public:
  explicit ProtoReader(std::string_view data) : p_(data.data()), end_(p_ + data.size()) {}

  /// Goes to the next field; false at the end or where the rest is malformed.
  bool next() {
    if (p_ >= end_ || !ok_) return false;
    const uint64_t key = varint();
    number_ = static_cast<uint32_t>(key >> 3);
    wire_ = static_cast<Wire>(key & 7);
    switch (wire_) {
      case Wire::kVarint:
        value_ = varint();
        break;
      case Wire::kFixed64:
        value_ = fixed(8);
        break;
      case Wire::kFixed32:
        value_ = fixed(4);
        break;
      case Wire::kBytes: {
        const uint64_t size = varint();
        if (size > static_cast<uint64_t>(end_ - p_)) {
          ok_ = false;
          return false;
        }
        bytes_ = {p_, static_cast<size_t>(size)};
        p_ += size;
        break;
      }
      default:
        ok_ = false;  // groups are long gone
    }
    if (number_ == 0 || key >> 32 != 0) ok_ = false;
    return ok_;
  }

  uint32_t number() const { return number_; }
  Wire wire() const { return wire_; }
  bool is_bytes() const { return wire_ == Wire::kBytes; }
  /// Of a varint or a fixed field; 0 of others.
  uint64_t value() const { return is_bytes() ? 0 : value_; }
  int64_t signed_value() const { return static_cast<int64_t>(value()); }
  /// Of a string, bytes or message field; empty of others.
  std::string_view bytes() const { return is_bytes() ? bytes_ : std::string_view(); }
  bool ok() const { return ok_; }

 private:
  uint64_t varint() {
    uint64_t out = 0;
    for (int shift = 0; shift < 64 && p_ < end_; shift += 7) {
      const auto byte = static_cast<unsigned char>(*p_++);
      out |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return out;
    }
    ok_ = false;
    return 0;
  }
  uint64_t fixed(size_t size) {
    if (static_cast<size_t>(end_ - p_) < size) {
      ok_ = false;
      return 0;
    }
    uint64_t out = 0;
    std::memcpy(&out, p_, size);
    p_ += size;
    return out;
  }

  const char* p_;
  const char* end_;
  uint32_t number_ = 0;
  Wire wire_ = Wire::kVarint;
  uint64_t value_ = 0;
  std::string_view bytes_;
  bool ok_ = true;
};

/// A message in the making.
class ProtoWriter {
 public:
  /// A varint field; 0 is what an absent one means, too.
  void number(uint32_t field, uint64_t value) {
    if (value == 0) return;
    varint(uint64_t{field} << 3);
    varint(value);
  }
  void bytes(uint32_t field, std::string_view value) {
    varint(uint64_t{field} << 3 | static_cast<uint64_t>(Wire::kBytes));
    varint(value.size());
    data_.append(value);
  }
  void message(uint32_t field, const ProtoWriter& value) { bytes(field, value.data_); }
  /// A packed repeated field of varints.
  void numbers(uint32_t field, const std::vector<uint64_t>& values) {
    ProtoWriter packed;
    for (const uint64_t v : values) packed.varint(v);
    bytes(field, packed.data_);
  }
  const std::string& data() const { return data_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) data_.push_back(static_cast<char>(value | 0x80));
    data_.push_back(static_cast<char>(value));
  }
  std::string data_;
};

}  // namespace flatout
