// Producers that wait for a lock of the job's, and those that only look so.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

/// Two threads make batches in turns: one works while the other waits as told.
model::Run in_turns(const Doing& works, const Doing& waits, double cpu = 1.1, bool python = true) {
  RunBuilder b;
  b.run().processes[0].python = python;
  const model::ThreadId threads[] = {b.thread(0, 101), b.thread(0, 102)};
  for (int i = 0; i < 60; ++i) {
    const TimePoint at = b.now();
    b.step({{Part::kInputWait, 36, kQueueWait}, {Part::kForward, 4, kCompute}}, i < 3);
    for (int half = 0; half < 2; ++half) {
      const TimePoint from = at + nanos(20e6 * half), to = from + nanos(20e6);
      b.doing(threads[half], from, to, works);
      b.doing(threads[1 - half], from, to, waits);
    }
  }
  b.machine(2, 2 - cpu).process_cpu(100, cpu);
  const auto wall = static_cast<double>((b.now() - b.run().begin).count());
  for (const int tid : {101, 102}) {
    b.counter(SignalId::kThreadOnCpu, b.thread_entity(tid), (cpu - 0.1) / 2 * wall);
  }
  return b.build();
}

const Line kTakesLock{"get", "/home/u/data.py", 38};
const Line kOfLibc{"[libc.so.6]", "/usr/lib/x86_64-linux-gnu/libc.so.6", 0,
                   model::FrameKind::kUnderPython};

TEST(LockWaits, WaitsForALockOfTheJobs) {
  const Doing works{ThreadState::kOnCpuNative, {kTakesLock, kItem}};
  const Diagnosis d = diagnose(in_turns(works, {ThreadState::kLock, {kTakesLock, kOfLibc}}));
  ASSERT_EQ(d.verdict, "input.lock") << d.headline;
  const Finding& f = d.findings.front();
  // 20 ms a batch and worker instead of 40: 22 ms a step where both cores work, 40 before.
  EXPECT_NEAR(*f.gain, 1.8, 0.2);
  EXPECT_EQ(f.where->line, kTakesLock.line);
  EXPECT_EQ(find(d, "input.decode_cpu"), nullptr) << "who works holds the lock";
}

TEST(LockWaits, ALockWithoutIdleCoresIsNoCause) {
  const Doing works{ThreadState::kOnCpuNative, {kTakesLock, kItem}};
  const Diagnosis d = diagnose(in_turns(works, {ThreadState::kLock, {kTakesLock, kOfLibc}}, 2));
  EXPECT_EQ(find(d, "input.lock"), nullptr) << d.headline;
}

TEST(LockWaits, NothingToDoIsNoLock) {
  const Doing works{ThreadState::kOnCpuNative, {kItem}};
  const Line queue{"get", "/usr/lib/python3.11/queue.py", 171};
  const Line condition{"wait", "/usr/lib/python3.11/threading.py", 327};
  const Line simple{"_queue_SimpleQueue_get_impl", "/usr/lib/python3.11/lib-dynload/_queue.so", 0,
                    model::FrameKind::kUnderPython};
  const Line of_queue{"get", "/usr/lib/python3.11/multiprocessing/queues.py", 364};
  const Line enter{"__enter__", "/usr/lib/python3.11/multiprocessing/synchronize.py", 95};
  const Line pool{"gomp_team_barrier_wait", "/usr/lib/libgomp.so.1", 0,
                  model::FrameKind::kUnderPython};
  for (const std::vector<Line>& stack : {std::vector<Line>{kTakesLock, queue, condition, kOfLibc},
                                         {kTakesLock, simple, kOfLibc},
                                         {kTakesLock, pool},
                                         {kTakesLock, of_queue, enter}}) {
    const Diagnosis d = diagnose(in_turns(works, {ThreadState::kLock, stack}));
    EXPECT_EQ(find(d, "input.lock"), nullptr) << stack[1].function << ": " << d.headline;
  }
}

TEST(LockWaits, LocksOfNativeCodeAndOfFiles) {
  const Line sample{"augment", "/home/u/pool.cpp", 29, model::FrameKind::kNative};
  const auto native = [](const std::string& function) {
    return Line{function, "/usr/lib/libc.so.6", 0, model::FrameKind::kNative};
  };
  const Doing works{ThreadState::kOnCpuNative, {sample}};
  const Doing mutex{ThreadState::kLock,
                    {sample, native("__pthread_mutex_lock"), native("[libc.so.6]")}};
  const Doing condition{ThreadState::kLock,
                        {sample, native("pthread_cond_wait"), native("[libc.so.6]")}};
  const Doing file{ThreadState::kLock, {sample, native("flock")}, SYS_flock};
  const Doing malloc{ThreadState::kLock,
                     {sample, native("malloc"), native("__pthread_mutex_lock")}};
  EXPECT_EQ(diagnose(in_turns(works, mutex, 1.1, false)).verdict, "input.lock");
  EXPECT_EQ(diagnose(in_turns(works, file, 1.1, false)).verdict, "input.lock");
  EXPECT_EQ(find(diagnose(in_turns(works, condition, 1.1, false)), "input.lock"), nullptr);
  EXPECT_EQ(find(diagnose(in_turns(works, malloc, 1.1, false)), "input.lock"), nullptr);
}

}  // namespace
}  // namespace flatout::diagnose
