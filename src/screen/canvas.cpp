#include "screen/canvas.h"

#include <algorithm>

#include "base/display_width.h"
#include "base/text.h"

namespace flatout::screen {
namespace {

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
}

}  // namespace

void append_utf8(std::string& out, char32_t c) {
  const auto byte = [&](char32_t value) { out += static_cast<char>(value); };
  if (c < 0x80) {
    byte(c);
  } else if (c < 0x800) {
    byte(0xC0 | (c >> 6));
    byte(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    byte(0xE0 | (c >> 12));
    byte(0x80 | ((c >> 6) & 0x3F));
    byte(0x80 | (c & 0x3F));
  } else {
    byte(0xF0 | (c >> 18));
    byte(0x80 | ((c >> 12) & 0x3F));
    byte(0x80 | ((c >> 6) & 0x3F));
    byte(0x80 | (c & 0x3F));
  }
}

Canvas::Canvas(int width, int height, bool unicode)
    : width_(std::max(width, 1)), height_(std::max(height, 1)), unicode_(unicode) {
  cells_.resize(static_cast<size_t>(width_) * static_cast<size_t>(height_));
}

void Canvas::set(int x, int y, char32_t character, Style style) {
  Cell& cell = cells_[index(x, y)];
  // Half of a wide character alone would shift all that follows.
  if (cell.character == 0 && x > 0) cells_[index(x - 1, y)].character = U' ';
  if (x + 1 < width_ && cells_[index(x + 1, y)].character == 0) {
    cells_[index(x + 1, y)].character = U' ';
  }
  cell = {character, style};
}

int Canvas::put(int x, int y, std::string_view text, Style style, int end) {
  if (end < 0 || end > width_) end = width_;
  if (y < 0 || y >= height_ || x < 0) return x;
  if (is_plain(text)) {  // most of what is ever written
    for (const char c : text) {
      if (x >= end) break;
      set(x++, y, static_cast<char32_t>(c), style);
    }
    return x;
  }
  // What can't be seen is not worth decoding: a cell takes at most four bytes and their escapes.
  const size_t most = static_cast<size_t>(std::max(end - x, 0)) * 4 + 64;
  const std::string safe = escape_terminal(text.substr(0, most));
  std::string_view rest = safe;
  while (!rest.empty() && x < end) {
    char32_t c = take_character(rest);
    if (!unicode_ && c >= 0x7F) c = U'?';
    const int width = static_cast<int>(character_width(c));
    if (width == 0) continue;
    if (x + width > end) break;
    set(x, y, c, style);
    if (width == 2) {
      set(x + 1, y, U' ', style);
      cells_[index(x + 1, y)].character = 0;
    }
    x += width;
  }
  return x;
}

void Canvas::put_right(int end, int y, std::string_view text, Style style) {
  const std::string safe = escape_terminal(text);
  const int width = static_cast<int>(display_width(safe));
  if (width <= end) put(end - width, y, safe, style, end);
}

int Canvas::put_either(int x, int y, std::string_view text, std::string_view plain, Style style) {
  return put(x, y, unicode_ ? text : plain, style);
}

void Canvas::fill(int x, int y, int width, char32_t character, Style style) {
  if (y < 0 || y >= height_) return;
  if (!unicode_ && character >= 0x7F) character = U'?';
  for (int i = std::max(x, 0); i < std::min(x + width, width_); ++i) set(i, y, character, style);
}

void Canvas::restyle(int y, Style style, int x, int end) {
  if (y < 0 || y >= height_) return;
  if (end < 0 || end > width_) end = width_;
  for (int i = std::max(x, 0); i < end; ++i) cells_[index(i, y)].style = style;
}

std::string Canvas::text() const {
  std::string out;
  for (int y = 0; y < height_; ++y) {
    const size_t begin = out.size();
    for (int x = 0; x < width_; ++x) {
      if (at(x, y).character != 0) append_utf8(out, at(x, y).character);
    }
    while (out.size() > begin && out.back() == ' ') out.pop_back();
    out += '\n';
  }
  return out;
}

std::string Canvas::styles() const {
  static constexpr std::string_view kLetters = ".dBTHSsftKkMWGNuywUcC";
  static_assert(kLetters.size() == static_cast<size_t>(Style::kCount));
  std::string out;
  for (int y = 0; y < height_; ++y) {
    const size_t begin = out.size();
    for (int x = 0; x < width_; ++x) out += kLetters[static_cast<size_t>(at(x, y).style)];
    while (out.size() > begin && out.back() == '.') out.pop_back();
    out += '\n';
  }
  return out;
}

}  // namespace flatout::screen
