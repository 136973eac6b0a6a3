// Findings about memory, left-over processes, limits and the border to the device, each with a near
// miss.
#include <gtest/gtest.h>

#include <map>

#include <algorithm>
#include <csignal>

#include "diagnose/diagnose.h"
#include "diagnose/testing/run_builder.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

constexpr double kGiB = 1 << 30;
const Doing kCompute{ThreadState::kOnCpuNative, {kMain}};
const Line kFill{"fill", "/home/u/train.py", 77};

bool has(const Diagnosis& d, std::string_view id) {
  return std::any_of(d.findings.begin(), d.findings.end(),
                     [&](const Finding& f) { return f.id == id; });
}

/// 60 steps of 10 ms of computing and `ms` of something else.
RunBuilder steps_with(double ms, const Doing& what, Part part = Part::kOther) {
  RunBuilder b;
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kForward, 10, kCompute}, {part, ms, what}}, i < 3);
  }
  return b;
}

TEST(Resources, WaitingForReclaimIsPressureIfALimitOrSwapIsBehindIt) {
  for (const bool limited : {true, false}) {
    RunBuilder b = steps_with(10, {ThreadState::kReclaim, {kMain, kFill}});
    const model::EntityId group = b.entity(EntityKind::kCgroup, 0, "/");
    if (limited) b.counter(SignalId::kCgroupMemMaxEvents, group, 400);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(has(d, "mem.pressure"), limited);
    if (!limited) continue;
    const Finding& f = d.findings.front();
    EXPECT_EQ(d.verdict, "mem.pressure");
    EXPECT_NEAR(*f.cost_ms_per_step, 10, 0.5);
    EXPECT_NEAR(*f.gain, 2, 0.1);
    EXPECT_EQ(f.where->line, 77);
  }
}

TEST(Resources, PressureIsTheDoingOfTheProcessThatGrewUpToTheLimit) {
  for (const bool grows : {true, false}) {
    RunBuilder b = steps_with(10, {ThreadState::kReclaim, {kMain}});
    const model::ThreadId worker = b.worker(200);
    const TimePoint begin = b.run().steps.steps.front().begin;
    const TimePoint full = begin + std::chrono::milliseconds(400);
    // What is kept is given memory until the limit is reached; then every line waits for pages.
    b.doing(worker, begin, full, {ThreadState::kKernel, {kMain, kItem}});
    b.doing(worker, full, b.now(), {ThreadState::kKernel, {kMain, kFill}});
    std::ranges::stable_sort(b.run().readings, {}, &model::StackReading::at);
    const model::EntityId group = b.entity(EntityKind::kCgroup, 0, "/");
    b.counter(SignalId::kCgroupMemMaxEvents, group, 400);
    b.gauge(SignalId::kCgroupMemLimit, group, kGiB);
    model::Series memory{SignalId::kProcRssAnon, b.process_entity(200), {}};
    for (int i = 0; i <= 12; ++i) {
      const double held = grows ? 100e6 * std::min(i, 4) + 1e6 * i : 4e8;
      memory.readings.push_back({begin + std::chrono::milliseconds(100 * i), held});
    }
    b.run().series.push_back(memory);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "mem.pressure");
    const Finding& f = d.findings.front();
    EXPECT_EQ(f.where->line, grows ? kItem.line : kMain.line);
    EXPECT_EQ(f.evidence.back().source, grows ? "probe.processes" : "probe.cgroup");
  }
}

