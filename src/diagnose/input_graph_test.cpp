// Input that tf.data makes: which stage of its pipeline, and what would be gained.
#include <gtest/gtest.h>

#include "diagnose/diagnose.h"
#include "diagnose/graph_pipeline.h"
#include "diagnose/testing/training_runs.h"
#include "diagnose/view.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;

const Line kFit{"fit", "/home/u/train.py", 30};
const Doing kGraph{ThreadState::kOnCpuNative, {kFit}};
const Doing kInGraph{ThreadState::kLock, {kFit}};

/// `map` ms of a map for each of 100 batches, made ahead of the step or not.
void pipeline(RunBuilder& b, double map, bool ahead, int threads, const char* first = "BatchV2") {
  const auto ns = static_cast<int64_t>(map * 100 * 1e6);
  b.run().info["tensorflow.version"] = "2.21.0";
  b.run().info["tf.data.stages"] =
      "100\nRoot\t1000\t100\t3\t0\t\n" + std::string(first) + "\t2000000\t100\t" +
      (ahead ? "4" : "3") + "\t0\t/home/u/data.py:9 in batches\nMap\t" + std::to_string(ns) +
      "\t3200\t" + (threads > 1 ? "4" : "3") + "\t" + std::to_string(threads) +
      "\t/home/u/data.py:8 in batches\nRange\t0\t3200\t3\t0\t";
}

void two_cores(RunBuilder& b, double busy) { b.machine(2, 2 - busy).process_cpu(100, busy); }

TEST(GraphPipeline, IsReadFromTheFact) {
  model::Run run;
  EXPECT_FALSE(graph_pipeline(run).known());
  run.info["tf.data.stages"] =
      "10\nPrefetch\t1000000\t10\t4\t0\t\nParallelMapV2\t20000000\t320\t4\t2\t/u/a.py:8 in f";
  const GraphPipeline read = graph_pipeline(run);
  ASSERT_TRUE(read.known());
  EXPECT_EQ(read.heaviest().name, "ParallelMapV2");
  EXPECT_NEAR(read.heaviest().seconds, 2e-3, 1e-9);
  EXPECT_EQ(read.heaviest().threads, 2);
  EXPECT_EQ(read.heaviest().where->line, 8);
  EXPECT_FALSE(read.stages.front().where.has_value());
  EXPECT_TRUE(read.ahead());
  for (const char* broken :
       {"", "x", "10\na\tb", "0\nMap\t1\t1\t3\t0\t", "10\nMap\t-1\t1\t3\t0\t"}) {
    run.info["tf.data.stages"] = broken;
    EXPECT_FALSE(graph_pipeline(run).known()) << broken;
  }
}

TEST(GraphInput, AMapThatTheStepWaitsForIsNamedAtItsLine) {
  RunBuilder b;
  train(b, 100, 30, 10, kInGraph, kGraph);
  pipeline(b, 29, false, 1);
  two_cores(b, 1.9);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.decode_cpu");
  EXPECT_EQ(d.findings.front().where->file, "/home/u/data.py");
  EXPECT_EQ(d.findings.front().where->line, 8);
  EXPECT_NEAR(*d.findings.front().gain, 4, 0.5);
}

TEST(GraphInput, IdleCoresCouldMakeTheBatchesAheadOfTheStep) {
  RunBuilder b;
  train(b, 100, 10, 20, kInGraph, kGraph);
  pipeline(b, 10, false, 1);
  two_cores(b, 1.0);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.too_few_workers");
  EXPECT_EQ(d.findings.front().where->line, 8);
}

TEST(GraphInput, NoWaitIsNoFinding) {
  RunBuilder b;
  train(b, 100, 0.2, 20, kInGraph, kGraph);
  pipeline(b, 15, true, 2, "Prefetch");
  two_cores(b, 1.9);
  EXPECT_EQ(diagnose(b.build()).verdict, "healthy");
}

TEST(GraphInput, AShuffleBufferThatIsFilledAnewIsAPeriodicStall) {
  RunBuilder b;
  for (int i = 0; i < 200; ++i) {
    const double wait = i % 25 == 10 ? 300 : 1;
    b.step({{Part::kInputWait, wait, kInGraph}, {Part::kForward, 15, kGraph}}, i < 3);
  }
  pipeline(b, 12, false, 1, "Shuffle");
  two_cores(b, 1.5);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "stall.periodic");
  EXPECT_EQ(d.findings.front().where->line, 9);
  EXPECT_NEAR(*d.findings.front().gain, 28.0 / 16, 0.15);
  EXPECT_EQ(find(d, "stall.idle_wait"), nullptr);
}

TEST(GraphInput, APipelineWithTimeToSpareIsNotWaitedFor) {
  for (const double map : {3.0, 20.0}) {
    RunBuilder b;
    for (int i = 0; i < 200; ++i) {  // neighbours, now and then
      const double more = i * i % 7 == 2 ? 12 : 0.5;
      b.step({{Part::kInputWait, more, kInGraph}, {Part::kForward, 15, kGraph}}, i < 3);
    }
    pipeline(b, map, true, 1, "Shuffle");
    two_cores(b, 1.5);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(find(d, "input.decode_cpu") != nullptr || find(d, "input.too_few_workers") != nullptr,
              map > 10);
    if (map < 10) {
      EXPECT_EQ(d.verdict, "healthy");
    }
  }
}

TEST(GraphInput, PythonThatThePipelineCallsIsFoundByItsOwnReadings) {
  RunBuilder b;
  train(b, 100, 30, 10, kInGraph, kGraph);
  pipeline(b, 29, false, 1);
  const model::ThreadId caller = b.thread(0, 101);
  for (int i = 0; i < 100; ++i) {
    const TimePoint at = b.run().begin + nanos(i * 40e6);
    b.slice(caller, SliceKind::kFeed, at, at + nanos(29e6));
  }
  const model::Run run = b.build();
  EXPECT_FALSE(RunView(run).loader().graph);
}

}  // namespace
}  // namespace flatout::diagnose
