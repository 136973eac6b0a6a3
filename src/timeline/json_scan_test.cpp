#include "timeline/json_scan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace flatout::timeline {
namespace {

std::string padded(std::string_view text) {
  return std::string(text) + std::string(scan::kScanPadding, '\0');
}

std::optional<int64_t> ns(std::string_view us) {
  const std::string text = padded(std::string(us) + ",");
  const char* p = text.data();
  return scan::decimal(p, text.data() + us.size() + 1, 3);
}

TEST(JsonScan, DecimalsBecomeExactNanoseconds) {
  EXPECT_EQ(ns("1712195495519689.001"), 1712195495519689001);
  EXPECT_EQ(ns("4458676522690.655"), 4458676522690655);
  EXPECT_EQ(ns("12"), 12000);
  EXPECT_EQ(ns("12.5"), 12500);
  EXPECT_EQ(ns("-0.001"), -1);
  EXPECT_EQ(ns("0.0004"), 0);
  EXPECT_EQ(ns("0.0005"), 1);
  EXPECT_EQ(ns("1.5e3"), 1500000);
  EXPECT_EQ(ns("\"7.25\""), 7250);
}

TEST(JsonScan, WhatIsNoFiniteNumberIsNone) {
  for (const char* text : {"NaN", "null", "Infinity", "-Infinity", "\"x\"", "{}", "true"})
    EXPECT_FALSE(ns(text)) << text;
}

TEST(JsonScan, HugeNumbersAreBoundedNotWrapped) {
  EXPECT_EQ(ns("1e300"), ns("9e300"));
  EXPECT_GT(*ns("99999999999999999999999999"), int64_t{1} << 60);
}

// The end of a container, found 64 bytes at a time, against a walk byte by byte.
TEST(JsonScan, SkipsWhatAParserSkips) {
  std::mt19937 random(7);
  const std::string alphabet = "{}[]\"\\,:a1 \n";
  for (int round = 0; round < 5000; ++round) {
    std::string text = "{";
    const size_t size = random() % 300;
    for (size_t i = 0; i < size; ++i) text += alphabet[random() % (round % 2 ? 12 : 8)];
    size_t depth = 0, expected = std::string::npos;
    bool in_string = false, escaped = false;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (escaped) {
        escaped = false;
      } else if (in_string) {
        escaped = c == '\\';
        in_string = c != '"';
      } else if (c == '"') {
        in_string = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if ((c == '}' || c == ']') && --depth == 0) {
        expected = i + 1;
        break;
      }
    }
    const std::string buffer = padded(text);
    scan::Nesting state;
    // In two pieces, as at the end of a window.
    const char* const middle = buffer.data() + random() % (text.size() + 1);
    const char* end = scan::skip_nested(buffer.data(), middle, state);
    if (end == nullptr) end = scan::skip_nested(middle, buffer.data() + text.size(), state);
    const size_t found =
        end == nullptr ? std::string::npos : static_cast<size_t>(end - buffer.data());
    ASSERT_EQ(found, expected) << text;
  }
}

TEST(JsonScan, EscapesAreResolvedAsByAParser) {
  for (const char* text : {R"(a\nb)", R"(\u00e9)", R"(\ud83d\ude00 x)", R"(\"\\\/\b\f\r\t)"}) {
    const auto expected = nlohmann::json::parse("\"" + std::string(text) + "\"").get<std::string>();
    EXPECT_EQ(scan::unescape(text), expected);
  }
  EXPECT_EQ(scan::unescape(R"(\ud83d)"), "\xEF\xBF\xBD");
  EXPECT_EQ(scan::unescape("\\"), "\\");
  EXPECT_EQ(scan::unescape("\\u12"), "\\u12");
}

}  // namespace
}  // namespace flatout::timeline