// A worker that fills the limit within a second has one reading; the training process's few
// megabytes of growth, all that was seen, are not what filled it. Where the growth that was seen
// does, it is to blame, whoever the kernel chose.
TEST(Resources, WhoFilledTheMemoryIsTheOneKilledUnlessAnotherWasSeenToFillIt) {
  for (const double seen : {10e6, 600e6}) {
    RunBuilder b = steps_with(10, {ThreadState::kKernel, {kMain, kFill}});
    const model::ThreadId worker = b.worker(200);
    b.doing(worker, b.run().steps.steps.front().begin, b.now(),
            {ThreadState::kKernel, {kMain, kItem}});
    std::ranges::stable_sort(b.run().readings, {}, &model::StackReading::at);
    b.run().processes[1].ended = true;
    b.run().processes[1].end = b.now();
    b.run().processes[1].wait_status = SIGKILL;
    const model::EntityId group = b.entity(EntityKind::kCgroup, 0, "/");
    b.ramp(SignalId::kCgroupOomKills, group, 0, 1);
    b.gauge(SignalId::kCgroupMemLimit, group, kGiB);
    b.ramp(SignalId::kProcRssAnon, b.process_entity(100), 300e6, 300e6 + seen);
    model::Series once{SignalId::kProcRssAnon, b.process_entity(200), {}};
    once.readings.push_back({b.now(), 100e6});
    b.run().series.push_back(once);
    const Diagnosis d = diagnose(b.build(true, 1 << 8));
    ASSERT_EQ(d.verdict, "mem.killed");
    EXPECT_EQ(d.findings.front().where->line, seen < 100e6 ? kItem.line : kFill.line);
  }
}

TEST(Resources, ALineThatDoesLittleButFaultIsPageFaultsIfFaultsSuffice) {
  for (const double faults_a_step : {4000.0, 100.0}) {
    RunBuilder b = steps_with(10, {ThreadState::kKernel, {kMain, kFill}});
    b.counter(SignalId::kProcMinorFaults, b.process_entity(100), 60 * faults_a_step);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(has(d, "mem.page_faults"), faults_a_step > 1000);
    if (faults_a_step > 1000) {
      EXPECT_EQ(d.findings.front().where->line, 77);
    }
  }
}

// Buffers that come as huge pages: few faults, each of which takes long.
TEST(Resources, HugePagesThatAreFaultedInAnewAreFewFaultsButCount) {
  for (const double huge_a_step : {20.0, 0.0}) {
    RunBuilder b = steps_with(10, {ThreadState::kKernel, {kMain, kFill}});
    b.counter(SignalId::kProcMinorFaults, b.process_entity(100), 60 * 40.0);
    b.counter(SignalId::kVmThpFaultAlloc, b.host(), 60 * huge_a_step);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(has(d, "mem.page_faults"), huge_a_step > 0);
    if (huge_a_step > 0) {
      EXPECT_EQ(d.verdict, "mem.page_faults");
    }
  }
}

TEST(Resources, MappingThatWaitsIsCompactionOnlyWhereTheKernelCompacts) {
  for (const double stalls : {600.0, 0.0}) {
    RunBuilder b = steps_with(10, {ThreadState::kReclaim, {kMain, kFill}});
    b.counter(SignalId::kVmCompactStall, b.host(), stalls)
        .counter(SignalId::kVmDirectScan, b.host(), 10)
        .gauge(SignalId::kBuddyFree2M, b.host(), 3);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(has(d, "mem.compaction"), stalls > 0);
    if (stalls == 0) continue;
    EXPECT_EQ(d.verdict, "mem.compaction");
    EXPECT_EQ(d.findings.front().where->line, 77);
    EXPECT_FALSE(has(d, "mem.pressure"));
  }
}

TEST(Resources, DescriptorsThatRunOutAreToldBeforeTheyDo) {
  for (const double end : {900.0, 210.0}) {
    RunBuilder b = steps_with(10, kCompute);
    b.ramp(SignalId::kProcFds, b.process_entity(100), 200, end)
        .gauge(SignalId::kProcFdLimit, b.process_entity(100), 1024);
    EXPECT_EQ(has(diagnose(b.build()), "mem.fds"), end > 500);
  }
}

struct Holds {
  double memory = 0, shm = 0, gpu = 0;  // bytes, a left-over
  bool orphan = true;
  double free_memory = 8 * kGiB, free_shm = 1 * kGiB, gpu_used = 4 * kGiB;
  bool found = false;
};

