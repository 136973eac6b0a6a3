// Finds many fixed strings in a text at once, at a few gigabytes a second.
//
// Any seven bytes hold a group of four that begins at a multiple of four, wherever they lie. So it
// is enough to look at every fourth position, whether its four bytes are one of the four groups
// that each string's last seven bytes have: a bit map says no for nearly all of them, and the few
// others are compared.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace flatout::advise {

class LiteralScanner {
 public:
  static constexpr size_t kLeastLength = 7;

  struct Hit {
    uint64_t end;      // offset behind the string's last byte
    uint32_t literal;  // index into the strings
  };

  /// Each has at least kLeastLength bytes.
  explicit LiteralScanner(const std::vector<std::string>& literals);

  /// Replaces `hits` by what is found in `text`, in the order of the ends.
  void scan(std::string_view text, std::vector<Hit>& hits) const;

 private:
  using Group = uint32_t;  // four bytes
  static constexpr unsigned kBits = 18;
  static constexpr size_t kBuckets = 1024;

  struct Place {
    Group group;
    Group first;               // the string's first four bytes
    uint32_t literal, offset;  // where in the string the group stands
  };
  static uint32_t hash(Group group) { return (group * 2654435761u) >> (32 - kBits); }
  static Group group_at(const char* at) {
    Group group = 0;
    std::memcpy(&group, at, sizeof group);
    return group;
  }

  std::vector<std::string> literals_;
  std::array<uint64_t, (size_t{1} << kBits) / 64> map_{};
  std::array<std::vector<Place>, kBuckets> places_;
};

}  // namespace flatout::advise
