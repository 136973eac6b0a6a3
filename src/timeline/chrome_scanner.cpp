#include "timeline/chrome_scanner.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "timeline/json_scan.h"

namespace flatout::timeline {
namespace {

constexpr size_t kBlock = 256 << 10;  // stays in the second-level cache
constexpr size_t kLargestValue = 256 << 20;
constexpr size_t kLargestMember = 1 << 20;
constexpr std::ptrdiff_t kLargestEvent = 16 << 20;  // a damaged event may swallow those after it
constexpr uint64_t kTooMuchDamage = 10'000;

enum class Step : uint8_t { kDone, kMore, kBad };

// A window on the source: [begin, end) is what was read and not used yet, padded with zeros.
class Window {
 public:
  explicit Window(ByteSource& source, uint64_t offset) : source_(source), offset_(offset) {}
  ~Window() { std::free(data_); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  const char* begin() const { return data_ + begin_; }
  const char* end() const { return data_ + end_; }
  bool at_end() const { return at_end_; }
  uint64_t offset_of(const char* p) const { return offset_ + static_cast<uint64_t>(p - data_); }
  void use(const char* to) { begin_ = static_cast<size_t>(to - data_); }

  /// Reads on, keeping what is not used. False at the source's end.
  Result<bool> more() {
    if (at_end_) return false;
    const size_t kept = end_ - begin_;
    if (kept > kLargestValue) {
      return Error{Code::kFull, "one value of the trace is larger than 256 MiB",
                   "is this a trace? Look at its first lines"};
    }
    // Room for what is kept and as much again, so that a long value is not read over and over.
    const size_t wanted = kept + std::max(kBlock, kept);
    if (wanted + scan::kScanPadding > capacity_) {
      capacity_ = wanted + scan::kScanPadding;
      char* const data = static_cast<char*>(std::malloc(capacity_));
      if (data == nullptr) return Error{Code::kFull, "out of memory", ""};
      if (kept > 0) std::memcpy(data, data_ + begin_, kept);
      std::free(data_);
      data_ = data;
    } else if (begin_ > 0 && kept > 0) {
      std::memmove(data_, data_ + begin_, kept);
    }
    offset_ += begin_;
    begin_ = 0;
    end_ = kept;
    while (end_ < wanted) {
      FLATOUT_TRY(const size_t got, source_.read(data_ + end_, wanted - end_));
      if (got == 0) {
        at_end_ = true;
        break;
      }
      end_ += got;
    }
    std::memset(data_ + end_, 0, scan::kScanPadding);
    return end_ > kept;
  }

 private:
  ByteSource& source_;
  uint64_t offset_;  // of data_[0]
  char* data_ = nullptr;
  size_t begin_ = 0, end_ = 0, capacity_ = 0;
  bool at_end_ = false;
};

class Scanner {
 public:
  Scanner(ByteSource& source, ChromeSink& sink, uint64_t offset)
      : window_(source, offset), sink_(sink), first_(offset) {}

  Result<ScanReport> run(ScanFrom from) {
    if (from == ScanFrom::kStart) {
      FLATOUT_TRY_STATUS(outermost());
    } else {
      FLATOUT_TRY_STATUS(list());
      if (report_.complete) FLATOUT_TRY_STATUS(members());
    }
    report_.bytes = window_.offset_of(window_.end()) - first_;
    return report_;
  }

 private:
  // Moves to the next byte that is not blank; false at the end of all.
  Result<bool> next_token() {
    for (;;) {
      const char* const p =
          window_.begin() == window_.end() ? window_.end() : scan::skip_space(window_.begin());
      if (p < window_.end()) {
        window_.use(p);
        return true;
      }
      window_.use(window_.end());
      FLATOUT_TRY(const bool more, window_.more());
      if (!more) return false;
    }
  }

  Status outermost() {
    auto more = window_.more();
    if (!more.ok()) return more.error();
    if (window_.end() - window_.begin() >= 3 &&
        std::memcmp(window_.begin(), "\xEF\xBB\xBF", 3) == 0)
      window_.use(window_.begin() + 3);
    auto any = next_token();
    if (!any.ok()) return any.error();
    if (!*any) return {};
    if (*window_.begin() == '[') {
      window_.use(window_.begin() + 1);
      if (auto status = list(); !status.ok()) return status;
      // The last bracket of a bare list may be missing: the format says so.
      report_.complete = report_.complete || !report_.cut_inside;
      return {};
    }
    if (*window_.begin() != '{') return {};
    window_.use(window_.begin() + 1);
    return members();
  }

