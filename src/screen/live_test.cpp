#include "screen/live.h"

#include <gtest/gtest.h>

namespace flatout::screen {
namespace {

TEST(Live, LeavesTheJobHalfOfTheTerminalAtLeast) {
  EXPECT_EQ(live_rows(15), 0);
  for (const int height : {16, 24, 50, 200}) {
    EXPECT_GT(live_rows(height), 0);
    EXPECT_LE(2 * live_rows(height), height);
  }
}

TEST(Live, WritesTheRowsBelowTheJobsRegionAndReturns) {
  const std::string drawn = live_draw(24, {"one", "two"});
  EXPECT_TRUE(
      drawn.starts_with("\x1b"
                        "7"))
      << "remembers where the job writes";
  EXPECT_TRUE(
      drawn.ends_with("\x1b"
                      "8"));
  EXPECT_NE(drawn.find("\x1b[1;22r"), std::string::npos);
  EXPECT_LT(drawn.find("\x1b[23;1H"), drawn.find("one"));
  EXPECT_LT(drawn.find("one"), drawn.find("\x1b[24;1H"));
  EXPECT_LT(drawn.find("\x1b[24;1H"), drawn.find("two"));
}

TEST(Live, ANameOfAProcessControlsNoTerminal) {
  Canvas canvas(40, 1, true);
  canvas.put(0, 0, "evil\x1b[2J\x07\xc2\x9b name \xe6\x97\xa5", Style::kBold);
  const std::string line = live_line(canvas, 0);
  ASSERT_TRUE(line.starts_with("\x1b[0m\x1b[1m") && line.ends_with("\x1b[0m")) << line;
  const std::string text = line.substr(8, line.size() - 12);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\x07'), std::string::npos);
  EXPECT_EQ(text.find("\xc2\x9b"), std::string::npos);
  EXPECT_NE(text.find("\xe6\x97\xa5"), std::string::npos);
}

}  // namespace
}  // namespace flatout::screen
