#include "report/terminal.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <cstdlib>

#include "base/text.h"

namespace flatout::report {
namespace {

bool locale_is_utf8() {
  // The environment decides, not the program's own locale, which may never have been set.
  for (const char* key : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(key);
    if (value == nullptr || value[0] == 0) continue;
    std::string text(value);
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
  }
  return false;
}

std::string to_ascii(std::string_view s) {
  std::string out;
  while (!s.empty()) {
    const char32_t c = take_character(s);
    switch (c) {
      case U'\u00B7':
      case U'\u2013':
      case U'\u2014':
        out += '-';
        break;
      case U'\u00D7':
        out += 'x';
        break;
      case U'\u00B5':
      case U'\u03BC':
        out += 'u';
        break;
      case U'\u2026':
        out += "...";
        break;
      case U'\u2192':
        out += "->";
        break;
      case U'\u2018':
      case U'\u2019':
        out += '\'';
        break;
      case U'\u201C':
      case U'\u201D':
        out += '"';
        break;
      case U'\u00A0':
      case U'\u202F':
        out += ' ';
        break;
      default:
        out += c < 0x80 ? static_cast<char>(c) : '?';
    }
  }
  return out;
}

// Okabe and Ito's colour-blind-safe palette in the 256 colours; the parts in the order of
// model::Part.
constexpr std::array<int, 10> kPartColors = {208, 141, 75, 32, 36, 220, 168, 173, 245, 75};
constexpr int kGoodColor = 36, kBadColor = 166, kWarnColor = 220, kAccentColor = 75;

std::string sgr(const Span& span) {
  switch (span.paint) {
    case Paint::kPlain:
      return "";
    case Paint::kBold:
      return "\x1b[1m";
    case Paint::kDim:
      return "\x1b[2m";
    case Paint::kGood:
      return fmt::format("\x1b[1;38;5;{}m", kGoodColor);
    case Paint::kBad:
      return fmt::format("\x1b[1;38;5;{}m", kBadColor);
    case Paint::kWarn:
      return fmt::format("\x1b[1;38;5;{}m", kWarnColor);
    case Paint::kAccent:
      return fmt::format("\x1b[38;5;{}m", kAccentColor);
    case Paint::kPart:
      return fmt::format("\x1b[38;5;{}m",
                         kPartColors[static_cast<size_t>(span.part) % kPartColors.size()]);
  }
  return "";
}

}  // namespace

TextOptions options_for(int fd) {
  TextOptions options;
  const bool terminal = isatty(fd) == 1;
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  options.color = terminal && (no_color == nullptr || no_color[0] == 0) && term != nullptr &&
                  std::string_view(term) != "dumb" && term[0] != 0;
  options.unicode = locale_is_utf8();
  winsize size{};
  if (terminal && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    options.width = std::clamp<size_t>(size.ws_col, 40, 100);
    // The shell's prompt takes the last line; below 20 lines it scrolls anyway.
    options.height = size.ws_row > 20 ? size.ws_row - 1u : 23;
  }
  return options;
}

std::string clean(std::string_view text, const TextOptions& options) {
  const std::string escaped = escape_terminal(text);
  return options.unicode ? escaped : to_ascii(escaped);
}

size_t display_width(const Line& line) {
  size_t width = 0;
  for (const Span& span : line) width += display_width(span.text);
  return width;
}

std::string fit(std::string_view text, size_t width, bool unicode) {
  if (display_width(text) <= width) return std::string(text);
  const std::string_view mark = unicode ? "\u2026" : "...";
  const size_t mark_width = unicode ? 1 : 3;
  if (width < mark_width) return std::string(width, '.');
  std::string_view rest = text;
  size_t used = 0;
  for (;;) {
    std::string_view next = rest;
    const size_t step = character_width(take_character(next));
    if (used + step > width - mark_width) break;
    used += step;
    rest = next;
  }
  return std::string(text.substr(0, text.size() - rest.size())) + std::string(mark);
}

std::string fit_end(std::string_view text, size_t width, bool unicode) {
  size_t total = display_width(text);
  if (total <= width) return std::string(text);
  const std::string_view mark = unicode ? "\u2026" : "...";
  const size_t mark_width = unicode ? 1 : 3;
  if (width < mark_width) return std::string(width, '.');
  while (total > width - mark_width) total -= character_width(take_character(text));
  return std::string(mark) + std::string(text);
}

std::vector<std::string> wrap(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  std::string line;
  size_t used = 0;
  width = std::max<size_t>(width, 2);
  const auto flush = [&] {
    lines.push_back(std::move(line));
    line.clear();
    used = 0;
  };
  for (std::string_view word = next_word(text); !word.empty(); word = next_word(text)) {
    const size_t size = display_width(word);
    if (used > 0 && used + 1 + size > width) flush();
    if (used > 0) {
      line += ' ';
      ++used;
    }
    while (!word.empty()) {  // a word longer than a line is broken anywhere
      std::string_view rest = word;
      const size_t step = character_width(take_character(rest));
      if (used + step > width) flush();
      line += word.substr(0, word.size() - rest.size());
      used += step;
      word = rest;
    }
  }
  if (!line.empty()) flush();
  return lines;
}

std::string render(const Line& line, bool color) {
  std::string out;
  for (const Span& span : line) {
    const std::string code = color ? sgr(span) : "";
    out += code;
    out += span.text;
    if (!code.empty()) out += "\x1b[0m";
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

}  // namespace flatout::report
