#include "advise/log_rules.h"

#include <algorithm>
#include <iterator>

#include "advise/log_tables.h"

namespace flatout::advise {

const std::vector<LogRule>& log_rules() {
  static const std::vector<LogRule> rules = [] {
    std::vector<LogRule> out = device_rules();
    for (auto* table : {ranks_rules, host_rules, software_rules})
      std::ranges::move(table(), std::back_inserter(out));
    return out;
  }();
  return rules;
}

bool matches(std::string_view pattern, std::string_view line) {
  const bool whole_begin = pattern.starts_with('\n'), whole_end = pattern.ends_with('\n');
  if (whole_begin) pattern.remove_prefix(1);
  if (whole_end) pattern.remove_suffix(1);
  bool first = true;
  while (true) {
    const size_t star = pattern.find('*');
    const std::string_view part = pattern.substr(0, star);
    const size_t at = line.find(part);
    if (at == std::string_view::npos || (first && whole_begin && at != 0)) return false;
    line.remove_prefix(at + part.size());
    if (star == std::string_view::npos) return !whole_end || line.empty();
    pattern.remove_prefix(star + 1);
    first = false;
  }
}

std::string_view longest_part(std::string_view pattern) {
  std::string_view longest;
  if (pattern.starts_with('\n')) pattern.remove_prefix(1);  // the log's begin is a line's, too
  while (true) {
    const size_t end = pattern.find('*');
    const std::string_view part = pattern.substr(0, end);
    if (part.size() > longest.size()) longest = part;
    if (end == std::string_view::npos) return longest;
    pattern.remove_prefix(end + 1);
  }
}

}  // namespace flatout::advise
