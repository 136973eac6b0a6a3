#include "timeline/chrome_layout.h"

#include <algorithm>
#include <cstring>

#include "timeline/json_scan.h"

namespace flatout::timeline {

namespace {

constexpr uint32_t kTrial = 1024;  // events after which the layouts' use is judged
constexpr size_t kLargest = 64 << 10;
constexpr uint32_t kPause =
    16384;  // events that are read without them where they are of little use

/// Whether `size` bytes are equal. `a` is padded; `b` may end within kScanPadding zeros.
inline bool equal(const char* a, const char* b, size_t size) {
#if defined(__SSE2__)
  for (;;) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
    const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
    const auto same = static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(x, y)));
    if (size <= 16) return ((same ^ 0xFFFFu) & ((1u << size) - 1)) == 0;
    if (same != 0xFFFFu) return false;
    a += 16;
    b += 16;
    size -= 16;
  }
#else
  return ::strncmp(a, b, size) == 0;
#endif
}

/// The first byte that is no part of a plain number. Letters are none: exponents and NaN are read
/// key by key.
inline const char* number_end(const char* p) {
#if defined(__SSE2__)
  for (;;) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i off = _mm_sub_epi8(x, _mm_set1_epi8('-'));  // - . / 0 ... 9
    const __m128i in = _mm_cmpeq_epi8(_mm_min_epu8(off, _mm_set1_epi8('9' - '-')), off);
    const unsigned out = ~static_cast<unsigned>(_mm_movemask_epi8(in)) & 0xFFFFu;
    if (out != 0) return p + __builtin_ctz(out);
    p += 16;
  }
#else
  while (static_cast<unsigned char>(*p - '-') <= '9' - '-') ++p;
  return p;
#endif
}

}  // namespace

std::optional<EventLayout> EventLayout::of(std::string_view event) {
  // Zeros are what the buffer is padded with.
  if (event.size() > kLargest || event.find('\0') != std::string_view::npos) return std::nullopt;
  EventLayout out;
  const char* p = event.data();
  const char* const end = p + event.size();
  out.from_ = p;
  ++p;
  if (!out.members(p, end, false) || p != end) return std::nullopt;
  out.pieces_.push_back({static_cast<uint32_t>(out.text_.size()),
                         static_cast<uint32_t>(end - out.from_), Value::kNone, Field::kOther});
  out.text_.append(out.from_, end);
  if (out.pieces_.size() > kMostPieces) return std::nullopt;
  out.text_.append(scan::kScanPadding, '\0');
  return out;
}

EventLayout::Place EventLayout::place(const char* p) const {
  return {pieces_.size(), static_cast<size_t>(p - from_)};
}

// After the opening brace, up to behind the closing one.
bool EventLayout::members(const char*& p, const char* end, bool arguments) {
  for (;;) {
    p = scan::skip_space(p);
    if (p >= end) return false;
    if (*p == ',') {
      ++p;
      continue;
    }
    if (*p == '}') {
      ++p;
      return true;
    }
    if (*p != '"') return false;
    bool escaped = false;
    const char* const key = p + 1;
    const char* const close = scan::string_end(key, end, escaped);
    if (close == nullptr || escaped) return false;
    p = scan::skip_space(close + 1);
    if (p >= end || *p != ':') return false;
    p = scan::skip_space(p + 1);
    if (p >= end || !value(key, static_cast<size_t>(close - key), p, end, arguments)) return false;
  }
}

bool EventLayout::value(const char* key, size_t size, const char*& p, const char* end,
                        bool arguments) {
  const std::string_view name(key, size);
  bool escaped = false;
  const auto once = [&](Field field) {
    const uint32_t bit = 1u << static_cast<uint32_t>(field);
    const bool fresh = (fields_ & bit) == 0;
    fields_ |= bit;
    return fresh;
  };
  Field field = Field::kOther;
  if (arguments) {
    if (name == "correlation") field = Field::kCorrelation;
    if (name == "device") field = Field::kDevice;
    if (name == "stream") field = Field::kStream;
    if (name == "bytes") field = Field::kBytes;
    if (name == "memory bandwidth (GB/s)") field = Field::kBandwidth;
  } else if (name == "ph" || name == "cat") {
    // Part of the layout itself.
    if (*p != '"') return false;
    const char* const content = p + 1;
    const char* const close = scan::string_end(content, end, escaped);
    if (close == nullptr || escaped) return false;
    p = close + 1;
    if (name == "ph") {
      if (phase_ != 0 || close != content + 1) return false;
      phase_ = *content;
      return true;
    }
    if (category_size_ != 0) return false;
    category_ = text_.size() + static_cast<size_t>(content - from_);
    category_size_ = static_cast<size_t>(close - content);
    return true;
  } else if (name == "args" && *p == '{') {
    if (args_begin_.piece != SIZE_MAX) return false;
    args_begin_ = place(p);
    ++p;
    if (!members(p, end, true)) return false;
    args_last_ = place(p - 1);
    return true;
  } else if (name == "name") {
    field = Field::kName;
  } else if (name == "pid") {
    field = Field::kPid;
  } else if (name == "tid") {
    field = Field::kTid;
  } else if (name == "id") {
    field = Field::kId;
  } else if (name == "ts") {
    field = Field::kTime;
  } else if (name == "dur") {
    field = Field::kDuration;
  }
  if (field != Field::kOther && !once(field)) return false;

  const char* const stop = scan::skip_value(p, end);
  if (stop == nullptr) return false;
  bool added = false;
  if (field == Field::kTime || field == Field::kDuration) {
    added = number_end(p) == stop && add(Value::kTime, field, p, stop);
  } else if (*p == '"') {
    added = add(Value::kString, field, p + 1, stop - 1);
  } else if (*p == '{' || *p == '[') {
    added = field == Field::kOther && add(Value::kNested, field, p, stop);
  } else if (number_end(p) == stop) {
    added = add(Value::kNumber, field, p, stop);
  } else {
    // true, null: part of the layout. Numbers that are no plain ones are not.
    added = field == Field::kOther && number_end(p) == p;
  }
  p = stop;
  return added;
}

