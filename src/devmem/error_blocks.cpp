#include "devmem/error_blocks.h"

#include <cctype>

#include "base/contains.h"
#include "base/text.h"

namespace flatout::devmem {
namespace {

constexpr size_t kMostContinuing = 8;  // lines of a message after its first

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

// "2024-01-17 …", "[10:10:10] …", "E0117 …", "W tensorflow/…", "WARNING: …", NCCL's and Python's.
bool is_log_line(std::string_view line) {
  if (contains(line, " NCCL INFO") || contains(line, " NCCL WARN") || contains(line, "Warning: "))
    return true;
  if (line.starts_with('[')) line.remove_prefix(1);
  for (const std::string_view level : {"DEBUG", "INFO", "WARN", "ERROR", "CRITICAL", "FATAL"})
    if (line.starts_with(level)) return true;
  if (line.size() < 2) return false;
  if (contains("DIWEF", line.substr(0, 1))) return line[1] == ' ' || is_digit(line[1]);
  const size_t end = line.find_first_not_of("0123456789");
  if (end == 0 || end == line.npos) return false;
  return end + 1 < line.size() && contains("-/:", line.substr(end, 1)) && is_digit(line[end + 1]);
}

// "RuntimeError: …", "torch.cuda.OutOfMemoryError: …", "triton.runtime.errors.OutOfResources: …"
bool is_exception(std::string_view line) {
  const std::string_view name = line.substr(0, line.find(':'));
  for (const char c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.') return false;
  const size_t dot = name.rfind('.');
  const std::string_view last = dot == name.npos ? name : name.substr(dot + 1);
  return !last.empty() && is_upper(last[0]) &&
         (dot != name.npos || last.ends_with("Error") || last.ends_with("Exception"));
}

}  // namespace

bool is_expected(std::string_view line, size_t at) {
  const std::string_view head = line.substr(0, at);
  return contains(head, "AssertionError") &&
         (contains_any(head, {"xpected ", "xpecting ", "hould "}) ||
          contains_any(line.substr(at), {"not found in", " not in ", "did not match",
                                         "does not match", "doesn't match", "' in '"}));
}

std::string_view without_source(std::string_view line) {
  for (int i = 0; i < 2; ++i) {
    size_t end = 0;
    if (line.starts_with("[rank") || line.starts_with("[default")) {
      end = line.find("]:");
      if (end != line.npos) end += 2;
    } else if (line.starts_with('(')) {
      end = line.find(')');
      if (end == line.npos || !contains(line.substr(0, end), "pid=")) return line;
      ++end;
    } else {
      end = line.find_first_not_of("0123456789");
      if (end == 0 || end == line.npos || !line.substr(end).starts_with(": ")) return line;
      ++end;
    }
    if (end == line.npos) return line;
    line.remove_prefix(end);
    if (line.starts_with(' ')) line.remove_prefix(1);
  }
  return line;
}

std::vector<std::string_view> error_blocks(std::string_view log) {
  enum { kNone, kTraceback, kMessage, kPlain } open = kNone;
  std::vector<std::string_view> blocks;
  size_t continuing = 0;
  for (std::string_view rest = log, line; next_line(rest, line);) {
    const std::string_view text = without_source(line);
    const bool indented = text.starts_with(' ') || text.starts_with('\t');
    const bool continues =
        (open == kMessage || (open == kPlain && indented)) && continuing < kMostContinuing;
    const auto begin = [&](auto kind) {
      blocks.push_back(line);
      open = kind;
      continuing = 0;
    };
    const auto append = [&] {
      const char* const first = blocks.back().data();
      blocks.back() = {first, static_cast<size_t>(line.data() + line.size() - first)};
    };
    if (trim(text).empty()) {
      open = kNone;
    } else if (contains(text, "Traceback (most recent call last)")) {
      begin(kTraceback);
    } else if (open == kTraceback && indented) {
      append();
    } else if (open == kTraceback && !is_log_line(text)) {
      append();  // what was raised
      open = kMessage;
    } else if (is_log_line(text) || is_exception(text)) {
      begin(kMessage);
    } else if (continues) {
      append();
      ++continuing;
    } else {
      begin(kPlain);
    }
  }
  return blocks;
}

}  // namespace flatout::devmem
