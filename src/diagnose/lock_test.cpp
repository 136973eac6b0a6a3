// Threads that compute for the training thread and contend for a lock, and those that do not.
#include <gtest/gtest.h>

#include <array>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;
using model::FrameKind;
using model::Part;

const Line kUpdate{"Model::update", "/home/u/factors.cpp", 16, FrameKind::kNative};
const Line kApply{"Model::apply", "/home/u/factors.cpp", 23, FrameKind::kNative};
const Line kJoin{"std::thread::join", "/usr/lib/libstdc++.so.6", 0, FrameKind::kNative};
const Line kMutex{"__pthread_mutex_lock", "/usr/lib/libc.so.6", 0, FrameKind::kNative};
const Line kWaitsForMore{"pthread_cond_wait", "/usr/lib/libc.so.6", 0, FrameKind::kNative};

/// Two threads live for each step of 10 ms, in which the main thread waits for them; each computes,
/// but for 4 ms.
model::Run team(const Doing& meanwhile) {
  RunBuilder b;
  b.run().processes[0].python = false;
  for (int i = 0; i < 60; ++i) {
    const TimePoint at = b.now();
    b.step({{Part::kCompute, 10, {ThreadState::kLock, {kJoin}}}}, i < 3);
    for (int t = 0; t < 2; ++t) {
      const model::ThreadId thread = b.thread(0, 101 + 2 * i + t);
      const TimePoint then = at + nanos(6e6);
      b.doing(thread, at, then, {ThreadState::kOnCpuNative, {kUpdate, kApply}});
      b.doing(thread, then, b.now(), meanwhile);
    }
  }
  b.machine(2, 0.2).process_cpu(100, 1.8);
  return b.build();
}

TEST(Lock, ThreadsThatComputeContendForALock) {
  const Diagnosis d = diagnose(team({ThreadState::kLock, {kUpdate, kMutex}}));
  ASSERT_EQ(d.verdict, "cpu.lock") << d.headline;
  const Finding& f = d.findings.front();
  EXPECT_NEAR(*f.gain, 10 / 6.0, 0.1);
  EXPECT_EQ(f.where->line, kUpdate.line);
}

// Two threads and the one that waits for them want three cores each time it wakes, but what it
// waits for is their lock.
TEST(Lock, ThreadsThatContendAreNotTooManyForThat) {
  RunBuilder b;
  b.run().processes[0].python = false;
  const std::array pool{b.thread(0, 101), b.thread(0, 102)};
  for (int i = 0; i < 60; ++i) {
    const TimePoint at = b.now();
    b.step({{Part::kCompute, 7, {ThreadState::kLock, {kWaitsForMore}}},
            {Part::kCompute, 3, {ThreadState::kRunQueue, {kWaitsForMore}}}},
           i < 3);
    for (const model::ThreadId thread : pool) {
      b.doing(thread, at, at + nanos(3e6), {ThreadState::kLock, {kUpdate, kMutex}});
      b.doing(thread, at + nanos(3e6), b.now(), {ThreadState::kKernel, {kUpdate, kMutex}});
    }
  }
  b.machine(2, 0.6).process_cpu(100, 1.4);
  const Diagnosis d = diagnose(b.build());
  EXPECT_EQ(d.verdict, "cpu.lock") << d.headline;
}

TEST(Lock, ALockThatNobodyWaitsForIsNoCause) {
  const Diagnosis d = diagnose(team({ThreadState::kOnCpuNative, {kUpdate, kMutex}}));
  EXPECT_EQ(find(d, "cpu.lock"), nullptr) << d.headline;
}

// As in a recording without samples of threads that run.
TEST(Lock, OnlyBlockedThreadsHaveStacksThatSayNothingOfTheOthers) {
  model::Run run = team({ThreadState::kLock, {kUpdate, kMutex}});
  for (model::StackReading& r : run.readings) {
    if (r.state == ThreadState::kOnCpuNative) r.stack = 0;
  }
  const Diagnosis d = diagnose(run);
  ASSERT_EQ(d.verdict, "cpu.lock") << d.headline;
  EXPECT_NEAR(*d.findings.front().gain, 10 / 6.0, 0.1);
}

TEST(Lock, NothingToDoIsNoLock) {
  const Diagnosis d = diagnose(team({ThreadState::kLock, {kUpdate, kWaitsForMore}}));
  EXPECT_EQ(find(d, "cpu.lock"), nullptr) << d.headline;
}

}  // namespace
}  // namespace flatout::diagnose