TEST(Resources, LeftOversAreToldWhereTheJobLacksWhatTheyHold) {
  const Holds cases[] = {
      {.memory = 6 * kGiB, .free_memory = 1 * kGiB, .found = true},
      {.memory = 6 * kGiB},                                            // there is enough left
      {.memory = 6 * kGiB, .orphan = false, .free_memory = 1 * kGiB},  // somebody's live job
      {.memory = 0.1 * kGiB, .free_memory = 1 * kGiB},                 // others hold it
      {.shm = 1 * kGiB, .free_shm = 0.1 * kGiB, .found = true},
      {.shm = 1 * kGiB},
      {.gpu = 10 * kGiB, .gpu_used = 15 * kGiB, .found = true},
      {.gpu = 10 * kGiB, .gpu_used = 12 * kGiB},
  };
  for (const Holds& c : cases) {
    RunBuilder b = steps_with(1, kCompute);
    b.gauge(SignalId::kMemTotal, b.host(), 16 * kGiB)
        .gauge(SignalId::kMemAvailable, b.host(), c.free_memory);
    const model::EntityId old = b.entity(EntityKind::kOther, 4121, "python");
    b.gauge(SignalId::kOtherOrphan, old, c.orphan ? 1 : 0)
        .gauge(SignalId::kOtherRss, old, c.memory)
        .gauge(SignalId::kOtherShm, old, c.shm)
        .gauge(SignalId::kOtherAge, old, 7200);
    const model::EntityId shm = b.entity(EntityKind::kMount, 0, "/dev/shm");
    b.gauge(SignalId::kMountTotal, shm, 2 * kGiB).gauge(SignalId::kMountFree, shm, c.free_shm);
    const model::EntityId gpu = b.entity(EntityKind::kGpu, 0, "GPU 0");
    b.gauge(SignalId::kGpuMemTotal, gpu, 16 * kGiB).gauge(SignalId::kGpuMemUsed, gpu, c.gpu_used);
    if (c.gpu > 0)
      b.gauge(SignalId::kGpuProcessMem, b.entity(EntityKind::kGpuProcess, 4121, ""), c.gpu);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(has(d, "cpu.zombies"), c.found) << c.memory << ' ' << c.shm << ' ' << c.gpu;
    if (!c.found) continue;
    const Finding& f = d.findings.front();
    EXPECT_EQ(*f.cost_bytes, std::max({c.memory + c.shm, c.gpu}));
    EXPECT_TRUE(f.evidence.front().text.starts_with("python (pid 4121, 2.00 h old) hold "))
        << f.evidence.front().text;
  }
}

TEST(Resources, UnreapedProcessesAreToldOnlyWherePidsRunOut) {
  for (const double pids : {31000.0, 9000.0}) {
    RunBuilder b = steps_with(1, kCompute);
    b.gauge(SignalId::kHostPids, b.host(), pids)
        .gauge(SignalId::kHostPidMax, b.host(), 32768)
        .gauge(SignalId::kHostZombies, b.host(), 0.7 * pids);
    EXPECT_EQ(has(diagnose(b.build()), "cpu.zombies"), pids > 30000);
  }
}

TEST(Resources, CopiesThatBlockTheStepAreToldAndThoseInTheBackgroundAreNot) {
  constexpr int64_t kPageable = 1, kBlocks = 2;
  for (const int64_t how : {kPageable | kBlocks, int64_t{0}}) {
    RunBuilder b;
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 10, kCompute}}, i < 3);
      b.slice(b.trainer(), SliceKind::kH2d, b.now() - nanos(5e6), b.now(), 1 << 20, how);
    }
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(has(d, "input.h2d_sync"), how != 0);
    if (how != 0) {
      EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 5, 0.2);
    }
  }
}

TEST(Resources, FeedingThroughPythonIsToldByItsTime) {
  for (const double ms : {4.0, 0.1}) {
    RunBuilder b;
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 10, kCompute}}, i < 3);
      b.slice(b.trainer(), SliceKind::kFeed, b.now() - nanos(ms * 1e6), b.now());
    }
    EXPECT_EQ(has(diagnose(b.build()), "input.feed_dict"), ms > 1);
  }
}

