#include "advise/literal_scanner.h"

#include <algorithm>

#include "base/result.h"

namespace flatout::advise {

LiteralScanner::LiteralScanner(const std::vector<std::string>& literals) : literals_(literals) {
  constexpr size_t kStep = sizeof(Group);
  static_assert(kLeastLength == 2 * kStep - 1);
  for (uint32_t i = 0; i < literals_.size(); ++i) {
    const std::string& literal = literals_[i];
    FLATOUT_CHECK(literal.size() >= kLeastLength);
    for (size_t k = 0; k < kStep; ++k) {
      const size_t offset = literal.size() - kLeastLength + k;
      const Group group = group_at(literal.data() + offset);
      const uint32_t bit = hash(group);
      map_[bit / 64] |= uint64_t{1} << (bit % 64);
      places_[bit % kBuckets].push_back(
          {group, group_at(literal.data()), i, static_cast<uint32_t>(offset)});
    }
  }
}

void LiteralScanner::scan(std::string_view text, std::vector<Hit>& hits) const {
  hits.clear();
  constexpr size_t kStep = sizeof(Group);
  for (size_t at = 0; at + kStep <= text.size(); at += kStep) {
    const Group group = group_at(text.data() + at);
    const uint32_t bit = hash(group);
    if ((map_[bit / 64] >> (bit % 64) & 1) == 0) [[likely]]
      continue;
    for (const Place& place : places_[bit % kBuckets]) {
      if (place.group != group || place.offset > at) continue;
      // Strings of one family share a word: seldom the first, too.
      if (group_at(text.data() + at - place.offset) != place.first) continue;
      const std::string& literal = literals_[place.literal];
      if (text.substr(at - place.offset, literal.size()) == literal) {
        hits.push_back({at - place.offset + literal.size(), place.literal});
      }
    }
  }
  const auto by_end = [](const Hit& a, const Hit& b) { return a.end < b.end; };
  if (!std::is_sorted(hits.begin(), hits.end(), by_end)) {
    std::stable_sort(hits.begin(), hits.end(), by_end);
  }
}

}  // namespace flatout::advise
