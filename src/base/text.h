// Text helpers: cutting up /proc files, and writing numbers and hostile names for people.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace flatout {

/// Parses the whole of `s` (spaces around it allowed) as an integer or double.
template <class T>
std::optional<T> parse_number(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\n' || s.back() == '\t'))
    s.remove_suffix(1);
  T value{};
  const auto [end, err] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (err != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return value;
}

/// Takes the next word (separated by blanks) off the front of `s`; empty at the end.
std::string_view next_word(std::string_view& s);
/// Takes the next line (without '\n') off the front of `s`. False at the end.
bool next_line(std::string_view& s, std::string_view& line);
std::string_view trim(std::string_view s);
std::vector<std::string_view> split(std::string_view s, char separator);

/// "17.3 ms", "2.41 s", "450 us": three significant digits.
std::string format_duration(Nanos d);
/// "1.50 GiB", "312 KiB".
std::string format_bytes(double bytes);
/// "24GiB", "1.5 G", "512 MB", "4096": K, M, G and T are powers of 1024, with or without B or iB.
std::optional<uint64_t> parse_bytes(std::string_view s);
/// "61 %" or "0.8 %".
std::string format_percent(double ratio);
/// Up to three significant digits, without an exponent where that stays short.
std::string format_number(double value);

/// Control characters, escape sequences and bytes that are not UTF-8 made visible (\x1b): names of
/// processes, files and hosts are hostile.
std::string escape_terminal(std::string_view s);
/// For HTML text and double-quoted attributes; invalid UTF-8 becomes U+FFFD.
std::string escape_html(std::string_view s);
/// Valid UTF-8: bad bytes become U+FFFD. For JSON.
std::string to_utf8(std::string_view s);
/// Undoes octal escapes, as /proc/*/mountinfo writes blanks: "\040".
std::string unescape_octal(std::string_view text);

}  // namespace flatout