// Copying what is fed takes fresh memory: the boundary's cost, where so many pages are fed.
TEST(Resources, WhatIsFedIsCopiedIntoFreshMemory) {
  for (const double fed_pages : {10e3, 10.0}) {
    RunBuilder b;
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 8, {ThreadState::kKernel, {kMain}}}, {Part::kForward, 4, kCompute}},
             i < 3);
      const TimePoint runs = b.now() - nanos(12e6);
      b.slice(b.trainer(), SliceKind::kFeed, runs - nanos(1e5), runs,
              static_cast<int64_t>(4096 * fed_pages));
    }
    b.counter(SignalId::kProcMinorFaults, b.process_entity(100), 60 * 10e3);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.findings.size(), 1u) << d.headline;
    EXPECT_EQ(d.verdict, fed_pages > 1e3 ? "input.feed_dict" : "mem.page_faults");
    EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 8, 0.5);
  }
}

// A batch that is made in the loop and fed is the boundary's, not the interpreter's many tiny
// operations; without feeding it is some loop's own.
TEST(Resources, ABatchMadeForFeedingIsItsCost) {
  for (const bool fed : {true, false}) {
    RunBuilder b;
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kInputWait, 8, {ThreadState::kOnCpuPython, {kMain, kFill}}},
              {Part::kForward, 8, kCompute}},
             i < 3);
      if (!fed) continue;
      const TimePoint runs = b.now() - nanos(8e6);
      b.slice(b.trainer(), SliceKind::kFeed, runs - nanos(1e5), runs);
    }
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(has(d, "input.feed_dict"), fed);
    if (!fed) continue;
    EXPECT_EQ(d.verdict, "input.feed_dict");
    EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 8, 0.5);
    EXPECT_EQ(d.findings.front().where->function, kFill.function);
    EXPECT_FALSE(has(d, "cpu.python_bound"));
  }
}

// The own threads of TensorFlow and of JAX compute while the loop's line waits for them.
TEST(Resources, ALineThatWaitsForAGraphRunsNoTinyOperations) {
  for (const std::string_view graphs : {"tensorflow.version", "jax.version", ""}) {
    RunBuilder b;
    for (int i = 0; i < 100; ++i) {
      b.step({{Part::kForward, 1, {ThreadState::kOnCpuPython, {kMain}}},
              {Part::kForward, 14, {ThreadState::kLock, {kMain}}}},
             i < 3);
    }
    auto run = b.build();
    if (!graphs.empty()) run.info[std::string(graphs)] = "1.0";
    EXPECT_EQ(has(diagnose(run), "cpu.python_bound"), graphs.empty()) << graphs;
  }
}

// A loss written as loops, beside an encoder's big operations: a cause where it is a tenth of the
// step, of which the interpreter has a third of its time.
TEST(Resources, TinyOperationsBesideBigOnesAreACauseWhereTheyAreMuchOfTheStep) {
  const Line by_hand{"loss_by_hand", "/home/u/train.py", 32};
  for (const double ms : {3.0, 0.6}) {
    RunBuilder b;
    for (int i = 0; i < 200; ++i) {
      b.step({{Part::kForward, 14, kCompute},
              {Part::kForward, ms / 3, {ThreadState::kOnCpuPython, {kMain, by_hand}}},
              {Part::kForward, ms / 3, {ThreadState::kOnCpuNative, {kMain, by_hand}}},
              {Part::kForward, ms / 3, {ThreadState::kOnCpuNative, {kMain, by_hand}}}},
             i < 3);
    }
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(has(d, "cpu.python_bound"), ms > 1) << ms;
    if (ms > 1) {
      EXPECT_EQ(d.findings.front().where->line, 32);
    }
  }
}

TEST(Resources, NumbersWrittenAsTextEveryStepAreLogging) {
  for (const char* function : {"savetxt", "load"}) {
    RunBuilder b;
    const Line numpys{function, "/x/site-packages/numpy/lib/_npyio_impl.py", 1618};
    for (int i = 0; i < 100; ++i) {
      b.step({{Part::kForward, 30, kCompute},
              {Part::kOther, 5, {ThreadState::kOnCpuNative, {kMain, numpys}}}},
             i < 3);
    }
    EXPECT_EQ(diagnose(b.build()).verdict == "stall.logging", function[0] == 's');
  }
}

