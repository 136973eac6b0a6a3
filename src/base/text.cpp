#include "base/text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

namespace flatout {

std::string_view trim(std::string_view s) {
  constexpr std::string_view kBlank = " \t\n\r";
  const size_t first = s.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(kBlank) - first + 1);
}

std::string_view next_word(std::string_view& s) {
  size_t i = 0;
  while (i < s.size() && (s[i] == ' ' || s[i] == '\t' || s[i] == '\n')) ++i;
  size_t j = i;
  while (j < s.size() && s[j] != ' ' && s[j] != '\t' && s[j] != '\n') ++j;
  const std::string_view word = s.substr(i, j - i);
  s.remove_prefix(j);
  return word;
}

bool next_line(std::string_view& s, std::string_view& line) {
  if (s.empty()) return false;
  const size_t end = s.find('\n');
  line = s.substr(0, end);
  s.remove_prefix(end == std::string_view::npos ? s.size() : end + 1);
  return true;
}

std::vector<std::string_view> split(std::string_view s, char separator) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  for (;;) {
    const size_t end = s.find(separator, start);
    parts.push_back(s.substr(start, end == std::string_view::npos ? end : end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

std::optional<uint64_t> parse_bytes(std::string_view s) {
  s = trim(s);
  for (const std::string_view end : {"iB", "B"}) {
    if (!s.ends_with(end)) continue;
    s.remove_suffix(end.size());
    break;
  }
  double factor = 1;
  constexpr std::string_view kUnits = "KMGT";
  if (const size_t unit = s.empty() ? s.npos : kUnits.find(s.back()); unit != s.npos) {
    factor = std::ldexp(1.0, static_cast<int>(unit + 1) * 10);
    s.remove_suffix(1);
  }
  const auto value = parse_number<double>(s);
  if (!value || !(*value >= 0) || *value * factor > 1e18) return std::nullopt;
  return static_cast<uint64_t>(*value * factor);
}

std::string format_number(double value) {
  if (!std::isfinite(value)) return "?";
  const double size = std::fabs(value);
  if (size >= 99.95 || size == 0) return fmt::format("{:.0f}", value);
  if (size >= 9.995) return fmt::format("{:.1f}", value);
  if (size >= 0.01) return fmt::format("{:.2f}", value);
  return fmt::format("{:.2g}", value);
}

std::string format_duration(Nanos d) {
  const double ns = static_cast<double>(d.count());
  const double size = std::fabs(ns);
  if (size < 1e3) return fmt::format("{:.0f} ns", ns);
  if (size < 999.5e3) return format_number(ns * 1e-3) + " us";
  if (size < 999.5e6) return format_number(ns * 1e-6) + " ms";
  if (size < 120e9) return format_number(ns * 1e-9) + " s";
  if (size < 7200e9) return format_number(ns * 1e-9 / 60) + " min";
  return format_number(ns * 1e-9 / 3600) + " h";
}

std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (std::fabs(bytes) >= 1023.5 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return (unit == 0 ? fmt::format("{:.0f}", bytes) : format_number(bytes)) + " " + kUnits[unit];
}

std::string format_percent(double ratio) {
  const double percent = ratio * 100;
  if (std::fabs(percent) < 1 && percent != 0) return fmt::format("{:.1f} %", percent);
  return fmt::format("{:.0f} %", percent);
}

namespace {

// Length of the valid UTF-8 sequence at the front of `s`; 0 if there is none.
size_t utf8_length(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || s.size() < want) return 0;
  for (size_t i = 1; i < want; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
  if (lead == 0xED && byte(1) > 0x9F) return 0;  // surrogate
  if (lead == 0xF0 && byte(1) < 0x90) return 0;  // overlong
  if (lead == 0xF4 && byte(1) > 0x8F) return 0;  // beyond U+10FFFF
  return want;
}

template <class OnText, class OnBad>
void each_character(std::string_view s, OnText on_text, OnBad on_bad) {
  while (!s.empty()) {
    const size_t size = utf8_length(s);
    if (size == 0) {
      on_bad(static_cast<unsigned char>(s[0]));
      s.remove_prefix(1);
    } else {
      on_text(s.substr(0, size));
      s.remove_prefix(size);
    }
  }
}

}  // namespace

std::string to_utf8(std::string_view s) {
  std::string out;
  each_character(
      s, [&](std::string_view c) { out += c; }, [&](unsigned char) { out += "\xEF\xBF\xBD"; });
  return out;
}

std::string unescape_octal(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto octal = [&](size_t at) { return text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && i + 3 < text.size() && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                               (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string escape_terminal(std::string_view s) {
  std::string out;
  const auto hex = [&](unsigned char c) { out += fmt::format("\\x{:02x}", c); };
  each_character(
      s,
      [&](std::string_view c) {
        const unsigned char lead = static_cast<unsigned char>(c[0]);
        // C0, DEL and C1 (U+0080..U+009F) control the terminal; bidirectional marks reorder it.
        const bool c1 = lead == 0xC2 && static_cast<unsigned char>(c[1]) < 0xA0;
        // So do the marks U+200B..200F, U+202A..202E, U+2066..2069, U+061C; U+2028 and 2029 break
        // the line.
        const unsigned char tail = static_cast<unsigned char>(c.back());
        const bool bidi = c == "\xD8\x9C" ||
                          (c.size() == 3 && lead == 0xE2 &&
                           ((c[1] == '\x80' &&
                             ((tail >= 0xA8 && tail <= 0xAE) || (tail >= 0x8B && tail <= 0x8F))) ||
                            (c[1] == '\x81' && tail >= 0xA6 && tail <= 0xA9)));
        if (lead < 0x20 || lead == 0x7F || c1 || bidi) {
          for (const char byte : c) hex(static_cast<unsigned char>(byte));
        } else {
          out += c;
        }
      },
      hex);
  return out;
}

std::string escape_html(std::string_view s) {
  std::string out;
  each_character(
      s,
      [&](std::string_view c) {
        switch (c[0]) {
          case '&':
            out += "&amp;";
            break;
          case '<':
            out += "&lt;";
            break;
          case '>':
            out += "&gt;";
            break;
          case '"':
            out += "&quot;";
            break;
          case '\'':
            out += "&#39;";
            break;
          default:
            out += c;
        }
      },
      [&](unsigned char) { out += "\xEF\xBF\xBD"; });
  return out;
}

}  // namespace flatout
