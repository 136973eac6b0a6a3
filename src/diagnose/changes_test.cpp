#include <gtest/gtest.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

TEST(Changes, WithoutWhatChangedTheJobIsNoFasterThanBefore) {
  RunBuilder b;
  const model::ThreadId pool = b.thread(0, 101);
  for (int i = 0; i < 100; ++i) b.step({{Part::kForward, 20, kCompute}}, i < 3);
  const TimePoint from = b.now();
  for (int i = 0; i < 100; ++i) {
    b.step(
        {{Part::kForward, 20, kCompute}, {Part::kForward, 30, {ThreadState::kRunQueue, {kMain}}}});
  }
  // The pool's thread waits when the training thread does not: both hold up the step, but not
  // twice.
  for (TimePoint at = from; at < b.now(); at += Nanos(50'000'000)) {
    b.doing(pool, at, at + Nanos(40'000'000), {ThreadState::kRunQueue, {}});
    b.doing(pool, at + Nanos(40'000'000), at + Nanos(50'000'000), {ThreadState::kOnCpuNative, {}});
  }
  b.run().steps.changes.push_back(
      {100, b.run().steps.steps[100].begin, Nanos(20'000'000), Nanos(50'000'000)});
  b.machine(2, 0, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  const Finding* f = find(d, "cpu.noisy_neighbour");
  ASSERT_NE(f, nullptr) << d.headline;
  EXPECT_LE(*f->cost_ms_per_step, 15.5);  // of 35 on average
  EXPECT_NE(d.headline.find("step 100"), std::string::npos) << d.headline;
}

TEST(Changes, NeighboursThatCameTakeAllThatStepsTakeLongerSince) {
  RunBuilder b;
  for (int i = 0; i < 100; ++i) b.step({{Part::kForward, 20, kCompute}}, i < 3);
  for (int i = 0; i < 100; ++i) {  // kernels are slower, too, beside one that takes their caches
    b.step(
        {{Part::kForward, 26, kCompute}, {Part::kForward, 24, {ThreadState::kRunQueue, {kMain}}}});
  }
  b.run().steps.changes.push_back(
      {100, b.run().steps.steps[100].begin, Nanos(20'000'000), Nanos(50'000'000)});
  b.machine(2, 0, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_NE(find(d, "cpu.noisy_neighbour"), nullptr) << d.headline;
  EXPECT_NEAR(*find(d, "cpu.noisy_neighbour")->cost_ms_per_step, 15.2, 0.2);  // not half of 24
}

TEST(Changes, ANeighbourThatRunsTheSameScriptAndTheJobsOwnNiceAreTold) {
  for (const bool same : {true, false}) {
    RunBuilder b;
    for (int i = 0; i < 100; ++i) {
      b.step(
          {{Part::kForward, 20, kCompute}, {Part::kForward, 20, {ThreadState::kRunQueue, {kMain}}}},
          i < 3);
    }
    b.machine(1, 0, 0.5).process_cpu(100, 0.5);
    const model::EntityId other = b.entity(EntityKind::kOther, 489, "python");
    b.counter(SignalId::kOtherCpu, other, 0.5 * b.wall_ns());
    b.ramp(SignalId::kOtherAge, other, 0, 3);  // of the run's four seconds
    b.run().info["code.file"] = "/home/u/train.py";
    b.run().info["job.nice"] = same ? "10" : "0";
    b.run().info["other.489.command"] = same ? "python /home/u/train.py" : "python /home/u/eval.py";
    const Diagnosis d = diagnose(b.build());
    const Finding* f = find(d, "cpu.noisy_neighbour");
    ASSERT_NE(f, nullptr) << d.headline;
    std::string texts;
    for (const model::Evidence& e : f->evidence) texts += e.text + "\n";
    const bool told = texts.find("runs train.py, too, started 1.00 s after") != texts.npos;
    EXPECT_EQ(told, same) << texts;
    EXPECT_EQ(texts.find("with nice 10") != texts.npos, same) << texts;
  }
}

}  // namespace
}  // namespace flatout::diagnose
