// Text for a terminal: painted spans, display width, cutting and wrapping.
// All text from outside goes through clean(), so nothing in it can control the terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/display_width.h"

namespace flatout::report {

struct TextOptions {
  size_t width = 80;
  size_t height = 0;  // lines to fit into; 0: as long as it gets
  bool color = false;
  bool unicode = true;
  bool verbose = false;  // with all that could not be measured, and why
  std::string folder;    // the run folder, named in the last line; may be empty
};

/// What suits the file behind `fd`: colour only on a terminal and never with NO_COLOR or TERM=dumb,
/// Unicode only in a UTF-8 locale, the terminal's own size (at most 100 columns wide).
TextOptions options_for(int fd);

enum class Paint { kPlain, kBold, kDim, kGood, kBad, kWarn, kAccent, kPart };

struct Span {
  std::string text;
  Paint paint = Paint::kPlain;
  int part = 0;  // for kPart: which colour of the palette
};
using Line = std::vector<Span>;

/// Hostile text made harmless; characters that an ASCII terminal lacks are replaced.
std::string clean(std::string_view text, const TextOptions& options);
/// Columns that a line takes (of plain text: base/display_width.h).
using flatout::display_width;
size_t display_width(const Line& line);
/// Cut to `width` columns, the end marked by an ellipsis.
std::string fit(std::string_view text, size_t width, bool unicode);
/// As fit(), but keeps the end: for paths.
std::string fit_end(std::string_view text, size_t width, bool unicode);
/// Lines of at most `width` columns, broken at blanks where there are any.
std::vector<std::string> wrap(std::string_view text, size_t width);
/// One line with its colours, without '\n'.
std::string render(const Line& line, bool color);

}  // namespace flatout::report
