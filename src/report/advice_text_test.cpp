#include "report/advice_text.h"

#include <gtest/gtest.h>

#include "report/golden.h"

namespace flatout::report {
namespace {

model::CheckUp some() {
  model::CheckUp out;
  out.problems = {{"mem.shm", "/dev/shm has 64.0 MiB.", "docker run --shm-size=8g.", true},
                  {"cpu.governor", "The frequency governor is powersave.", "As root.", false}};
  out.machine = {{"cores", "8 of 8"}};
  return out;
}

bool says(const std::string& text, std::string_view words) {
  return text.find(words) != std::string::npos;
}

TEST(CheckText, SaysInWordsWhatEndsAJob) {
  testing::expect_golden("check.txt", render_check_up(some(), {}));
  TextOptions ascii;
  ascii.unicode = false;
  testing::expect_golden("check_ascii.txt", render_check_up(some(), ascii));
}

TEST(CheckText, NoPathReachesTheTerminalUnescaped) {
  model::CheckUp check = some();
  check.machine.emplace_back("data /x\x1b]0;evil\x07", "on \x1b[2J");
  const std::string text = render_check_up(check, {});
  EXPECT_EQ(text.find("\x1b]"), std::string::npos) << text;
  EXPECT_EQ(text.find('\x07'), std::string::npos) << text;
}

TEST(CheckText, SaysWhatTheExitCodeIs) {
  model::CheckUp check = some();
  EXPECT_TRUE(says(render_check_up(check, {}), "1 of 2 will stop a job: exit code 3."));
  check.problems.erase(check.problems.begin());
  EXPECT_TRUE(says(render_check_up(check, {}), "Nothing here will stop a job."));
  check.problems.clear();
  EXPECT_TRUE(says(render_check_up(check, {}), "Nothing here will hold a job up."));
}

TEST(ExplainText, OnlyWhatEndedWellHasATick) {
  model::Explanation e;
  e.text = "No sign of a failure in 2 lines.";
  EXPECT_TRUE(render_explanation(e, {}).starts_with("? No sign"));
  e.well = true;
  EXPECT_TRUE(render_explanation(e, {}).starts_with("✓ No sign"));
  e = {};
  e.kind = "killed";
  e.text = "The kernel killed it.";
  EXPECT_TRUE(render_explanation(e, {}).starts_with("✗ "));
}

TEST(CheckText, WhatFlatoutCannotMeasureIsNoJobsTrouble) {
  model::CheckUp check = some();
  check.about_flatout = true;
  check.problems.erase(check.problems.begin());
  const std::string gap = render_check_up(check, {});
  EXPECT_TRUE(says(gap, "1 of the things that Flatout measures cannot be measured here.")) << gap;
  check.problems.clear();
  const std::string whole = render_check_up(check, {});
  EXPECT_TRUE(says(whole, "All that Flatout measures can be measured here.")) << whole;
  EXPECT_FALSE(says(gap, "job") || says(whole, "job"));
}

}  // namespace
}  // namespace flatout::report