TEST(Resources, AMaskIsToBlameOnlyWhereOtherCoresAreFree) {
  for (const double idle : {3.0, 0.0}) {
    RunBuilder b = steps_with(10, {ThreadState::kRunQueue, {kMain}});
    b.machine(4, idle, 3 - idle).process_cpu(100, 1.0);
    b.gauge(SignalId::kThreadAllowedCores, b.thread_entity(100), 1)
        .counter(SignalId::kThreadRunDelay, b.thread_entity(100), 0.45 * b.wall_ns());
    EXPECT_EQ(has(diagnose(b.build()), "cpu.affinity"), idle > 0);
  }
}

TEST(Resources, ARankThatSharesAPinnedCoreWithAnotherIsPinned) {
  for (const double queued : {0.45, 0.05}) {
    RunBuilder b = steps_with(10, {ThreadState::kRunQueue, {kMain}});
    b.machine(2, 0.9).process_cpu(100, 0.5);  // the other rank has the rest of that core
    b.gauge(SignalId::kThreadAllowedCores, b.thread_entity(100), 1)
        .counter(SignalId::kThreadRunDelay, b.thread_entity(100), queued * b.wall_ns());
    EXPECT_EQ(has(diagnose(b.build()), "cpu.affinity"), queued > 0.3);
  }
}

// Two threads that take turns on one core: each works 10 ms of a step and spins at the barrier
// while the other waits. On cores of their own both work at once.
TEST(Resources, WithoutAMaskAPoolsThreadsStillWork) {
  RunBuilder b;
  const model::ThreadId pool = b.thread(0, 101);
  const Doing queued{ThreadState::kRunQueue, {kMain}};
  const Doing spins{ThreadState::kOnCpuNative,
                    {{std::string(model::kSpinWaitFrame), "", 0, model::FrameKind::kNative}}};
  for (int i = 0; i < 60; ++i) {
    const TimePoint from = b.now();
    b.step(
        {{Part::kForward, 10, kCompute}, {Part::kForward, 40, spins}, {Part::kForward, 50, queued}},
        i < 3);
    const TimePoint turn = from + nanos(50e6);
    b.doing(pool, from, turn, {ThreadState::kRunQueue, {}});
    b.doing(pool, turn, turn + nanos(10e6), {ThreadState::kOnCpuNative, {}});
    b.doing(pool, turn + nanos(10e6), b.now(), spins);
  }
  b.machine(2, 1).process_cpu(100, 1.0);
  b.gauge(SignalId::kThreadAllowedCores, b.thread_entity(100), 1)
      .counter(SignalId::kThreadRunDelay, b.thread_entity(100), 0.5 * b.wall_ns())
      .counter(SignalId::kThreadRunDelay, b.thread_entity(101), 0.5 * b.wall_ns());
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "cpu.affinity") << d.headline;
  EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 90, 5);
}

// PyTorch's two threads and a worker that decodes all the time share two cores: at each barrier one
// waits for the other, who waits for a core. The pool is a third of what wants to run.
TEST(Resources, AThreadForEachCoreIsTooManyBesideAWorkerThatIsAlwaysBusy) {
  for (const bool crowded : {true, false}) {
    RunBuilder b;
    const model::ThreadId pool = b.thread(0, 101), worker = b.worker(200);
    const TimePoint begin = b.now();
    for (int i = 0; i < 60; ++i) {
      const TimePoint from = b.now(), half = from + nanos(20e6);
      b.step({{Part::kForward, 20, kCompute},
              {Part::kForward, crowded ? 12.0 : 0.1, {ThreadState::kLock, {kMain}}}},
             i < 3);
      if (!crowded) continue;
      b.doing(pool, from, half, {ThreadState::kRunQueue, {}});
      b.doing(pool, half, b.now(), {ThreadState::kOnCpuNative, {}});
    }
    b.doing(worker, begin, b.now(), {ThreadState::kOnCpuNative, {kMain}});
    b.machine(2, 0).process_cpu(100, 1).process_cpu(200, 1);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(has(d, "cpu.oversubscribed"), crowded) << d.headline;
  }
}

