#include "advise/explain.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "advise/oom_message.h"
#include "base/text.h"

namespace flatout::advise {
namespace {

struct LogCase {
  std::string file, near;  // the rule that must not be seen, for a near miss
  std::string kind, finding, text;
};

// The format: tests/logs/README.md.
std::vector<LogCase> read_cases() {
  std::vector<LogCase> out;
  for (const auto& entry : std::filesystem::directory_iterator(FLATOUT_TEST_DATA "/logs")) {
    if (entry.path().extension() != ".txt") continue;
    std::ifstream in(entry.path());
    std::string line;
    while (std::getline(in, line)) {
      if (!line.starts_with("=== ")) {
        if (!out.empty()) out.back().text += line + "\n";
        continue;
      }
      LogCase next;
      next.file = entry.path().filename();
      std::istringstream words(line.substr(4));
      std::string first;
      words >> first;
      if (first == "near") {
        words >> next.near >> next.kind;
        next.near.pop_back();  // ':'
      } else {
        next.kind = first;
        words >> next.finding;
        if (next.finding == "-") next.finding.clear();
      }
      out.push_back(std::move(next));
    }
  }
  return out;
}

model::Explanation explain_text(std::string_view text, const Machine& machine = {}) {
  LogReader reader;
  reader.feed(text);
  return explain(reader.finish(), machine);
}

TEST(Explain, KnowsEachLogAndNoNearMiss) {
  const std::vector<LogCase> cases = read_cases();
  ASSERT_GT(cases.size(), 150u);
  for (const LogCase& c : cases) {
    const model::Explanation e = explain_text(c.text);
    const std::string what = c.file + ": " + (c.near.empty() ? "" : "near " + c.near) + "\n" + c.text;
    EXPECT_EQ(e.kind, c.kind) << what << e.text;
    if (!c.near.empty()) EXPECT_NE(e.kind, c.near) << what;
    if (c.near.empty()) EXPECT_EQ(e.finding, c.finding) << what;
    if (e.kind == "unknown" || e.kind == "none") {
      EXPECT_EQ(e.finding, "") << what;
      EXPECT_EQ(e.sure, 0) << what;
    }
  }
}

TEST(Explain, EachRuleHasALogAndANearMiss) {
  std::set<std::string> logs, near;
  for (const LogCase& c : read_cases()) {
    (c.near.empty() ? logs : near).insert(c.near.empty() ? c.kind : c.near);
  }
  std::set<std::string> kinds;
  for (const LogRule& rule : log_rules()) {
    const std::string kind(rule.kind);
    EXPECT_TRUE(kinds.insert(kind).second) << kind << " stands twice";
    EXPECT_TRUE(logs.contains(kind)) << kind << " has no log";
    EXPECT_TRUE(near.contains(kind)) << kind << " has no near miss";
    EXPECT_FALSE(rule.text.empty() || rule.advice.empty()) << kind;
    EXPECT_TRUE(rule.sure > 0 && rule.sure < 1) << kind;
  }
  EXPECT_GE(kinds.size(), 40u);
}

}  // namespace
}  // namespace flatout::advise
