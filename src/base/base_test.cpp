#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/fs.h"
#include "base/half.h"
#include "base/result.h"
#include "base/stats.h"
#include "base/text.h"

namespace flatout {
namespace {

TEST(Text, EscapeTerminalMakesControlSequencesVisible) {
  EXPECT_EQ(escape_terminal("a\x1b[31mb\n\x7f"), "a\\x1b[31mb\\x0a\\x7f");
  EXPECT_EQ(escape_terminal("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(escape_terminal("\xC2\x9B"
                            "31m"),
            "\\xc2\\x9b31m");  // C1 CSI
  EXPECT_EQ(escape_terminal("\xE2\x80\xAE"
                            "x"),
            "\\xe2\\x80\\xaex");  // right-to-left override
  EXPECT_EQ(escape_terminal("\xFF"), "\\xff");
}

TEST(Text, EscapeHtmlLeavesNoMarkupAndNoBadUtf8) {
  EXPECT_EQ(escape_html("<a b=\"c\">&'\xFF"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;\xEF\xBF\xBD");
}

TEST(Text, DurationsAndBytesHaveThreeDigits) {
  EXPECT_EQ(format_duration(Nanos(17'340'000)), "17.3 ms");
  EXPECT_EQ(format_duration(Nanos(2'412'000'000)), "2.41 s");
  EXPECT_EQ(format_duration(Nanos(450'000)), "450 us");
  EXPECT_EQ(format_bytes(1536.0 * 1024 * 1024), "1.50 GiB");
  EXPECT_EQ(format_percent(0.613), "61 %");
}

TEST(Text, NumbersAreParsedWholeOrNotAtAll) {
  EXPECT_EQ(parse_number<int>(" 42\n"), 42);
  EXPECT_FALSE(parse_number<int>("42x"));
  EXPECT_FALSE(parse_number<int>(""));
}

TEST(Stats, QuantilesInterpolateBetweenOrderStatistics) {
  const std::vector<double> v = {4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(quantile(v, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile(v, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(v, 1), 4);
}

TEST(Stats, TheilSenFindsTheLineUnderOutliers) {
  std::vector<double> x, y;
  for (int i = 0; i < 400; ++i) {
    x.push_back(i);
    y.push_back(i % 10 == 0 ? 1e6 : 3.0 * i + 7);
  }
  EXPECT_NEAR(theil_sen(x, y).slope, 3.0, 0.05);
}

TEST(Stats, TheBootstrapIntervalHoldsTheTrueRatio) {
  std::vector<double> a, b;
  for (int i = 0; i < 200; ++i) {
    b.push_back(100 + i % 7);
    a.push_back(2 * b.back() + i % 3);
  }
  const Interval i = bootstrap_median_ratio(a, b, 0.95);
  EXPECT_LE(i.low, 2.01);
  EXPECT_GE(i.high, 1.99);
  EXPECT_LT(i.high - i.low, 0.2);
}

TEST(Bytes, AReaderPastTheEndGivesZerosAndSaysSo) {
  std::string data;
  put(data, uint32_t{7});
  ByteReader reader(data);
  EXPECT_EQ(reader.get<uint32_t>(), 7u);
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(reader.get<uint64_t>(), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(crc32("123456789"), 0xCBF43926u);  // the check value of CRC-32/ISO-HDLC
}

TEST(Half, RoundsAsTheHardwareDoes) {
  EXPECT_EQ(to_f16(0.0F), 0x0000);
  EXPECT_EQ(to_f16(-2.0F), 0xC000);
  EXPECT_EQ(to_f16(1.0F), 0x3C00);
  EXPECT_EQ(to_f16(1.0F + 0x1p-11F), 0x3C00);  // a tie goes to even
  EXPECT_EQ(to_f16(1.0F + 3 * 0x1p-11F), 0x3C02);
  EXPECT_EQ(to_f16(65504.0F), 0x7BFF);
  EXPECT_EQ(to_f16(65520.0F), 0x7C00);  // beyond the largest: infinity
  EXPECT_EQ(to_f16(0x1p-24F), 0x0001);  // the smallest
  EXPECT_EQ(to_bf16(1.0F), 0x3F80);
  EXPECT_EQ(to_bf16(1.0F + 0x1p-8F), 0x3F80);
  EXPECT_EQ(to_bf16(1.0F + 3 * 0x1p-8F), 0x3F82);
  EXPECT_EQ(to_f16(std::numeric_limits<float>::infinity()), 0x7C00);
  EXPECT_TRUE(std::isnan(from_f16(to_f16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(std::bit_cast<float>(0x7F800001)))));
}

TEST(Half, EveryNumberSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (!std::isnan(from_f16(half))) {
      ASSERT_EQ(to_f16(from_f16(half)), half);
    }
    if (!std::isnan(from_bf16(half))) {
      ASSERT_EQ(to_bf16(from_bf16(half)), half);
    }
  }
}

TEST(Fs, AMissingFileIsNamed) {
  const auto text = fs::Root("/").read("proc/no-such-file");
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, Code::kNotFound);
  EXPECT_NE(text.error().message.find("/proc/no-such-file"), std::string::npos);
}

TEST(Fs, FilesWithoutASizeAreReadToTheirEnd) {
  const auto text = fs::Root("/").read("proc/self/status");
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->find("voluntary_ctxt_switches"), std::string::npos);
}

}  // namespace
}  // namespace flatout