TEST(Resources, APoolThatWantsMoreThanTheCoresInAPartOfTheStepIsTooLarge) {
  // Three threads on two cores, at work together in a part of each step only.
  for (const int threads : {3, 2}) {
    RunBuilder b;
    std::vector<model::ThreadId> pool;
    for (int i = 1; i < threads; ++i) pool.push_back(b.thread(0, 101 + i));
    const Doing queued{ThreadState::kRunQueue, {}};
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 30, kCompute}}, i < 3);
      const TimePoint from = b.now();
      const bool crowded = threads > 2;
      b.step({{Part::kForward, 10, kCompute},
              {Part::kForward, crowded ? 14.0 : 0.1, {ThreadState::kRunQueue, {kMain}}}},
             i < 3);
      const TimePoint half = from + Nanos(10'000'000);
      for (const model::ThreadId thread : pool) {
        b.doing(thread, from, half, {ThreadState::kOnCpuNative, {}});
        if (crowded) b.doing(thread, half, b.now(), queued);
      }
    }
    b.machine(2, 0.4).process_cpu(100, 1.6);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, threads > 2 ? "cpu.oversubscribed" : "healthy") << d.headline;
  }
}

TEST(Resources, WhatIsInNobodysAccountIsNoNeighbourUnlessItIsMuch) {
  for (const double cores : {0.12, 0.7}) {
    RunBuilder b;
    for (int i = 0; i < 60; ++i) {
      b.step(
          {{Part::kForward, 10, kCompute}, {Part::kForward, 8, {ThreadState::kRunQueue, {kMain}}}},
          i < 3);
    }
    b.machine(2, 0, cores).process_cpu(100, 1.88);
    EXPECT_EQ(diagnose(b.build()).verdict, cores > 0.5 ? "cpu.noisy_neighbour" : "healthy");
  }
}

// A native program's buffers are faulted in at every line: none does little else, and the kernel
// does little else for the thread. Not so where the faults are too few, or files are read.
TEST(Resources, FaultsOfAllLinesArePageFaultsIfTheyAreAllThatTheKernelDoes) {
  struct Case {
    double faults, read;
    bool found;
  };
  for (const Case& c : {Case{4000, 0, true}, Case{400, 0, false}, Case{4000, 10e6, false}}) {
    RunBuilder b;
    for (int i = 0; i < 60; ++i) {
      std::vector<RunBuilder::PartTime> parts;
      for (uint32_t line = 20; line < 24; ++line) {
        const std::vector<Line> stack{{"main", "/home/u/a.cpp", line, model::FrameKind::kNative}};
        parts.push_back(
            {Part::kForward, line == 22 ? 9.0 : 5.0, {ThreadState::kOnCpuNative, stack}});
        parts.push_back({Part::kForward, line == 22 ? 3.0 : 2.0, {ThreadState::kKernel, stack}});
      }
      b.step(parts, i < 3);
    }
    b.counter(SignalId::kProcMinorFaults, b.process_entity(100), 60 * c.faults);
    b.counter(SignalId::kThreadMinorFaults, b.thread_entity(100), 60 * c.faults);
    b.counter(SignalId::kProcReadChars, b.process_entity(100), 60 * c.read);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(has(d, "mem.page_faults"), c.found) << c.faults << ' ' << c.read;
    if (!c.found) continue;
    EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 9, 0.5);
    EXPECT_FALSE(d.findings.front().where) << "no line is seen to fill fresh memory";
  }
}

