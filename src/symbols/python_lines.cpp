#include "symbols/python_lines.h"

#include <algorithm>
#include <limits>

namespace flatout::symbols {
namespace {

constexpr size_t kMaxEntries = 1 << 17;

/// The varint of 3.11: six bits a byte, least significant first, bit 6 says that more follow.
bool take_varint(std::string_view& s, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 36; shift += 6) {
    if (s.empty()) return false;
    const auto byte = static_cast<uint8_t>(s.front());
    s.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 63) << shift;
    if ((byte & 64) == 0) return true;
  }
  return false;
}

bool take_signed_varint(std::string_view& s, int64_t& value) {
  uint64_t u = 0;
  if (!take_varint(s, u)) return false;
  value = (u & 1) != 0 ? -static_cast<int64_t>(u >> 1) : static_cast<int64_t>(u >> 1);
  return true;
}

}  // namespace

void PythonLines::add(int64_t begin, int64_t line) {
  if (line < -1 || line > std::numeric_limits<int32_t>::max()) line = -1;
  if (begin > std::numeric_limits<uint32_t>::max() || entries_.size() >= kMaxEntries) return;
  const Entry entry{static_cast<uint32_t>(begin), static_cast<int32_t>(line)};
  if (!entries_.empty() && entries_.back().line == entry.line) return;
  if (!entries_.empty() && entries_.back().begin == entry.begin) {
    entries_.back() = entry;
  } else {
    entries_.push_back(entry);
  }
}

PythonLines PythonLines::decode(std::string_view table, int first_line, int minor) {
  PythonLines out;
  out.first_line_ = first_line;
  int64_t line = first_line;
  int64_t offset = 0;
  if (minor <= 9) {
    out.add(0, line);
    for (; table.size() >= 2; table.remove_prefix(2)) {
      offset += static_cast<uint8_t>(table[0]);
      line += static_cast<int8_t>(table[1]);
      out.add(offset, line);
    }
  } else if (minor == 10) {
    for (; table.size() >= 2; table.remove_prefix(2)) {
      const auto delta = static_cast<int8_t>(table[1]);
      if (delta == -128) {
        out.add(offset, -1);
      } else {
        line += delta;
        out.add(offset, line);
      }
      offset += static_cast<uint8_t>(table[0]);
    }
  } else {
    while (!table.empty()) {
      const auto head = static_cast<uint8_t>(table.front());
      if ((head & 0x80) == 0) break;  // not at the start of an entry
      table.remove_prefix(1);
      const int code = (head >> 3) & 15;
      const int64_t length = int64_t{2} * ((head & 7) + 1);
      bool has_line = true;
      int64_t delta = 0;
      size_t columns = 0;  // bytes of columns that follow
      if (code <= 9) {
        columns = 1;
      } else if (code <= 12) {
        delta = code - 10;
        columns = 2;
      } else if (code == 15) {
        has_line = false;
      } else {
        if (!take_signed_varint(table, delta)) break;
        if (code == 14) {  // end line, column, end column
          uint64_t skipped = 0;
          bool whole = true;
          for (int i = 0; i < 3; ++i) whole = whole && take_varint(table, skipped);
          if (!whole) break;
        }
      }
      if (table.size() < columns) break;
      table.remove_prefix(columns);
      line += delta;
      out.add(offset, has_line ? line : -1);
      offset += length;
    }
  }
  if (minor >= 10) out.end_ = offset;
  out.entries_.shrink_to_fit();
  return out;
}

int PythonLines::line(int64_t offset) const {
  auto it = std::upper_bound(entries_.begin(), entries_.end(), offset,
                             [](int64_t o, const Entry& e) { return o < e.begin; });
  while (it != entries_.begin()) {
    --it;
    if (it->line >= 0) return it->line;
  }
  return first_line_;
}

}  // namespace flatout::symbols
