#include <gtest/gtest.h>
#include <sys/syscall.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

const Line kLease{"lease", "/home/u/licence.py", 12};

/// 200 steps, of which every eighth asks a server, that is slow from step `from` on.
std::string told(int from) {
  RunBuilder b;
  for (int i = 0; i < 200; ++i) {
    std::vector<RunBuilder::PartTime> parts = {{Part::kForward, 10, kCompute}};
    if (i % 8 == 0 && i >= from) {
      parts.push_back(
          {Part::kOther, 60, {ThreadState::kSleep, {kMain, kLease}, SYS_clock_nanosleep}});
    }
    b.step(parts, i < 3);
  }
  b.machine(2, 1).process_cpu(100, 0.7);
  const model::Diagnosis d = diagnose(b.build());
  std::string texts;
  for (const model::Finding& f : d.findings) {
    for (const model::Evidence& e : f.evidence) texts += e.text + "\n";
  }
  return texts;
}

TEST(Onset, WhatBeganWithinTheRunSaysWhen) {
  EXPECT_NE(told(100).find("from step 104 on"), std::string::npos) << told(100);
}

TEST(Onset, WhatIsThereFromTheStartDoesNot) {
  const std::string texts = told(0);
  EXPECT_FALSE(texts.empty());
  EXPECT_EQ(texts.find("from step"), std::string::npos) << texts;
}

}  // namespace
}  // namespace flatout::diagnose
