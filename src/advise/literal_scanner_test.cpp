#include "advise/literal_scanner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace flatout::advise {
namespace {

// Every place of every string, by the plain search.
std::vector<std::pair<uint64_t, uint32_t>> by_search(const std::vector<std::string>& literals,
                                                     const std::string& text) {
  std::vector<std::pair<uint64_t, uint32_t>> out;
  for (uint32_t i = 0; i < literals.size(); ++i) {
    for (size_t at = text.find(literals[i]); at != std::string::npos;
         at = text.find(literals[i], at + 1)) {
      out.emplace_back(at + literals[i].size(), i);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

TEST(LiteralScanner, FindsWhatAPlainSearchFinds) {
  // Few letters, so that the strings overlap and repeat.
  std::mt19937 random(7);
  const auto word = [&](size_t size) {
    std::string out;
    for (size_t i = 0; i < size; ++i) out += static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> literals;
    literals.reserve(12);
    for (int i = 0; i < 12; ++i) literals.push_back(word(7 + random() % 4));
    std::sort(literals.begin(), literals.end());
    literals.erase(std::unique(literals.begin(), literals.end()), literals.end());
    const std::string text = word(random() % 600);
    std::vector<LiteralScanner::Hit> hits;
    LiteralScanner(literals).scan(text, hits);
    std::vector<std::pair<uint64_t, uint32_t>> found;
    found.reserve(hits.size());
    for (const auto& hit : hits) found.emplace_back(hit.end, hit.literal);
    EXPECT_TRUE(std::is_sorted(found.begin(), found.end(),
                               [](const auto& a, const auto& b) { return a.first < b.first; }));
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, by_search(literals, text));
  }
}

}  // namespace
}  // namespace flatout::advise
