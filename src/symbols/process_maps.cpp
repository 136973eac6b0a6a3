#include "symbols/process_maps.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace flatout::symbols {
namespace {

constexpr size_t kMaxBytes = 16 << 20;

bool take_hex(std::string_view& s, uint64_t& value) {
  const auto [end, err] = std::from_chars(s.data(), s.data() + s.size(), value, 16);
  if (err != std::errc()) return false;
  s.remove_prefix(static_cast<size_t>(end - s.data()));
  return true;
}

bool take_char(std::string_view& s, char c) {
  if (s.empty() || s.front() != c) return false;
  s.remove_prefix(1);
  return true;
}

}  // namespace

std::vector<Mapping> parse_maps(std::string_view text, size_t limit) {
  std::vector<Mapping> maps;
  std::string_view line;
  while (maps.size() < limit && next_line(text, line)) {
    Mapping m;
    if (!take_hex(line, m.begin) || !take_char(line, '-') || !take_hex(line, m.end)) continue;
    const std::string_view flags = next_word(line);
    if (flags.size() < 4 || m.end <= m.begin) continue;
    m.readable = flags[0] == 'r';
    m.writable = flags[1] == 'w';
    m.executable = flags[2] == 'x';
    std::string_view offset = next_word(line);
    std::string_view device = next_word(line);
    uint64_t major = 0, minor = 0;
    if (!take_hex(offset, m.offset) || !take_hex(device, major) || !take_char(device, ':') ||
        !take_hex(device, minor)) {
      continue;
    }
    m.device = major << 32 | minor;
    m.inode = parse_number<uint64_t>(next_word(line)).value_or(0);
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    m.path = std::string(line);
    if (!maps.empty() && m.begin < maps.back().end) continue;
    maps.push_back(std::move(m));
  }
  return maps;
}

Result<std::vector<Mapping>> read_maps(const fs::Root& root, int32_t pid) {
  FLATOUT_TRY(const std::string text,
              root.read("proc/" + std::to_string(pid) + "/maps", kMaxBytes));
  return parse_maps(text);
}

const Mapping* find_mapping(const std::vector<Mapping>& maps, uint64_t address) {
  auto it = std::upper_bound(maps.begin(), maps.end(), address,
                             [](uint64_t a, const Mapping& m) { return a < m.begin; });
  if (it == maps.begin()) return nullptr;
  --it;
  return address < it->end ? &*it : nullptr;
}

}  // namespace flatout::symbols