bool EventLayout::add(Value value, Field field, const char* begin, const char* stop) {
  if (pieces_.size() >= kMostPieces) return false;
  pieces_.push_back(
      {static_cast<uint32_t>(text_.size()), static_cast<uint32_t>(begin - from_), value, field});
  text_.append(from_, begin);
  from_ = stop;
  return true;
}

const char* EventLayout::read(const char* p, const char* end, ChromeEvent& e) const {
  if (!equal(text_.data(), p, pieces_.front().size)) return nullptr;
  const char* const stop = read_values(p, end, e);
  if (stop == nullptr) e = ChromeEvent();
  return stop;
}

const char* EventLayout::read_values(const char* p, const char* end, ChromeEvent& e) const {
  const char* begins[kMostPieces + 1];  // of the pieces' texts
  bool escaped = false;
  size_t number = 0;
  for (const Piece& piece : pieces_) {
    if (number > 0 && !equal(text_.data() + piece.text, p, piece.size)) return nullptr;
    escaped = false;
    begins[number++] = p;
    p += piece.size;
    const char* const value = p;
    switch (piece.value) {
      case Value::kString:
        p = scan::string_end(p, end, escaped);
        if (p == nullptr) return nullptr;
        break;
      case Value::kNumber:
        p = number_end(p);
        if (p == value) return nullptr;
        break;
      case Value::kTime: {
        // Digits first, or it is something that is read with more care.
        if (static_cast<unsigned char>(*p - '0') > 9 && *p != '-') return nullptr;
        const auto time = scan::decimal(p, end, 3);
        if (!time || p >= end) return nullptr;
        (piece.field == Field::kTime ? e.time_ns : e.duration_ns) = *time;
        continue;
      }
      case Value::kNested: {
        if (*p != '[' && *p != '{') return nullptr;
        scan::Nesting state;
        p = scan::skip_nested(p, end, state);
        if (p == nullptr) return nullptr;
        continue;
      }
      case Value::kNone:
        break;
    }
    const std::string_view text(value, static_cast<size_t>(p - value));
    switch (piece.field) {
      case Field::kOther:
      case Field::kTime:
      case Field::kDuration:
        break;
      case Field::kName:
        e.name = text;
        e.name_escaped = escaped;
        break;
      case Field::kPid:
        e.pid = text;
        break;
      case Field::kTid:
        e.tid = text;
        break;
      case Field::kId:
        e.id = text;
        break;
      case Field::kCorrelation:
        e.correlation = text;
        break;
      case Field::kDevice:
        e.device = text;
        break;
      case Field::kStream:
        e.stream = text;
        break;
      case Field::kBytes:
        e.bytes = text;
        break;
      case Field::kBandwidth:
        e.bandwidth = text;
        break;
    }
  }
  if (p > end) return nullptr;
  e.phase = phase_;
  e.category = std::string_view(text_).substr(category_, category_size_);
  e.has_time = (fields_ & (1u << static_cast<uint32_t>(Field::kTime))) != 0;
  if (args_begin_.piece != SIZE_MAX) {
    const char* const first = begins[args_begin_.piece] + args_begin_.at;
    const char* const last = begins[args_last_.piece] + args_last_.at;
    e.args = {first, static_cast<size_t>(last + 1 - first)};
  }
  e.arguments_known = true;
  return p;
}

const char* EventLayouts::read(const char* p, const char* end, ChromeEvent& e) {
  if (pause_ > 0) {
    --pause_;
    return nullptr;
  }
  if (all_.empty()) return nullptr;
  if (++tried_ == kTrial) {
    if (matched_ < kTrial / 2) pause_ = kPause;
    tried_ = matched_ = 0;
  }
  const auto attempt = [&](size_t i) -> const char* {
    const char* const stop = all_[i].read(p, end, e);
    if (stop == nullptr) return nullptr;
    ++matched_;
    ++hits_[i];
    next_[last_] = static_cast<uint8_t>(i);
    last_ = i;
    return stop;
  };
  const size_t expected = next_[last_];
  if (const char* const stop = attempt(expected)) return stop;
  for (size_t i = 0; i < all_.size(); ++i) {
    if (i == expected) continue;
    if (const char* const stop = attempt(i)) return stop;
  }
  return nullptr;
}

void EventLayouts::learn(std::string_view event) {
  if (pause_ > 0) return;
  auto layout = EventLayout::of(event);
  if (!layout) return;
  size_t place = all_.size();
  if (place < kMost) {
    all_.push_back(std::move(*layout));
  } else {
    // The least used one goes; what was of use long ago counts less and less.
    place = static_cast<size_t>(std::min_element(hits_.begin(), hits_.end()) - hits_.begin());
    all_[place] = std::move(*layout);
    for (uint32_t& hits : hits_) hits /= 2;
  }
  hits_[place] = 1;
  next_[last_] = static_cast<uint8_t>(place);
  next_[place] = 0;
  last_ = place;
}

}  // namespace flatout::timeline
