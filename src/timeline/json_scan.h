// Finding one's way in JSON text at the speed of memory: ends of strings and containers 16 bytes at
// a time, decimals straight to integer nanoseconds. Forgiving on purpose: what a trace writer let
// slip (control characters, bytes that are not UTF-8, NaN, stray commas) is no reason to refuse a
// trace.
//
// All functions read up to 63 bytes past `end`: the buffer must be padded with kScanPadding zero
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace flatout::timeline::scan {

inline constexpr size_t kScanPadding = 64;

inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/// First byte that is not blank; at `end` the padding's zero.
inline const char* skip_space(const char* p) {
  if (static_cast<unsigned char>(*p) > ' ') return p;
  if (is_space(*p) && static_cast<unsigned char>(p[1]) > ' ') return p + 1;
#if defined(__SSE2__)
  for (;;) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i blank = _mm_or_si128(
        _mm_or_si128(_mm_cmpeq_epi8(x, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(x, _mm_set1_epi8('\n'))),
        _mm_or_si128(_mm_cmpeq_epi8(x, _mm_set1_epi8('\t')),
                     _mm_cmpeq_epi8(x, _mm_set1_epi8('\r'))));
    const unsigned mask = ~static_cast<unsigned>(_mm_movemask_epi8(blank)) & 0xFFFFu;
    if (mask != 0) return p + __builtin_ctz(mask);
    p += 16;
  }
#else
  while (is_space(*p)) ++p;
  return p;
#endif
}

/// `p`: first byte of a string's content. Its closing quote, or nullptr where it is not before
/// `end`. `escaped`: a backslash is in it.
inline const char* string_end(const char* p, const char* end, bool& escaped) {
  escaped = false;
  while (p < end) {
#if defined(__SSE2__)
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const unsigned mask = static_cast<unsigned>(_mm_movemask_epi8(_mm_or_si128(
        _mm_cmpeq_epi8(x, _mm_set1_epi8('"')), _mm_cmpeq_epi8(x, _mm_set1_epi8('\\')))));
    if (mask == 0) {
      p += 16;
      continue;
    }
    p += __builtin_ctz(mask);
#else
    if (*p != '"' && *p != '\\') {
      ++p;
      continue;
    }
#endif
    if (p >= end) return nullptr;
    if (*p == '"') return p;
    escaped = true;
    p += 2;
  }
  return nullptr;
}

/// State of a container whose end has not been seen yet, so that it may be skipped in pieces.
struct Nesting {
  uint64_t depth = 0;
  bool in_string = false, after_backslash = false;
};

/// Skips to the byte after the bracket that brings `state.depth` to 0, or returns nullptr with the
/// state at `end`.
const char* skip_nested(const char* p, const char* end, Nesting& state);

/// Whether no value begins so, however the text goes on.
inline bool cannot_begin_value(char c) {
  return static_cast<unsigned char>(c) <= ' ' || c == ',' || c == '}' || c == ']' || c == ':';
}

/// Skips one value that begins at `p`; nullptr where its end is not before `end` or `p` is no
/// value. A bare word ends at , ] } or a blank; at the very end of the buffer that is nullptr too.
const char* skip_value(const char* p, const char* end);

/// A decimal in units of 10^`shift` of what is wanted ("12.345" with shift 3: 12345), rounded half
/// up beyond; quotes allowed. Advances `p`. nullopt for what is no finite number: `p` then stands
/// after it.
std::optional<int64_t> decimal(const char*& p, const char* end, int shift);

/// A string's content with escapes resolved (\u pairs too; what is malformed stays as it is).
std::string unescape(std::string_view text);

/// Calls visit(key, value) for each member of the object `text` ("{...}"); both as they stand,
/// value with its quotes. Stops where visit returns false or the text is malformed.
template <class Visit>
void members(std::string_view text, Visit&& visit) {
  const char* const end = text.data() + text.size();
  const char* p = text.data();
  if (text.size() < 2 || *p != '{') return;
  for (++p; p < end;) {
    p = skip_space(p);
    if (p >= end || *p == '}') return;
    if (*p == ',') {
      ++p;
      continue;
    }
    if (*p != '"') return;
    bool escaped = false;
    const char* const key = p + 1;
    const char* const key_end = string_end(key, end, escaped);
    if (key_end == nullptr) return;
    p = skip_space(key_end + 1);
    if (p >= end || *p != ':') return;
    p = skip_space(p + 1);
    if (p >= end) return;
    const char* const value = p;
    p = skip_value(p, end);
    if (p == nullptr) return;
    if (!visit(std::string_view(key, static_cast<size_t>(key_end - key)),
               std::string_view(value, static_cast<size_t>(p - value)))) {
      return;
    }
  }
}

/// The same for a list: visit(value).
template <class Visit>
void elements(std::string_view text, Visit&& visit) {
  const char* const end = text.data() + text.size();
  const char* p = text.data();
  if (text.size() < 2 || *p != '[') return;
  for (++p; p < end;) {
    p = skip_space(p);
    if (p >= end || *p == ']') return;
    if (*p == ',') {
      ++p;
      continue;
    }
    const char* const value = p;
    p = skip_value(p, end);
    if (p == nullptr) return;
    if (!visit(std::string_view(value, static_cast<size_t>(p - value)))) return;
  }
}

/// Without its quotes, if it has any.
inline std::string_view unquoted(std::string_view value) {
  return value.size() >= 2 && value.front() == '"' ? value.substr(1, value.size() - 2) : value;
}

}  // namespace flatout::timeline::scan
