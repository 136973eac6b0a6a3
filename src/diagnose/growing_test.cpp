#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <string>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

const Line kCurve{"remember", "/home/u/curve.py", 21};

/// 200 steps of 10 ms that compute, and what a line takes from `first` ms on to `last`.
RunBuilder growing(double first, double last, const Doing& at_line, double slower_rest = 1) {
  RunBuilder b;
  constexpr int kSteps = 200;
  for (int i = 0; i < kSteps; ++i) {
    const double part = i / (kSteps - 1.0);
    b.step({{Part::kForward, 10 * (1 + (slower_rest - 1) * part), kCompute},
            {Part::kOther, first + (last - first) * part, at_line}},
           i < 3);
  }
  b.run().steps.drift =
      model::SpeedDrift{nanos((10 + first) * 1e6), nanos((10 * slower_rest + last) * 1e6)};
  b.machine(2, 1).process_cpu(100, 1);
  return b;
}

const Doing kSums{ThreadState::kOnCpuPython, {kMain, kCurve}};

TEST(GrowingWork, ALineThatTakesLongerWithEveryStepIsNamedAndNotThatItComputes) {
  RunBuilder b = growing(1, 21, kSums);
  const Diagnosis d = diagnose(b.build());
  const Finding* f = find(d, "cpu.growing_work");
  ASSERT_NE(f, nullptr) << d.headline;
  EXPECT_EQ(f->where->line, kCurve.line);
  EXPECT_NEAR(*f->cost_ms_per_step, 10, 1);
  EXPECT_EQ(d.findings.size(), 1u) << d.findings.back().id;
  EXPECT_NE(d.headline.find("little by little"), std::string::npos) << d.headline;
}

TEST(GrowingWork, DenormalNumbersElsewhereCostWhatAPassOverThemTakes) {
  RunBuilder b = growing(1, 21, kSums, 1.3);
  b.run().info["denormals"] = "200000 elements of 2 tensors, w, 2.00 ns each";
  const Diagnosis d = diagnose(b.build());
  EXPECT_NE(find(d, "cpu.growing_work"), nullptr) << d.headline;
  EXPECT_EQ(find(d, "cpu.denormals"), nullptr);  // 0.4 ms of a step of 22
}

TEST(GrowingWork, OneThatIsToldAlreadySaysHowItGrows) {
  const Doing writes{ThreadState::kKernel, {kMain, kCurve}, SYS_write};
  RunBuilder b = growing(1, 21, writes);
  const Diagnosis d = diagnose(b.build());
  ASSERT_FALSE(d.findings.empty()) << d.headline;
  EXPECT_EQ(find(d, "cpu.growing_work"), nullptr);
  EXPECT_EQ(d.findings.front().where->line, kCurve.line);
  EXPECT_EQ(d.findings.front().remedies.back().id, "keep_up") << d.verdict;
  EXPECT_NE(d.headline.find("little by little"), std::string::npos) << d.headline;
}

TEST(GrowingWork, AComprehensionIsPartOfTheFunctionItStandsIn) {
  const Line inside{"<listcomp>", kCurve.file, kCurve.line + 1};
  RunBuilder b;
  for (int i = 0; i < 200; ++i) {
    const double ms = 1 + i * 0.1;
    b.step({{Part::kForward, 10, kCompute},
            {Part::kOther, 0.55 * ms, kSums},
            {Part::kOther, 0.45 * ms, {ThreadState::kOnCpuPython, {kMain, kCurve, inside}}}},
           i < 3);
  }
  b.run().steps.drift = model::SpeedDrift{Nanos(11'000'000), Nanos(31'000'000)};
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_NE(find(d, "cpu.growing_work"), nullptr) << d.headline;
  EXPECT_NEAR(*find(d, "cpu.growing_work")->cost_ms_per_step, 10, 1);
}

TEST(GrowingWork, WhereAllElseGrowsAsMuchItIsNoSingleLine) {
  RunBuilder b = growing(10, 30, kSums, 3);
  EXPECT_EQ(find(diagnose(b.build()), "cpu.growing_work"), nullptr);
}