  // What is left of the outermost object.
  Status members() {
    for (;;) {
      auto any = next_token();
      if (!any.ok()) return any.error();
      if (!*any || *window_.begin() == '}') return {};
      if (*window_.begin() == ',') {
        window_.use(window_.begin() + 1);
        continue;
      }
      if (*window_.begin() != '"') {
        ++report_.bad_events;
        return {};
      }
      if (auto status = member(); !status.ok()) return status;
      if (done_) return {};
    }
  }

  // One "key": value of the outermost object.
  Status member() {
    bool escaped = false;
    const char* close = nullptr;
    while ((close = scan::string_end(window_.begin() + 1, window_.end(), escaped)) == nullptr) {
      auto more = window_.more();
      if (!more.ok()) return more.error();
      if (!*more) return finish();
    }
    const std::string key(window_.begin() + 1, close);
    window_.use(close + 1);
    auto any = next_token();
    if (!any.ok()) return any.error();
    if (!*any) return finish();
    if (*window_.begin() != ':') {
      ++report_.bad_events;
      return finish();
    }
    window_.use(window_.begin() + 1);
    any = next_token();
    if (!any.ok()) return any.error();
    if (!*any) return finish();
    if (key == "traceEvents" && *window_.begin() == '[') {
      window_.use(window_.begin() + 1);
      return list();
    }
    return value(key);
  }

  Status value(const std::string& key) {
    // Kept whole while it is small, skipped in pieces once it is not.
    for (;;) {
      const char* const stop = scan::skip_value(window_.begin(), window_.end());
      if (stop != nullptr) {
        sink_.member(key, {window_.begin(), static_cast<size_t>(stop - window_.begin())});
        window_.use(stop);
        return {};
      }
      if (static_cast<size_t>(window_.end() - window_.begin()) > kLargestMember) break;
      auto more = window_.more();
      if (!more.ok()) return more.error();
      if (!*more) return finish();
    }
    const char first = *window_.begin();
    if (first != '{' && first != '[') return finish();  // no string is that long
    scan::Nesting state;
    for (;;) {
      const char* const stop = scan::skip_nested(window_.begin(), window_.end(), state);
      if (stop != nullptr) {
        window_.use(stop);
        return {};
      }
      window_.use(window_.end());
      auto more = window_.more();
      if (!more.ok()) return more.error();
      if (!*more) return finish();
    }
  }

  Status finish() {
    done_ = true;
    return {};
  }

  Status list() {
    report_.has_list = true;
    report_.list_end = window_.offset_of(window_.begin());
    for (;;) {
      auto any = next_token();
      if (!any.ok()) return any.error();
      if (!*any) return finish();
      const char c = *window_.begin();
      if (c == ',') {
        window_.use(window_.begin() + 1);
        continue;
      }
      if (c == ']') {
        window_.use(window_.begin() + 1);
        report_.complete = true;
        return {};
      }
      if (c == '{') {
        // As many as the window holds.
        Step step = Step::kDone;
        while ((step = event(window_.begin())) == Step::kDone) {
          const char* p = scan::skip_space(window_.begin());
          if (*p == ',' && p < window_.end()) p = scan::skip_space(p + 1);
          if (p >= window_.end()) break;
          window_.use(p);
          if (*p != '{') break;
        }
        if (sink_.enough()) return finish();
        if (step == Step::kDone) continue;
        if (step == Step::kMore && window_.end() - window_.begin() < kLargestEvent) {
          auto more = window_.more();
          if (!more.ok()) return more.error();
          if (*more) continue;
          // Cut off within this event, unless a damaged one before the end swallowed the rest.
          report_.cut_inside = true;
          if (!next_event() || too_much_damage()) return finish();
          ++report_.bad_events;
          continue;
        }
      }
      ++report_.bad_events;
      if (too_much_damage()) return finish();
      while (!next_event()) {
        // Not in the window: keep the last bytes, which may hold the first half of what is looked
        // for.
        const auto kept = std::min<std::ptrdiff_t>(window_.end() - window_.begin(), 256);
        window_.use(window_.end() - kept);
        auto more = window_.more();
        if (!more.ok()) return more.error();
        if (!*more) return finish();
      }
    }
  }

  // Recovery may look at the same bytes again and again: not for what is no trace at all.
  bool too_much_damage() const {
    return report_.bad_events > kTooMuchDamage && report_.bad_events > report_.events;
  }

  // After something unreadable: goes to the next "}, {", which between events stands always and
  // elsewhere seldom.
  bool next_event() {
    const char* const end = window_.end();
    for (const char* p = window_.begin() + 1; p < end; ++p) {
      p = static_cast<const char*>(std::memchr(p, '}', static_cast<size_t>(end - p)));
      if (p == nullptr) return false;
      const char* q = scan::skip_space(p + 1);
      if (q >= end || *q != ',') continue;
      q = scan::skip_space(q + 1);
      if (q < end && *q == '{') {
        window_.use(q);
        return true;
      }
    }
    return false;
  }

