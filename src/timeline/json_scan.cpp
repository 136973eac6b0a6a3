#include "timeline/json_scan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace flatout::timeline::scan {
namespace {

constexpr int64_t kLargest = 4'000'000'000'000'000'000;  // two of them still add up in 64 bits

// Byte by byte, for pieces with escapes.
const char* skip_slowly(const char* p, const char* stop, Nesting& state) {
  for (; p < stop; ++p) {
    const char c = *p;
    if (state.after_backslash) {
      state.after_backslash = false;
    } else if (state.in_string) {
      if (c == '\\') state.after_backslash = true;
      if (c == '"') state.in_string = false;
    } else if (c == '"') {
      state.in_string = true;
    } else if (c == '{' || c == '[') {
      ++state.depth;
    } else if (c == '}' || c == ']') {
      if (--state.depth == 0) return p + 1;
    }
  }
  return nullptr;
}

#if defined(__SSE2__)
struct Masks {
  uint64_t quotes, backslashes, opens, closes;
};

Masks masks_of(const char* p) {
  Masks m{};
  const __m128i bit5 = _mm_set1_epi8(0x20);
  for (size_t i = 0; i < 4; ++i) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
    const __m128i lower = _mm_or_si128(x, bit5);  // [ and ] become { and }
    const auto bits = [&](__m128i v, char c) {
      return static_cast<uint64_t>(
                 static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_set1_epi8(c)))))
             << (16 * i);
    };
    m.quotes |= bits(x, '"');
    m.backslashes |= bits(x, '\\');
    m.opens |= bits(lower, '{');
    m.closes |= bits(lower, '}');
  }
  return m;
}

// Of few bits: the processor's own instruction is not in every x86-64.
uint64_t count_few(uint64_t bits) {
  uint64_t count = 0;
  for (; bits != 0; bits &= bits - 1) ++count;
  return count;
}

// Bit i: whether an odd number of bits up to and with i is set.
uint64_t prefix_xor(uint64_t x) {
  x ^= x << 1;
  x ^= x << 2;
  x ^= x << 4;
  x ^= x << 8;
  x ^= x << 16;
  return x ^ (x << 32);
}
#endif

}  // namespace

const char* skip_nested(const char* p, const char* end, Nesting& state) {
#if defined(__SSE2__)
  while (end - p >= 64) {
    const Masks m = masks_of(p);
    if (m.backslashes != 0 || state.after_backslash) {
      if (const char* const out = skip_slowly(p, p + 64, state)) return out;
      p += 64;
      continue;
    }
    const uint64_t inside = prefix_xor(m.quotes) ^ (state.in_string ? ~uint64_t{0} : 0);
    const uint64_t opens = m.opens & ~inside;
    uint64_t closes = m.closes & ~inside;
    const auto close_count = count_few(closes);
    if (close_count >= state.depth) {  // may end here
      uint64_t depth = state.depth;
      uint64_t before = opens;
      while (closes != 0) {
        const uint64_t lowest = closes & (~closes + 1);
        const uint64_t below = before & (lowest - 1);
        depth += count_few(below);
        before &= ~(lowest - 1);
        if (--depth == 0) return p + __builtin_ctzll(lowest) + 1;
        closes ^= lowest;
      }
    }
    state.depth += count_few(opens) - close_count;
    state.in_string = (inside >> 63) != 0;
    p += 64;
  }
#endif
  return skip_slowly(p, end, state);
}

const char* skip_value(const char* p, const char* end) {
  if (p >= end) return nullptr;
  if (*p == '"') {
    bool escaped = false;
    const char* const close = string_end(p + 1, end, escaped);
    return close == nullptr ? nullptr : close + 1;
  }
  if (*p == '{' || *p == '[') {
    Nesting state;
    return skip_nested(p, end, state);
  }
  const char* const begin = p;
  while (p < end && *p != ',' && *p != '}' && *p != ']' && *p != '"' && *p != ':' &&
         static_cast<unsigned char>(*p) > ' ') {
    ++p;
  }
  return p >= end || p == begin ? nullptr : p;
}

namespace {

// Eight digits at once, a byte each, the first one lowest: pairs, then fours, then all, in one
// word.
uint32_t number_of(uint64_t digits) {
  const uint64_t v = digits * 10 + (digits >> 8);
  return static_cast<uint32_t>((((v & 0x000000FF000000FFull) * 0x000F424000000064ull) +
                                (((v >> 16) & 0x000000FF000000FFull) * 0x0000271000000001ull)) >>
                               32);
}

bool eight_digits(const char* p, uint64_t& value) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  const uint64_t digits = word - 0x3030303030303030ull;
  if (((digits | (digits + 0x7676767676767676ull)) & 0x8080808080808080ull) != 0) return false;
  value = value * 100'000'000 + number_of(digits);
  return true;
}

