#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/fs.h"
#include "base/half.h"
#include "base/number.h"
#include "base/number_range.h"
#include "base/output.h"
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

TEST(Text, ParsesRanges) {
  EXPECT_EQ(parse_range<int>("3-5"), std::pair(3, 5));
  EXPECT_EQ(parse_range<int>("-3"), std::pair(-3, -3));
  EXPECT_EQ(parse_range<uint32_t>("7"), std::pair(7u, 7u));
  for (const char* text : {"", "-", "3-", "5-3", "3-5-7", "a-b", "-4-x"})
    EXPECT_FALSE(parse_range<int>(text)) << text;
  EXPECT_FALSE(parse_range<uint32_t>("-3"));
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

TEST(Number, WhatFitsNowhereBecomesTheNearestThatDoes) {
  EXPECT_EQ(saturate<int>(-3.9), -3);
  EXPECT_EQ(saturate<int>(1e300), std::numeric_limits<int>::max());
  EXPECT_EQ(saturate<int>(-1e300), std::numeric_limits<int>::min());
  EXPECT_EQ(saturate<uint64_t>(-1), 0u);
  EXPECT_EQ(saturate<uint64_t>(std::numeric_limits<double>::infinity()), UINT64_MAX);
  EXPECT_EQ(saturate<uint64_t>(0x1p63), uint64_t{1} << 63);
  EXPECT_EQ(saturate<int64_t>(0x1p63), INT64_MAX);
  EXPECT_EQ(saturate<int64_t>(std::numeric_limits<double>::quiet_NaN()), 0);
}

class Outputs : public ::testing::Test {
 protected:
  Outputs() {
    char name[] = "/tmp/flatout-base-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~Outputs() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  std::string folder_;
};

TEST_F(Outputs, AFileIsReplacedAsAWhole) {
  ASSERT_TRUE(fs::write_output(file("a"), "first, and long").ok());
  ASSERT_TRUE(fs::write_output(file("a"), "second").ok());
  EXPECT_EQ(fs::Root(folder_).read("a").value_or(""), "second");
  EXPECT_EQ(fs::Root(folder_).list("").value_or({}), std::vector<std::string>{"a"});
}

TEST_F(Outputs, ANewFileHasTheModesOfTheUmaskAndAnOldOneKeepsItsOwn) {
  const auto modes = [&] {
    struct stat info {};
    ::stat(file("a").c_str(), &info);
    return info.st_mode & 0777;
  };
  const mode_t before = ::umask(0027);
  ASSERT_TRUE(fs::write_output(file("a"), "first").ok());
  EXPECT_EQ(modes(), 0640u);
  ::chmod(file("a").c_str(), 0606);
  ASSERT_TRUE(fs::write_output(file("a"), "second").ok());
  EXPECT_EQ(modes(), 0606u);
  ASSERT_TRUE(fs::write_atomically(file("a"), "third").ok());
  EXPECT_EQ(modes(), 0600u);
  ::umask(before);
}

// As root, -o /dev/null would have put a file in the place of the device.
TEST_F(Outputs, NoFileTakesThePlaceOfALinkOrAPipe) {
  ASSERT_TRUE(fs::write_output(file("real"), "old").ok());
  ASSERT_EQ(::symlink("real", file("link").c_str()), 0);
  ASSERT_TRUE(fs::write_output(file("link"), "through").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(file("link")));
  EXPECT_EQ(fs::Root(folder_).read("real").value_or(""), "through");

  // The link's file is replaced as a whole, like one that was named itself.
  ASSERT_EQ(::mkdir(file("inner").c_str(), 0700), 0);
  ASSERT_EQ(::symlink("../link", file("inner/far").c_str()), 0);
  ASSERT_EQ(::link(file("real").c_str(), file("second name").c_str()), 0);
  ASSERT_TRUE(fs::write_output(file("inner/far"), "further").ok());
  EXPECT_EQ(fs::Root(folder_).read("real").value_or(""), "further");
  EXPECT_EQ(fs::Root(folder_).read("second name").value_or(""), "through");
  ASSERT_EQ(::symlink("new", file("dangling").c_str()), 0);
  ASSERT_TRUE(fs::write_output(file("dangling"), "made").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(file("dangling")));
  EXPECT_EQ(fs::Root(folder_).read("new").value_or(""), "made");
  ASSERT_EQ(::symlink("circle", file("circle").c_str()), 0);
  EXPECT_FALSE(fs::write_output(file("circle"), "nowhere").ok());

  // As /dev/stdout does: what is open stays the file that has the name.
  const int open = ::open(file("open").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::symlink(("/proc/self/fd/" + std::to_string(open)).c_str(), file("out").c_str()), 0);
  ASSERT_TRUE(fs::write_output(file("out"), "first").ok());
  ASSERT_EQ(::pwrite(open, "F", 1, 0), 1);
  ::close(open);
  EXPECT_EQ(fs::Root(folder_).read("open").value_or(""), "First");

  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  const int reader = ::open(file("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_TRUE(fs::write_output(file("pipe"), "told").ok());
  char told[8] = {};
  EXPECT_EQ(::read(reader, told, sizeof told), 4);
  EXPECT_STREQ(told, "told");
  ::close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(file("pipe")));
  EXPECT_FALSE(fs::write_output(folder_, "a folder").ok());
}

// asyncio makes its standard output so, and the job's is ours, too.
TEST_F(Outputs, ASlowReaderOfAPipeThatDoesNotBlockGetsAll) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
  const std::string text(1 << 20, 'x');
  size_t got = 0;
  std::thread reader([&] {
    std::vector<char> buffer(10'000);
    for (;;) {
      const ssize_t part = ::read(ends[0], buffer.data(), buffer.size());
      if (part == 0) return;
      if (part > 0) got += static_cast<size_t>(part);
      std::this_thread::yield();
    }
  });
  const Status written = fs::write_all(ends[1], text, "a pipe");
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  EXPECT_TRUE(written.ok());
  EXPECT_EQ(got, text.size());
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
