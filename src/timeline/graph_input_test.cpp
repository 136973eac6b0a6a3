#include "timeline/graph_input.h"

#include <gtest/gtest.h>

#include "timeline/steps.h"
#include "timeline/test_run.h"

namespace flatout::timeline {
namespace {

using model::Part;
using model::Run;
using model::SliceKind;
using model::ThreadState;
using testing::RunBuilder;

struct Job {
  double made = 9, call = 10, compute = 1;  // ms: a batch is made, a step's graph runs, computes
  double pause = 1;                         // of who makes batches
  int steps = 60;
  int calls = 1;             // of Python for a batch
  int pool = 1;              // threads that compute
  double queued = 0;         // ms of a step that each of them waits for a core
  bool fed_on_core = false;  // batches are made by computing, not by waiting
};

/// Steps that are one call each of a graph, which waits for its batch inside; another thread makes
/// the batches in Python, and a pool of the framework's computes.
Run run_of(const Job& job) {
  RunBuilder b;
  b.every(1);
  const double all = job.call * job.steps;
  for (int i = 0; i < job.steps; ++i) b.forward(job.call).optimizer(0);
  b.read_back(all, 0, ThreadState::kLock);
  b.thread(0, 101).idle(-all);
  double left = all;
  while (left > 0) {
    for (int c = 0; c < job.calls; ++c) {
      b.slice(SliceKind::kFeed, job.made / job.calls);
      b.idle(job.pause / job.calls);
    }
    left -= job.made + job.pause;
  }
  b.idle(left);
  b.read_back(all, 0, job.fed_on_core ? ThreadState::kOnCpuPython : ThreadState::kSleep);
  for (int t = 0; t < job.pool; ++t) {
    b.thread(0, 102 + t).idle(-all);
    for (int i = 0; i < job.steps; ++i) {
      b.during(job.call - job.compute - job.queued, 0, ThreadState::kLock);
      b.during(job.queued, 0, ThreadState::kRunQueue);
      b.during(job.compute, 0, ThreadState::kOnCpuNative);
    }
  }
  return b.build();
}

double input_share(Run& run) {
  find_steps(run);
  return run.steps.summary.breakdown[static_cast<size_t>(Part::kInputWait)];
}

TEST(GraphInput, WhatAGraphWaitsForIsInput) {
  auto run = run_of({});
  EXPECT_NEAR(input_share(run), 0.9, 0.02);  // nothing computes in so much of it
}

TEST(GraphInput, WhoIsAheadOfTheGraphIsNotWaitedFor) {
  auto run = run_of({.made = 3, .compute = 9, .pause = 7});
  EXPECT_EQ(input_share(run), 0);
  // Nor where the device computes, of which nothing shows here: batches are made in a third of it.
  auto device = run_of({.made = 3, .compute = 0.5, .pause = 7});
  EXPECT_EQ(input_share(device), 0);
}

TEST(GraphInput, WhoKeepsUpByHalfIsWaitedForAsLongAsNothingComputes) {
  auto run = run_of({.made = 9.5, .compute = 5, .pause = 0.5});
  EXPECT_NEAR(input_share(run), 0.5, 0.06);
}

TEST(GraphInput, ThreadsThatComputeSideBySideCountOnce) {
  auto run = run_of({.made = 9.5, .compute = 5, .pause = 0.5, .pool = 4});
  EXPECT_NEAR(input_share(run), 0.5, 0.06);
}

TEST(GraphInput, AThreadThatWaitsForACoreWaitsForWhoHasIt) {
  // Those who make batches have the cores for most of the time.
  auto theirs = run_of({.compute = 0.5, .queued = 6, .fed_on_core = true});
  EXPECT_GT(input_share(theirs), 0.75);
  // Those who compute have them.
  auto own = run_of({.compute = 4, .pool = 4, .queued = 6});
  EXPECT_EQ(input_share(own), 0);
}

TEST(GraphInput, ACallForEachSampleIsNoPause) {
  auto run = run_of({.made = 6, .compute = 1, .pause = 4, .calls = 16});
  EXPECT_NEAR(input_share(run), 0.9, 0.05);
}

TEST(GraphInput, AskedAgainItSaysTheSame) {
  auto run = run_of({});
  const double first = input_share(run);
  const size_t slices = run.slices.size();
  EXPECT_EQ(input_share(run), first);
  EXPECT_EQ(run.slices.size(), slices);
  for (size_t i = 1; i < run.slices.size(); ++i)
    ASSERT_LE(run.slices[i - 1].end, run.slices[i].end) << i;
}

TEST(GraphInput, WithoutReadingsNothingIsGuessed) {
  auto run = run_of({});
  run.readings.clear();
  EXPECT_EQ(input_share(run), 0);
}

}  // namespace
}  // namespace flatout::timeline