#if defined(__SSE2__)
// How many digits stand at `p`, 16 at the most.
unsigned digits_at(const char* p) {
  const __m128i x =
      _mm_sub_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8('0'));
  const __m128i in = _mm_cmpeq_epi8(_mm_min_epu8(x, _mm_set1_epi8(9)), x);
  return static_cast<unsigned>(
      __builtin_ctz(~static_cast<unsigned>(_mm_movemask_epi8(in)) | 0x10000u));
}

// The number of `count` digits, 1 to 8.
uint64_t few_digits(const char* p, unsigned count) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return number_of((word - 0x3030303030303030ull) << (64 - 8 * count));
}
#endif

}  // namespace

std::optional<int64_t> decimal(const char*& p, const char* end, int shift) {
#if defined(__SSE2__)
  // Microseconds with three places, as most programs write them.
  if (shift == 3) {
    const unsigned whole = digits_at(p);
    if (whole > 0 && whole < 16 && p[whole] == '.' && digits_at(p + whole + 1) == 3) {
      const uint64_t low = few_digits(p + whole + 1, 3);
      uint64_t high = 0;
      if (whole > 8) high = few_digits(p, whole - 8) * 100'000'000;
      high += few_digits(whole > 8 ? p + whole - 8 : p, std::min(whole, 8u));
      const char* const stop = p + whole + 4;
      const uint64_t value = high * 1000 + low;
      if (*stop != 'e' && *stop != 'E' && value <= static_cast<uint64_t>(kLargest)) {
        p = stop;
        return static_cast<int64_t>(value);
      }
    }
  }
#endif
  const char* const begin = p;
  const bool quoted = *p == '"';
  if (quoted) ++p;
  const bool negative = *p == '-';
  if (negative || *p == '+') ++p;
  uint64_t value = 0;
  const char* const digits = p;
  if (eight_digits(p, value)) p += 8;
  while (static_cast<unsigned char>(*p - '0') < 10) {
    value = value * 10 + static_cast<unsigned>(*p - '0');
    ++p;
  }
  const auto whole = p - digits;
  int places = shift;
  bool up = false;
  if (*p == '.') {
    ++p;
    while (static_cast<unsigned char>(*p - '0') < 10) {
      if (places > 0) {
        value = value * 10 + static_cast<unsigned>(*p - '0');
        --places;
      } else if (places == 0) {
        up = *p >= '5';
        --places;
      }
      ++p;
    }
  }
  // Up to 19 digits fit in 64 bits: microseconds since 1970 with three places have 19.
  const bool plain = whole > 0 && whole + shift <= 19 && *p != 'e' && *p != 'E';
  if (plain) {
    for (; places > 0; --places) value *= 10;
    if (up) ++value;
    if (value > static_cast<uint64_t>(kLargest)) value = static_cast<uint64_t>(kLargest);
    if (quoted) {
      if (*p != '"') {
        p = skip_value(begin, end);
        if (p == nullptr) p = end;
        return std::nullopt;
      }
      ++p;
    }
    const auto out = static_cast<int64_t>(value);
    return negative ? -out : out;
  }
  // Exponents, huge numbers, NaN, null, text.
  p = skip_value(begin, end);
  if (p == nullptr) {
    p = cannot_begin_value(*begin) ? begin : end;
    return std::nullopt;
  }
  const std::string_view word = unquoted(std::string_view(begin, static_cast<size_t>(p - begin)));
  double number = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || stop != word.data() + word.size() || !std::isfinite(number))
    return std::nullopt;
  number *= std::pow(10.0, shift);
  if (number > static_cast<double>(kLargest)) return kLargest;
  if (number < -static_cast<double>(kLargest)) return -kLargest;
  return std::llround(number);
}

namespace {

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

std::optional<uint32_t> hex4(std::string_view text, size_t at) {
  if (at + 4 > text.size()) return std::nullopt;
  uint32_t value = 0;
  const auto [stop, error] = std::from_chars(text.data() + at, text.data() + at + 4, value, 16);
  if (error != std::errc() || stop != text.data() + at + 4) return std::nullopt;
  return value;
}

}  // namespace

std::string unescape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    switch (c) {
      case 'n':
        out += '\n';
        break;
      case 't':
        out += '\t';
        break;
      case 'r':
        out += '\r';
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case 'u': {
        auto unit = hex4(text, i + 1);
        if (!unit) {
          out += "\\u";
          break;
        }
        i += 4;
        if (*unit >= 0xD800 && *unit < 0xDC00 && i + 2 < text.size() && text[i + 1] == '\\' &&
            text[i + 2] == 'u') {
          const auto low = hex4(text, i + 3);
          if (low && *low >= 0xDC00 && *low < 0xE000) {
            unit = 0x10000 + ((*unit - 0xD800) << 10) + (*low - 0xDC00);
            i += 6;
          }
        }
        append_utf8(out, *unit >= 0xD800 && *unit < 0xE000 ? 0xFFFD : *unit);
        break;
      }
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace flatout::timeline::scan
