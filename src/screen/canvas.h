// A grid of characters with styles, as a terminal shows it. Whatever text is put on it, no cell
// ever holds a character that controls a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flatout::screen {

/// What a cell means; a terminal turns it into colours, or without them into bold and the like.
enum class Style : uint8_t {
  kPlain,
  kDim,
  kBold,
  kTitle,     // a panel's name
  kHeading,   // of a table
  kSorted,    // the heading by which it is sorted
  kSelected,  // the row with the cursor
  kFollowed,  // the same, and the cursor stays on that process
  kTagged,
  kKey,      // F1 ... at the bottom
  kKeyText,  // what it does
  kMessage,
  kWarning,
  kGood,
  kName,  // the program's name within a command line
  // Parts of bars and curves.
  kUser,
  kSystem,
  kWait,
  kUsed,
  kCache,
  kCurve,
  kCount
};

struct Cell {
  char32_t character = U' ';  // 0: the right half of a wide character
  Style style = Style::kPlain;
  bool operator==(const Cell&) const = default;
};

/// Appends a character as UTF-8.
void append_utf8(std::string& out, char32_t c);

class Canvas {
 public:
  /// `unicode`: without it all beyond ASCII becomes '?'.
  Canvas(int width, int height, bool unicode);

  int width() const { return width_; }
  int height() const { return height_; }
  bool unicode() const { return unicode_; }
  const Cell& at(int x, int y) const { return cells_[index(x, y)]; }

  /// Writes hostile text from column `x` on, escaped, at most up to column `end` (the canvas's by
  /// default); gives the column after it.
  int put(int x, int y, std::string_view text, Style style = Style::kPlain, int end = -1);
  /// As put(), right-aligned: it ends before column `end`; what does not fit is left out.
  void put_right(int end, int y, std::string_view text, Style style = Style::kPlain);
  /// The first where the terminal knows Unicode, else the second.
  int put_either(int x, int y, std::string_view text, std::string_view plain, Style style);
  void fill(int x, int y, int width, char32_t character, Style style);
  /// Gives all cells of a row this style, whatever stands there.
  void restyle(int y, Style style, int x = 0, int end = -1);

  /// Its lines without blanks at their ends, each with '\n'.
  std::string text() const;
  /// A letter for each cell's style ('.' for plain), as text(): for tests.
  std::string styles() const;

 private:
  size_t index(int x, int y) const {
    return static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x);
  }
  void set(int x, int y, char32_t character, Style style);

  int width_, height_;
  bool unicode_;
  std::vector<Cell> cells_;
};

}  // namespace flatout::screen
