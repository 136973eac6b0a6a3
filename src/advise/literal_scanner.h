// Finds many fixed strings in a text at once (Aho-Corasick as a table of states): about a
// nanosecond a byte, whatever the text is and however many strings there are.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flatout::advise {

class LiteralScanner {
 public:
  struct Hit {
    uint64_t end;      // offset behind the string's last byte
    uint32_t literal;  // index into the strings
  };

  /// None may be empty or hold a line feed.
  explicit LiteralScanner(const std::vector<std::string>& literals);

  /// Appends what is found in `text`, in the order of the ends. `text` should begin at a line's
  /// begin, since a string that began before is not seen.
  void scan(std::string_view text, std::vector<Hit>& hits) const;

 private:
  using State = uint16_t;

  void add_hits(State state, uint64_t end, std::vector<Hit>& hits) const;
  State next(State state, char byte) const {
    return table_[(size_t{state} << shift_) | classes_[static_cast<unsigned char>(byte)]];
  }

  std::array<uint8_t, 256> classes_{};  // bytes that no string holds share class 0
  unsigned shift_ = 0;
  std::vector<State> table_;
  State first_accepting_ = 0;                     // states from here on end a string
  std::vector<std::vector<uint32_t>> accepting_;  // their strings
};

}  // namespace flatout::advise
