// What is said in all: whether a run can be judged, and what comes first.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;

TEST(Diagnose, ALauncherThatWaitsForItsChildStartsNothingAllTheTime) {
  for (const int children : {1, 40}) {
    RunBuilder b;
    b.pass(20'000);
    b.doing(b.trainer(), b.run().begin, b.now(), {ThreadState::kChild, {kMain}, SYS_wait4});
    for (int i = 0; i < children; ++i) {
      b.worker(300 + i);
      b.run().processes.back().start = b.run().begin + nanos(1e9 + i * 18e9 / children);
    }
    b.machine(2, 1);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, children > 1 ? "cpu.process_churn" : "healthy");
    EXPECT_EQ(d.judged, children > 1);
  }
}

TEST(Diagnose, WhatIsLeftOfADamagedRecordingIsNoProofOfHealth) {
  for (const bool input : {false, true}) {
    RunBuilder b;
    train(b, 60, input ? 20 : 0, 10);
    if (input) workers(b, 4, 60, kDecode);
    b.machine(4, 2);
    b.run().missing.push_back({"recording", "3 damaged places were skipped", ""});
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, input ? "input.decode_cpu" : "none");
    EXPECT_EQ(d.judged, input);
    EXPECT_EQ(d.headline.find("incomplete") != std::string::npos, !input) << d.headline;
  }
}

TEST(Diagnose, AFewStepsThatWaitForInputAreNotCalledHealthy) {
  RunBuilder b;
  for (int i = 0; i < 8; ++i) b.step({{Part::kInputWait, 8, {}}, {Part::kForward, 1, {}}}, i < 1);
  b.run().readings.clear();
  b.machine(2, 1);
  const Diagnosis d = diagnose(b.build());
  EXPECT_TRUE(d.findings.empty());
  EXPECT_FALSE(d.judged);
  EXPECT_NE(d.headline.find("wait for input 89 %"), std::string::npos) << d.headline;
}

TEST(Diagnose, FourStepsAreNotJudged) {
  RunBuilder b;
  train(b, 7, 20, 10);  // three of them warm-up
  workers(b, 2, 60, kDecode);
  b.machine(2, 0).process_cpu(200, 0.8).process_cpu(201, 0.8);
  const Diagnosis d = diagnose(b.build(false));
  EXPECT_TRUE(d.findings.empty());
  EXPECT_EQ(d.verdict, "none");
}

TEST(Diagnose, AnEmptyRunIsNotJudged) { EXPECT_EQ(diagnose(model::Run{}).verdict, "none"); }

TEST(Diagnose, WhatEndsTheJobAtOnceComesBeforeAnyGain) {
  RunBuilder b;
  train(b, 100, 20, 10);
  workers(b, 2, 60, kDecode);
  b.machine(2, 0.05).process_cpu(100, 0.33).process_cpu(200, 0.8).process_cpu(201, 0.8);
  b.gauge(SignalId::kMemAvailable, b.host(), 4e9);
  b.ramp(SignalId::kProcRssAnon, b.process_entity(100), 300e6, 500e6);
  const Diagnosis d = diagnose(b.build());
  EXPECT_EQ(d.verdict, "mem.leak");
  EXPECT_LT(*d.findings.front().ends_in_s, 100);
  ASSERT_NE(find(d, "input.decode_cpu"), nullptr);
  EXPECT_GT(*find(d, "input.decode_cpu")->gain, 2);
}

}  // namespace
}  // namespace flatout::diagnose
