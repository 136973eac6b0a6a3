#include "report/text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "report/bar.h"
#include "report/golden.h"
#include "report/status.h"
#include "report/test_run.h"

namespace flatout::report {
namespace {

using namespace testing;  // NOLINT

TextOptions plain() {
  TextOptions o;
  o.folder = "flatout-runs/latest";
  return o;
}
TextOptions screen() {
  TextOptions o = plain();
  o.height = 23;
  return o;
}

size_t count_lines(const std::string& s) {
  return static_cast<size_t>(std::count(s.begin(), s.end(), '\n'));
}
void expect_within(const std::string& text, size_t width) {
  std::string_view rest = text;
  std::string_view line;
  while (next_line(rest, line)) {
    // The path of the report is there in full, to be copied.
    if (line.find("/report.html") == std::string_view::npos) {
      EXPECT_LE(display_width(line), width) << line;
    }
  }
}
bool has_control(const std::string& s) {
  return std::any_of(s.begin(), s.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7F;
  });
}

TEST(Text, AFindingReadsAsTheGoldenFile) {
  expect_golden("text_decode.txt", render_text(decode_bound_run(), decode_diagnosis(), screen()));
}

TEST(Text, AHealthyJobSaysSo) {
  Diagnosis d;
  d.headline = "Healthy: nothing costs more than 5 % of a step.";
  expect_golden("text_healthy.txt", render_text(decode_bound_run(), d, screen()));
}

TEST(Text, ACrashComesWithItsTraceback) {
  model::Run run = decode_bound_run(30);
  run.wait_status = 1 << 8;
  Diagnosis d;
  d.verdict = "crash.exception";
  Finding f;
  f.id = "crash.exception";
  f.title = "ValueError ended the job at step 30: cannot reshape";
  f.confidence = 1;
  f.ended_the_job = true;
  f.where = Where{"train.py", 52, "train"};
  f.evidence = {
      {"Traceback (most recent call last):\n  File \"train.py\", line 80\n    train()\n"
       "ValueError: cannot reshape",
       1, "", "agent", 1}};
  f.remedies = {{"", "look at the shape of the last batch"}};
  d.findings = {f};
  expect_golden("text_crash.txt", render_text(run, d, screen()));
}

TEST(Text, AHangWithoutStepsAndWithSurvivorsReadsAsTheGoldenFile) {
  model::Run run = decode_bound_run(12);
  run.steps = {};
  run.wait_status = 9;
  run.processes[1].ended = false;
  Diagnosis d;
  d.verdict = "stall.hang";
  Finding f;
  f.id = "stall.hang";
  f.title = "No step for 42 s: the loop waits for a worker that waits for a lock";
  f.ended_the_job = true;
  d.findings = {f};
  expect_golden("text_hang.txt", render_text(run, d, screen()));
}

TEST(Text, AChangeOfSpeedInsideTheRunIsNamed) {
  model::Run run = decode_bound_run();
  run.steps.changes = {{100, run.begin + std::chrono::seconds(7), nanos(20.1e6), nanos(61.3e6)}};
  const std::string text = render_text(run, decode_diagnosis(), screen());
  EXPECT_NE(text.find("from step 100 on (7.00 s after the start) a step takes 61.3 ms"),
            std::string::npos)
      << text;
}

TEST(Text, OfManyChangesOfSpeedTheLargestAreNamed) {
  model::Run run = decode_bound_run();
  const TimePoint at = run.begin + std::chrono::seconds(7);
  for (int i = 0; i < 8; ++i) {
    const auto after = Nanos(int64_t{10'000'000} * (i == 5 ? 9 : 2));
    run.steps.changes.push_back({100 + i, at, Nanos(10'000'000), after});
  }
  const std::string text = render_text(run, decode_diagnosis(), plain());
  EXPECT_NE(text.find("from step 105 on"), std::string::npos) << text;
  EXPECT_NE(text.find("and 5 lesser changes"), std::string::npos) << text;
}

TEST(Text, ALongCppPlaceKeepsFileLineAndName) {
  for (const char* function :
       {"job::(anonymous namespace)::use_fresh_buffers(std::vector<int> const&)",
        "job::use_fresh_buffers(job::(anonymous namespace)::Options const&)"}) {
    Diagnosis d = decode_diagnosis();
    d.findings[0].where =
        Where{"/home/somebody/projects/training/src/deep/inject.cpp", 175, function};
    const std::string text = render_text(decode_bound_run(), d, screen());
    EXPECT_NE(text.find("inject.cpp:175 in use_fresh_buffers\n"), std::string::npos) << text;
  }
}

TEST(Text, FitsOneScreenHoweverMuchThereIsToSay) {
  model::Run run = hostile_run();
  Diagnosis d = decode_diagnosis();
  for (int i = 0; i < 40; ++i) {
    d.findings.push_back(d.findings[0]);
    d.findings[0].evidence.push_back(d.findings[0].evidence[0]);
    run.missing.push_back(run.missing[0]);
  }
  const std::string text = render_text(run, d, screen());
  EXPECT_LE(count_lines(text), 23u) << text;
  expect_within(text, 80);
  // What matters most is still there.
  EXPECT_NE(text.find("input.decode_cpu"), std::string::npos);
  EXPECT_NE(text.find("37.4 ms per step"), std::string::npos);
  EXPECT_NE(text.find("data.py:41"), std::string::npos);
  EXPECT_NE(text.find("2.0x"), std::string::npos);
}

TEST(Text, WhatIsToBeDoneAndThePathAreThereInFull) {
  Diagnosis d = decode_diagnosis();
  d.findings[0].remedies[0].text.append(300, 'a').append(" first-end");
  d.findings[1].title.append(" and its title goes on and on beyond the end of the line, title-end");
  d.findings[1].remedies[0].text.append(300, 'b').append(" second-end");
  TextOptions o = plain();
  o.folder = "/home/somebody/experiments/experiment-2026-11/flatout-runs/20261125-071024-train-" +
             std::string(60, 'h') + "-4711";
  const std::string text = render_text(decode_bound_run(), d, o);
  for (const std::string& whole :
       {std::string("first-end\n"), std::string("title-end\n"), std::string("second-end\n"),
        "  report  " + o.folder + "/report.html\n"}) {
    EXPECT_NE(text.find(whole), std::string::npos) << whole << text;
  }
}

TEST(Text, WhatWasNotMeasuredTakesTwoLinesUnlessAsked) {
  model::Run run = decode_bound_run();
  for (int i = 0; i < 20; ++i) {
    run.missing.push_back({fmt::format("signal.number{}", i), "the reason of it", ""});
  }
  TextOptions o = plain();
  const auto lines_of_missing = [&] {
    const std::string text = render_text(run, decode_diagnosis(), o);
    const size_t from = text.find("  missing "), to = text.find("  report ");
    return text.substr(from, to - from);
  };
  EXPECT_EQ(count_lines(lines_of_missing()), 2u) << lines_of_missing();
  EXPECT_EQ(lines_of_missing().find("the reason"), std::string::npos);
  o.verbose = true;
  EXPECT_NE(lines_of_missing().find("signal.number19 (the reason of it)"), std::string::npos);
}

TEST(Text, ADamagedRecordingSaysSo) {
  model::Run run = decode_bound_run();
  run.missing.push_back({"recording", "3 damaged places were skipped", ""});
  Diagnosis d;
  d.judged = false;
  d.headline = "The recording is incomplete, so there is no verdict.";
  const std::string text = render_text(run, d, screen());
  EXPECT_NE(text.find("? The recording is incomplete, so there is no verdict."), std::string::npos)
      << text;
  EXPECT_EQ(text.find("✓"), std::string::npos) << text;
  const std::string found = render_text(run, decode_diagnosis(), screen());
  EXPECT_NE(found.find("the recording is incomplete: 3 damaged places"), std::string::npos);
  EXPECT_NE(found.find("input.decode_cpu"), std::string::npos);
}

TEST(Text, HostileNamesNeverReachTheTerminal) {
  for (const bool color : {false, true}) {
    for (const size_t width : {40, 60, 80, 100}) {
      TextOptions o = plain();
      o.color = color;
      o.width = width;
      std::string text = render_text(hostile_run(), hostile_diagnosis(), o) +
                         render_stacks(hostile_run(), o) +
                         status_line(hostile_run(), hostile_diagnosis(), o);
      EXPECT_EQ(text.find("\x1b[2J"), std::string::npos);
      EXPECT_EQ(text.find("\x1b]"), std::string::npos);
      EXPECT_EQ(text.find("\xE2\x80\xAE"), std::string::npos);
      EXPECT_EQ(to_utf8(text), text);
      if (!color) {
        EXPECT_FALSE(has_control(text));
        expect_within(render_text(hostile_run(), hostile_diagnosis(), o), width);
      }
    }
  }
  EXPECT_FALSE(has_control(title_text(hostile_run(), hostile_diagnosis())));
}

TEST(Text, WithoutUtf8EverythingIsAscii) {
  TextOptions o = screen();
  o.unicode = false;
  const std::string text = render_text(hostile_run(), hostile_diagnosis(), o) +
                           render_text(decode_bound_run(), decode_diagnosis(), o) +
                           render_comparison(slower_comparison(), o);
  EXPECT_TRUE(std::all_of(text.begin(), text.end(),
                          [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
  expect_golden("text_ascii.txt", render_text(decode_bound_run(), decode_diagnosis(), o));
}

TEST(Text, ColoursAreClosedOnEveryLine) {
  TextOptions o = screen();
  o.color = true;
  const std::string text = render_text(decode_bound_run(), decode_diagnosis(), o);
  expect_golden("text_color.ansi", text);
  std::string_view rest = text;
  std::string_view line;
  while (next_line(rest, line)) {
    const size_t last = line.rfind("\x1b[");
    if (last != std::string_view::npos) {
      EXPECT_EQ(line.substr(last, 4), "\x1b[0m") << line;
    }
  }
}

TEST(Text, AnEmptyRunIsNoCrash) {
  const std::string text = render_text(model::Run{}, Diagnosis{}, screen());
  EXPECT_NE(text.find("none were recognised"), std::string::npos);
  EXPECT_NE(render_stacks(model::Run{}, plain()).find("no stacks"), std::string::npos);
}

TEST(Text, StacksNameEveryThreadAndItsState) {
  const std::string text = render_stacks(decode_bound_run(12), plain());
  EXPECT_NE(text.find("thread 4102 pt_data_worker  runs native code"), std::string::npos) << text;
  EXPECT_NE(text.find("__getitem__  (/home/u/data.py:41)"), std::string::npos);
}

TEST(Text, AComparisonReadsAsTheGoldenFile) {
  expect_golden("text_compare.txt", render_comparison(slower_comparison(), plain()));
  model::Comparison unknown;
  EXPECT_NE(render_comparison(unknown, plain()).find("Too few steps"), std::string::npos);
}

TEST(Bar, CellsAddUpToTheWidth) {
  Shares shares{0.333, 0.333, 0.334};
  size_t sum = 0;
  for (const size_t n : bar_cells(shares, 70)) sum += n;
  EXPECT_EQ(sum, 70u);
  EXPECT_EQ(bar_cells(Shares{}, 70)[0], 0u);
}

TEST(Terminal, WideAndCombiningCharactersKeepColumnsStraight) {
  EXPECT_EQ(display_width("ab"), 2u);
  EXPECT_EQ(display_width("漢字"), 4u);
  EXPECT_EQ(display_width("e\u0301"), 1u);
  EXPECT_EQ(fit("漢字漢字", 5, true), "漢字…");
  EXPECT_EQ(fit_end("/a/long/path", 5, true), "…path");
  EXPECT_EQ(wrap("aa bbb cccccccc", 4), (std::vector<std::string>{"aa", "bbb", "cccc", "cccc"}));
}

TEST(Status, IsOneLineThatFitsAnyWidth) {
  const model::Run run = decode_bound_run();
  for (size_t width = 10; width < 160; ++width) {
    TextOptions o = plain();
    o.width = width;
    const std::string line = status_line(run, decode_diagnosis(), o);
    EXPECT_LE(display_width(line), width);
    EXPECT_EQ(line.find('\n'), std::string::npos);
  }
  TextOptions wide = plain();
  wide.width = 140;
  EXPECT_EQ(status_line(run, decode_diagnosis(), wide),
            "flatout  0:13  15.5 steps/s  input wait 61 %, backward 20 %, forward 13 %  "
            "input.decode_cpu 2.0x  data.py:41  +1 more");
}

TEST(Status, SaysWhenThereAreNoStepsYet) {
  EXPECT_EQ(status_line(model::Run{}, Diagnosis{"none", "", {}}, plain()),
            "flatout  0:00  no steps yet");
}

}  // namespace
}  // namespace flatout::report