// A C++ program that nobody marked. Its stacks are samples from outside of the kernel, so that they
// say nothing of the kernel's time; the line is that which fills fresh memory.
TEST(Resources, WithoutStepsFaultsAreAShareOfTheTime) {
  const Line main{"main", "/home/u/train.cpp", 60, model::FrameKind::kNative};
  const Line make{"Matrix::Matrix", "/home/u/train.cpp", 11, model::FrameKind::kNative};
  const Line fill{"float* std::__uninitialized_fill_n_a<float*>",
                  "/usr/include/c++/12/bits/stl_uninitialized.h", 467, model::FrameKind::kNative};
  for (const double kernel_ms : {3.0, 1.0}) {
    RunBuilder b;
    b.run().processes[0].python = false;
    for (int i = 0; i < 1000; ++i) {
      const TimePoint at = b.now();
      b.pass(10);
      b.doing(b.trainer(), at, at + nanos(1e6), {ThreadState::kOnCpuNative, {main, make, fill}});
      b.doing(b.trainer(), at + nanos(1e6), at + nanos(kernel_ms * 1e6),
              {ThreadState::kKernel, {main}});
      b.doing(b.trainer(), at + nanos(kernel_ms * 1e6), at + nanos((kernel_ms + 1) * 1e6),
              {ThreadState::kKernel, {main, make, fill}});
      b.doing(b.trainer(), at + nanos((kernel_ms + 1) * 1e6), b.now(),
              {ThreadState::kOnCpuNative, {main}});
    }
    b.counter(SignalId::kProcMinorFaults, b.process_entity(100), 2e6);
    b.counter(SignalId::kThreadMinorFaults, b.thread_entity(100), 2e6);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, kernel_ms > 2 ? "mem.page_faults" : "healthy") << d.headline;
    if (kernel_ms < 2) continue;
    const Finding& f = d.findings.front();
    EXPECT_FALSE(f.cost_ms_per_step);
    EXPECT_NEAR(f.gain.value_or(0), 1 / (1 - 0.3), 0.03);
    ASSERT_TRUE(f.where);
    EXPECT_EQ(f.where->line, 11);
  }
}

// The same where nearly all of the kernel's time is read at one line: what computes after the
// kernel has filled the memory.
TEST(Resources, OfANativeProgramTheLineThatFillsMemoryIsNamed) {
  const Line main{"main", "/home/u/train.cpp", 60, model::FrameKind::kNative};
  const Line make{"layer", "/home/u/train.cpp", 22, model::FrameKind::kNative};
  const Line fill{"std::vector<float>::_M_default_initialize",
                  "/usr/include/c++/12/bits/stl_vector.h", 1713, model::FrameKind::kNative};
  RunBuilder b;
  b.run().processes[0].python = false;
  for (int i = 0; i < 500; ++i) {
    b.step({{Part::kForward, 1, {ThreadState::kOnCpuNative, {main, make, fill}}},
            {Part::kForward, 9, {ThreadState::kKernel, {main}}}});
  }
  b.counter(SignalId::kProcMinorFaults, b.process_entity(100), 10e6);
  b.counter(SignalId::kThreadMinorFaults, b.thread_entity(100), 10e6);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "mem.page_faults") << d.headline;
  ASSERT_TRUE(d.findings.front().where);
  EXPECT_EQ(d.findings.front().where->line, 22);
}

// Four threads of a C++ program on two cores, which are always busy. Readings take a core
// themselves, so half of what runs is seen waiting for one.
TEST(Resources, WhatAPoolsWorkTakesIsByTheKernelsCountNotByWhatWasSeenRunning) {
  std::map<double, double> gains;
  for (const double counted : {1.0, 1.9}) {
    RunBuilder b;
    b.run().processes[0].python = false;
    const Line main{"main", "/home/u/boost.cpp", 35, model::FrameKind::kNative};
    const Doing works{ThreadState::kOnCpuNative, {main}};
    const TimePoint begin = b.now();
    for (int i = 0; i < 100; ++i) {
      b.step({{Part::kForward, 10, works}, {Part::kForward, 30, {ThreadState::kRunQueue, {}}}},
             i < 3);
    }
    for (int t = 0; t < 3; ++t) {
      const model::ThreadId pool = b.thread(0, 101 + t);
      for (TimePoint at = begin; at < b.now(); at += nanos(40e6)) {
        b.doing(pool, at, at + nanos(10e6), {ThreadState::kOnCpuNative, {}});
        b.doing(pool, at + nanos(10e6), at + nanos(40e6), {ThreadState::kRunQueue, {}});
      }
    }
    b.machine(2, 0).process_cpu(100, counted);
    const Diagnosis d = diagnose(b.build());
    gains[counted] = 1;
    for (const model::Finding& f : d.findings) {
      if (f.id == "cpu.oversubscribed") gains[counted] = f.gain.value_or(0);
    }
  }
  EXPECT_GT(gains[1.0], 1.5);
  EXPECT_LT(gains[1.9], 1.2);
}

}  // namespace
}  // namespace flatout::diagnose
