#include "screen/mouse.h"

#include <gtest/gtest.h>

#include <string_view>

namespace flatout::screen {
namespace {

std::optional<MouseReport> read(MouseReader::Form form, std::string_view text) {
  MouseReader reader(form);
  for (size_t i = 0; i < text.size(); ++i) {
    const bool more = reader.add(static_cast<unsigned char>(text[i]));
    EXPECT_EQ(more, i + 1 < text.size()) << text << " at " << i;
  }
  return reader.report();
}

std::optional<MouseReport> decimal(std::string_view text) {
  return read(MouseReader::Form::kDecimal, text);
}

std::optional<MouseReport> bytes(std::string_view text) {
  return read(MouseReader::Form::kBytes, text);
}

TEST(MouseReader, AButtonThatGoesDownIsTheClickOneThatComesUpIsNone) {
  const auto down = decimal("0;1;30M");
  ASSERT_TRUE(down);
  EXPECT_EQ(down->act, MouseAct::kClick);
  EXPECT_EQ(down->x, 0);
  EXPECT_EQ(down->y, 29);
  const auto up = decimal("0;1;30m");
  ASSERT_TRUE(up);
  EXPECT_EQ(up->act, MouseAct::kNone);
}

TEST(MouseReader, ColumnsBeyondWhatAByteHolds) {
  const auto far = decimal("0;1234;567M");
  ASSERT_TRUE(far);
  EXPECT_EQ(far->x, 1233);
  EXPECT_EQ(far->y, 566);
}

TEST(MouseReader, TheWheelAndHeldKeys) {
  EXPECT_EQ(decimal("64;5;6M")->act, MouseAct::kWheelUp);
  EXPECT_EQ(decimal("65;5;6M")->act, MouseAct::kWheelDown);
  EXPECT_EQ(decimal("81;5;6M")->act, MouseAct::kWheelDown);  // with Control
  EXPECT_EQ(decimal("4;5;6M")->act, MouseAct::kClick);       // with Shift
}

TEST(MouseReader, OtherButtonsSidewaysWheelsAndMotionAreNone) {
  for (const char* text : {"1;5;6M", "2;5;6M", "32;5;6M", "66;5;6M", "67;5;6M", "128;5;6M"}) {
    const auto report = decimal(text);
    ASSERT_TRUE(report) << text;
    EXPECT_EQ(report->act, MouseAct::kNone) << text;
  }
}

TEST(MouseReader, WhatIsNoReportIsNone) {
  for (const char* text : {"M", ";;M", "0;1M", "0;1;2;3M", "0;1;2x", "q", "0;1;\x1b",
                           "999999999999;1;1M", "000000000000000000000000"}) {
    EXPECT_FALSE(decimal(text)) << text;
  }
}

TEST(MouseReader, ThreeBytesAreAReportToo) {
  const auto down = bytes(" !>");
  ASSERT_TRUE(down);
  EXPECT_EQ(down->act, MouseAct::kClick);
  EXPECT_EQ(down->x, 0);
  EXPECT_EQ(down->y, 29);
  EXPECT_EQ(bytes("#!>")->act, MouseAct::kNone);  // came up
  EXPECT_EQ(bytes("a!>")->act, MouseAct::kWheelDown);
  EXPECT_EQ(bytes(" \xff>")->x, 222);
}

}  // namespace
}  // namespace flatout::screen
