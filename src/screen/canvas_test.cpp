#include "screen/canvas.h"

#include <gtest/gtest.h>

namespace flatout::screen {
namespace {

TEST(Canvas, ShowsEscapeSequencesInsteadOfSendingThem) {
  Canvas canvas(40, 1, true);
  canvas.put(0, 0,
             "a\x1b[31mb\x07\xc2\x9b"
             "c\xff");
  EXPECT_EQ(canvas.text(), "a\\x1b[31mb\\x07\\xc2\\x9bc\\xff\n");
}

TEST(Canvas, CutsAtItsEdgeAndAtTheGivenColumn) {
  Canvas canvas(6, 1, true);
  EXPECT_EQ(canvas.put(0, 0, "abcdefgh", Style::kPlain, 3), 3);
  EXPECT_EQ(canvas.put(3, 0, "xyz123"), 6);
  EXPECT_EQ(canvas.text(), "abcxyz\n");
  EXPECT_EQ(canvas.put(0, 5, "below it"), 0);
}

TEST(Canvas, AWideCharacterTakesTwoCellsOrNone) {
  Canvas canvas(5, 1, true);
  EXPECT_EQ(canvas.put(0, 0, "日本語"), 4);
  EXPECT_EQ(canvas.text(), "日本\n");
  EXPECT_EQ(canvas.at(1, 0).character, 0u);
  canvas.put(1, 0, "x");  // over the right half: the left one must go, too
  EXPECT_EQ(canvas.text(), " x本\n");
  canvas.put(2, 0, "y");
  EXPECT_EQ(canvas.text(), " xy\n");
}

TEST(Canvas, LeavesOutWhatHasNoWidth) {
  Canvas canvas(8, 1, true);
  canvas.put(0, 0,
             "e\xcc\x81"
             "f");  // e with a combining accent
  EXPECT_EQ(canvas.text(), "ef\n");
}

TEST(Canvas, HasNothingBeyondAsciiWhereTheTerminalDoesNot) {
  Canvas canvas(8, 1, false);
  canvas.put(0, 0, "aé日");
  canvas.put_either(4, 0, "█", "#", Style::kUser);
  EXPECT_EQ(canvas.text(), "a?? #\n");
}

TEST(Canvas, RightAlignedTextThatDoesNotFitIsLeftOut) {
  Canvas canvas(5, 1, true);
  canvas.put_right(5, 0, "123");
  EXPECT_EQ(canvas.text(), "  123\n");
  Canvas small(2, 1, true);
  small.put_right(2, 0, "123");
  EXPECT_EQ(small.text(), "\n");
}

}  // namespace
}  // namespace flatout::screen