  // The content of a string, or a bare word as it stands.
  static Step word(const char*& p, const char* end, std::string_view& out, bool& escaped) {
    if (*p == '"') {
      const char* const close = scan::string_end(p + 1, end, escaped);
      if (close == nullptr) return Step::kMore;
      out = {p + 1, static_cast<size_t>(close - p - 1)};
      p = close + 1;
      return Step::kDone;
    }
    const char* const stop = scan::skip_value(p, end);
    if (stop == nullptr) return scan::cannot_begin_value(*p) ? Step::kBad : Step::kMore;
    out = {p, static_cast<size_t>(stop - p)};
    p = stop;
    return Step::kDone;
  }

  static Step time(const char*& p, const char* end, int64_t& out, bool& known, bool& bad) {
    const auto value = scan::decimal(p, end, 3);
    if (p >= end) return Step::kMore;
    if (value) {
      out = *value;
      known = true;
    } else {
      bad = true;
    }
    return Step::kDone;
  }

  Step event(const char* const begin) {
    const char* const end = window_.end();
    ChromeEvent e;
    const char* p = begin + 1;
    bool ignored = false;
    for (;;) {
      p = scan::skip_space(p);
      if (p >= end) return Step::kMore;
      if (*p == ',') {
        ++p;
        continue;
      }
      if (*p == '}') break;
      if (*p != '"') return Step::kBad;
      const char* const key = p + 1;
      bool escaped = false;
      const char* const close = scan::string_end(key, end, escaped);
      if (close == nullptr) return Step::kMore;
      const std::string_view name(key, static_cast<size_t>(close - key));
      p = scan::skip_space(close + 1);
      if (p >= end) return Step::kMore;
      if (*p != ':') return Step::kBad;
      p = scan::skip_space(p + 1);
      if (p >= end) return Step::kMore;
      Step step = Step::kDone;
      bool known = true;
      switch (name.size()) {
        case 2:
          if (name == "ph") {
            std::string_view phase;
            step = word(p, end, phase, ignored);
            if (phase.size() == 1) e.phase = phase[0];
          } else if (name == "ts") {
            step = time(p, end, e.time_ns, e.has_time, e.bad_number);
          } else if (name == "id") {
            step = word(p, end, e.id, ignored);
          } else {
            known = false;
          }
          break;
        case 3:
          if (name == "cat") {
            step = word(p, end, e.category, e.category_escaped);
          } else if (name == "pid") {
            step = word(p, end, e.pid, ignored);
          } else if (name == "tid") {
            step = word(p, end, e.tid, ignored);
          } else if (name == "dur") {
            step = time(p, end, e.duration_ns, ignored, e.bad_number);
          } else {
            known = false;
          }
          break;
        case 4:
          if (name == "name") {
            step = word(p, end, e.name, e.name_escaped);
          } else if (name == "args" && *p == '{') {
            scan::Nesting state;
            const char* const stop = scan::skip_nested(p, end, state);
            if (stop == nullptr) return Step::kMore;
            e.args = {p, static_cast<size_t>(stop - p)};
            p = stop;
          } else {
            known = false;
          }
          break;
        default:
          known = false;
      }
      if (!known) {
        const char* const stop = scan::skip_value(p, end);
        if (stop == nullptr) return scan::cannot_begin_value(*p) ? Step::kBad : Step::kMore;
        p = stop;
      }
      if (step != Step::kDone) return step;
    }
    ++p;
    e.text = {begin, static_cast<size_t>(p - begin)};
    e.offset = window_.offset_of(begin);
    ++report_.events;
    report_.list_end = e.offset + e.text.size();
    sink_.event(e);
    window_.use(p);
    return Step::kDone;
  }

  Window window_;
  ChromeSink& sink_;
  uint64_t first_;
  ScanReport report_;
  bool done_ = false;
};

}  // namespace

Result<ScanReport> scan_chrome(ByteSource& source, ChromeSink& sink, ScanFrom from,
                               uint64_t offset) {
  return Scanner(source, sink, offset).run(from);
}

bool looks_like_chrome(std::string_view head) {
  if (head.starts_with("\xEF\xBB\xBF")) head.remove_prefix(3);
  while (!head.empty() && scan::is_space(head.front())) head.remove_prefix(1);
  if (head.empty() || (head[0] != '{' && head[0] != '[')) return false;
  head.remove_prefix(1);
  while (!head.empty() && scan::is_space(head.front())) head.remove_prefix(1);
  return head.empty() || head[0] == '"' || head[0] == '{' || head[0] == ']' || head[0] == '}';
}

}  // namespace flatout::timeline
