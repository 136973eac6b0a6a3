#include "base/display_width.h"

#include <algorithm>
#include <array>
#include <utility>

namespace flatout {

char32_t take_character(std::string_view& s) {
  const unsigned char lead = static_cast<unsigned char>(s[0]);
  const size_t size = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  char32_t c = size == 1 ? lead : lead & (0xFFu >> (size + 1));
  for (size_t i = 1; i < size && i < s.size(); ++i) {
    c = (c << 6) | (static_cast<unsigned char>(s[i]) & 0x3Fu);
  }
  s.remove_prefix(std::min(size, s.size()));
  return c;
}

size_t character_width(char32_t c) {
  // Unicode's ranges, coarse: enough to keep columns straight.
  using Range = std::pair<char32_t, char32_t>;
  static constexpr std::array<Range, 9> kZero = {{{0x300, 0x36F},
                                                  {0x483, 0x489},
                                                  {0x591, 0x5BD},
                                                  {0x610, 0x61A},
                                                  {0x64B, 0x65F},
                                                  {0x200B, 0x200F},
                                                  {0x20D0, 0x20FF},
                                                  {0xFE00, 0xFE0F},
                                                  {0xFEFF, 0xFEFF}}};
  static constexpr std::array<Range, 10> kWide = {{{0x1100, 0x115F},
                                                   {0x2E80, 0x303E},
                                                   {0x3041, 0xA4CF},
                                                   {0xAC00, 0xD7A3},
                                                   {0xF900, 0xFAFF},
                                                   {0xFE30, 0xFE6F},
                                                   {0xFF00, 0xFF60},
                                                   {0xFFE0, 0xFFE6},
                                                   {0x1F300, 0x1FAFF},
                                                   {0x20000, 0x3FFFD}}};
  const auto in = [c](const Range& r) { return c >= r.first && c <= r.second; };
  if (std::any_of(kZero.begin(), kZero.end(), in)) return 0;
  return std::any_of(kWide.begin(), kWide.end(), in) ? 2 : 1;
}

size_t display_width(std::string_view text) {
  size_t width = 0;
  while (!text.empty()) width += character_width(take_character(text));
  return width;
}

}  // namespace flatout
