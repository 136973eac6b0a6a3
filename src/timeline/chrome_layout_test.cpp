// Events read by their layout are those that are read key by key.
#include "timeline/chrome_layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "timeline/byte_source.h"
#include "timeline/json_scan.h"

namespace flatout::timeline {
namespace {

// What an event says, with the arguments that are asked for most found in its text.
std::string told(const ChromeEvent& e) {
  std::string out;
  const auto add = [&](std::string_view text) { out.append(text).append("\n"); };
  add(std::string(1, e.phase));
  add(std::to_string(e.has_time) + std::to_string(e.bad_number) + std::to_string(e.name_escaped) +
      std::to_string(e.category_escaped));
  add(std::to_string(e.time_ns));
  add(std::to_string(e.duration_ns));
  for (const std::string_view text : {e.name, e.category, e.pid, e.tid, e.id, e.args}) add(text);
  std::string_view found[4];
  const std::string_view known[4] = {e.correlation, e.device, e.stream, e.bytes};
  const std::string_view names[4] = {"correlation", "device", "stream", "bytes"};
  const std::string args = std::string(e.args) + std::string(scan::kScanPadding, '\0');
  scan::members(std::string_view(args).substr(0, e.args.size()),
                [&](std::string_view key, std::string_view value) {
                  for (size_t i = 0; i < 4; ++i)
                    if (key == names[i]) found[i] = scan::unquoted(value);
                  return true;
                });
  for (size_t i = 0; i < 4; ++i) add(e.arguments_known ? known[i] : found[i]);
  return out;
}

struct Teller : ChromeSink {
  void event(const ChromeEvent& e) override {
    events.push_back(told(e));
    texts.emplace_back(e.text);
    by_layout += e.arguments_known ? 1 : 0;
  }
  void member(std::string_view, std::string_view) override {}
  std::vector<std::string> events, texts;
  size_t by_layout = 0;
};

Teller read_all_of(ByteSource& source) {
  Teller out;
  EXPECT_TRUE(scan_chrome(source, out).ok());
  return out;
}

// Each event alone, of which no layout is known.
void expect_the_same_key_by_key(const Teller& all) {
  for (size_t i = 0; i < all.events.size(); ++i) {
    const std::string text = "[" + all.texts[i] + "]";
    const auto source = memory_source(text);
    const Teller alone = read_all_of(*source);
    ASSERT_EQ(alone.events.size(), 1u);
    ASSERT_EQ(alone.by_layout, 0u);
    ASSERT_EQ(alone.events[0], all.events[i]) << all.texts[i];
  }
}

TEST(ChromeLayout, RecordedTracesReadTheSameKeyByKey) {
  for (const char* const name :
       {"torch_cpu/torch_cpu_input_bound.json.gz", "tensorflow/tf1_timeline_feed.json.gz",
        "tensorflow/tf2_keras_slow_input.trace.json.gz"}) {
    SCOPED_TRACE(name);
    const auto source = open_source(std::string(FLATOUT_TEST_DATA) + "/traces/" + name);
    ASSERT_TRUE(source.ok());
    const Teller all = read_all_of(**source);
    EXPECT_GT(all.by_layout * 10, all.events.size() * 5);
    expect_the_same_key_by_key(all);
  }
}

// Alike but for a change here and there: a value of another kind, a key left out, escapes, numbers
// that are none.
TEST(ChromeLayout, WhatDiffersFromALayoutIsReadForWhatItIs) {
  std::mt19937 random(11);
  const std::vector<std::vector<std::string>> choices = {
      {R"("ph": "X")", R"("ph": "X")", R"("ph": "XX")", R"("ph": 7)"},
      {R"("cat": "kernel")", R"("cat": "kernel")", R"("cat": "ker\nel")", R"("cat": "cpu_op")",
       R"("cat": 1)"},
      {R"("name": "k")", R"("name": "a longer name, {[\"]}")", R"("name": "k\\")", R"("name": 12)",
       R"("name": "")"},
      {R"("pid": 0)", R"("pid": "0")", R"("pid": -12)", R"("pid": 0, "pid": 1)"},
      {R"("ts": 12.345)", R"("ts": 12)", R"("ts": -1.5)", R"("ts": NaN)", R"("ts": "7")",
       R"("ts": 1e3)", R"("ts": 1.2345)", R"("ts": 3.125, "ts": 4.000)"},
      {R"("dur": 1.000)", R"("dur": null)", R"("dur": 0.0005)"},
      {R"("args": {"device": 0, "stream": 7, "correlation": 42})",
       R"("args": {"stream": "7", "correlation": 1e3, "bytes": 5})", R"("args": {})",
       R"("args": "none")", R"("args": {"grid": [1, [2], 3], "deep": {"stream": 9}, "stream": 8})",
       R"("args": {"correlation": 1, "correlation": 2, "on": true})",
       R"("args": {"a": "}"}, "args": {"b": 1})", R"("id": 5)"}};
  std::string text = "[";
  for (int i = 0; i < 4000; ++i) {
    text += i > 0 ? ",\n{" : "{";
    for (size_t c = 0; c < choices.size(); ++c) {
      // Mostly the first, so that layouts are worth having.
      const size_t which = random() % 8 == 0 ? random() % choices[c].size() : 0;
      text += (c > 0 ? ", " : "") + choices[c][which];
    }
    text += "}";
  }
  text += "]";
  const auto source = memory_source(text);
  const Teller all = read_all_of(*source);
  EXPECT_EQ(all.events.size(), 4000u);
  EXPECT_GT(all.by_layout, 1000u);
  expect_the_same_key_by_key(all);
}

// Zero bytes are what the end of the buffer looks like.
TEST(ChromeLayout, AnEventThatIsCutOffIsNotReadFromThePadding) {
  const std::string whole = R"({"ph": "X", "name": "k", "ts": 1.000, "dur": 2.000})";
  for (size_t size = 1; size < whole.size(); ++size) {
    const std::string text = fmt::format("[{0},{0},{1}", whole, whole.substr(0, size));
    const auto source = memory_source(text);
    EXPECT_EQ(read_all_of(*source).events.size(), 2u) << size;
  }
  const std::string zeros(40, '\0');
  const std::string odd = "{" + zeros + R"("ph": "X", "name": "k", "ts": 1.000)" + "}";
  const std::string text = "[" + odd + "," + odd + "," + odd.substr(0, 3);
  const auto source = memory_source(text);
  EXPECT_LE(read_all_of(*source).events.size(), 2u);
}

}  // namespace
}  // namespace flatout::timeline