TEST(GrowingWork, RolloutsThatGetLongerBesideAnUpdateThatDoesNotAreNoCause) {
  RunBuilder b;
  for (int i = 0; i < 200; ++i) {
    const double games = 1 + i * 0.02;
    b.slice(b.trainer(), SliceKind::kValidation, b.now(), b.now() + nanos(games * 1e6));
    b.step({{Part::kOther, 4 * games, kSums}, {Part::kForward, 5, kCompute}}, i < 3);
  }
  b.run().steps.drift = model::SpeedDrift{Nanos(11'000'000), Nanos(23'000'000)};
  b.machine(2, 1).process_cpu(100, 1);
  EXPECT_EQ(find(diagnose(b.build()), "cpu.growing_work"), nullptr);
}

TEST(GrowingWork, ALineWithinTheForwardPassIsTold) {
  const Doing searches{
      ThreadState::kOnCpuPython,
      {kMain, {"forward", "/home/u/model.py", 8}, {"nearest", "/home/u/bank.py", 30}}};
  RunBuilder b;
  for (int i = 0; i < 200; ++i) {
    b.step({{Part::kForward, 2 + i * 0.1, searches},
            {Part::kForward, 4, kCompute},
            {Part::kBackward, 6, kCompute}},
           i < 3);
  }
  b.run().steps.drift = model::SpeedDrift{Nanos(12'000'000), Nanos(32'000'000)};
  b.machine(2, 1).process_cpu(100, 1);
  EXPECT_NE(find(diagnose(b.build()), "cpu.growing_work"), nullptr);
}

TEST(GrowingWork, ALineThatTakesLongAllAlongDoesNotGrow) {
  RunBuilder b = growing(10, 11, kSums);
  EXPECT_EQ(find(diagnose(b.build()), "cpu.growing_work"), nullptr);
}

TEST(GrowingWork, LongerTextsAreNoCauseAlthoughTheBackwardPassIsAtOneLine) {
  const Doing backward{ThreadState::kOnCpuNative, {{"main", "/home/u/train.py", 19}}};
  RunBuilder b;
  for (int i = 0; i < 200; ++i) {
    const double part = 1 + i / 199.0;
    b.step({{Part::kForward, 5 * part, kCompute},
            {Part::kBackward, 10 * part, backward},
            {Part::kOptimizer, 2, kCompute}},
           i < 3);
  }
  b.run().steps.drift = model::SpeedDrift{Nanos(17'000'000), Nanos(32'000'000)};
  b.machine(2, 1).process_cpu(100, 1);
  EXPECT_EQ(diagnose(b.build()).verdict, "healthy");
}

TEST(GrowingWork, ALineThatHasNearlyAllOfTheStepsIsNotJudged) {
  const Doing fits{ThreadState::kOnCpuPython, {{"main", "/home/u/train.py", 19}}};
  RunBuilder b;
  for (int i = 0; i < 200; ++i)
    b.step({{Part::kForward, 10 + i * 0.1, fits}, {Part::kOther, 1, kCompute}}, i < 3);
  b.run().steps.drift = model::SpeedDrift{Nanos(11'000'000), Nanos(31'000'000)};
  b.machine(2, 1).process_cpu(100, 1);
  EXPECT_EQ(find(diagnose(b.build()), "cpu.growing_work"), nullptr);
}

TEST(GrowingWork, AJumpIsAChangeAndItsLineStandsInTheHeadline) {
  RunBuilder b;
  for (int i = 0; i < 200; ++i) {
    b.step({{Part::kForward, i < 100 ? 10.0 : 15.0, {ThreadState::kOnCpuNative, {kCurve}}}}, i < 3);
  }
  b.run().steps.changes.push_back(
      {100, b.run().steps.steps[100].begin, Nanos(10'000'000), Nanos(15'000'000)});
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  EXPECT_EQ(d.verdict, "healthy");
  EXPECT_NE(d.headline.find("curve.py:21"), std::string::npos) << d.headline;
}

TEST(GrowingWork, WhereNoLineIsToBlameThePartsOfTheStepAreNamed) {
  RunBuilder b;
  for (int i = 0; i < 200; ++i) {
    const double ms = i < 100 ? 10 : 20;
    b.step({{Part::kForward, ms, kCompute}, {Part::kBackward, ms, kCompute}}, i < 3);
  }
  b.run().steps.changes.push_back(
      {100, b.run().steps.steps[100].begin, Nanos(20'000'000), Nanos(40'000'000)});
  b.machine(2, 1).process_cpu(100, 1);
  b.run().readings.clear();
  const Diagnosis d = diagnose(b.build());
  EXPECT_NE(d.headline.find("most of it in forward and backward, and no cause shows"),
            std::string::npos)
      << d.headline;
}

}  // namespace
}  // namespace flatout::diagnose
