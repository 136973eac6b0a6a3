// Stalls of the training loop: saving, logging, waiting for nothing, and what recurs; each with a
// near miss.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

TEST(Stalls, SavingAndLoggingAreToldApart) {
  RunBuilder b;
  for (int i = 0; i < 60; ++i) {
    std::vector<RunBuilder::PartTime> parts = {
        {Part::kForward, 10, kCompute},
        {Part::kOther, 3, {ThreadState::kDisk, {{"log", "/home/u/train.py", 33}}, SYS_fsync}}};
    if (i % 10 == 5) {
      parts.push_back({Part::kCheckpoint, 50, {ThreadState::kDisk, {kMain}, SYS_write}});
    }
    b.step(parts, i < 3);
  }
  b.machine(2, 1).process_cpu(100, 0.7);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.findings.size(), 2u);
  EXPECT_EQ(d.findings[0].id, "stall.checkpoint");
  EXPECT_EQ(d.findings[1].id, "stall.logging");
  EXPECT_EQ(d.findings[1].where->line, 33);
  EXPECT_NEAR(*d.findings[1].cost_ms_per_step, 3, 0.2);
}

TEST(Stalls, ComputingThatIsSlowerAfterASaveIsTheSaves) {
  for (const bool at_epochs : {false, true}) {
    for (const double slower : {0.0, 6.0}) {
      RunBuilder b;
      for (int i = 0; i < 80; ++i) {
        const bool saves = i % 8 == 5, follows = i % 8 == 6;
        std::vector<RunBuilder::PartTime> parts = {
            {Part::kForward, 20 + (follows ? slower : 0) + 0.1 * (i % 3), kCompute}};
        if (saves) parts.push_back({Part::kCheckpoint, 16, {ThreadState::kDisk, {kMain}}});
        b.step(parts, i < 3);
        b.run().steps.steps.back().epoch_start = at_epochs && saves;
      }
      b.machine(2, 1).process_cpu(100, 0.7);
      const Diagnosis d = diagnose(b.build());
      const Finding* saved = find(d, "stall.checkpoint");
      ASSERT_NE(saved, nullptr) << d.headline;
      // What else an epoch's first step does differently is not known to be the save's.
      const double later = at_epochs ? 0 : slower;
      EXPECT_NEAR(*saved->cost_ms_per_step, (16 + later) * 10 / 77, 0.05);
    }
  }
}

// Two workers make a batch in 6 or in 22 ms; steps take 12, saves 5 of them.
TEST(Stalls, WithoutSavesStepsMayWaitForWorkersThatGotAheadMeanwhile) {
  for (const double fetch : {6.0, 22.0}) {
    RunBuilder b;
    for (int i = 0; i < 90; ++i) {
      std::vector<RunBuilder::PartTime> parts = {{Part::kForward, 7, kCompute}};
      if (i % 3 == 2) parts.push_back({Part::kCheckpoint, 15, {ThreadState::kDisk, {kMain}}});
      b.step(parts, i < 3);
    }
    workers(b, 2, fetch, kDecode, 24 - fetch);
    b.machine(8, 2).process_cpu(100, 0.6);
    for (const int worker : {200, 201}) b.process_cpu(worker, fetch / 24);
    const Diagnosis d = diagnose(b.build());
    const Finding* saved = find(d, "stall.checkpoint");
    ASSERT_NE(saved, nullptr) << d.headline;
    EXPECT_NEAR(*saved->cost_ms_per_step, fetch < 10 ? 5 : 1, 0.2);
  }
}

TEST(Stalls, WaitingForAThreadThatSavesOrLogsIsItsDoing) {
  const Line save{"save", "/lib/python3/site-packages/torch/serialization.py", 700};
  const Line write{"write", "/home/u/train.py", 71};
  for (const bool saves : {true, false}) {
    RunBuilder b;
    const model::ThreadId other = b.thread(0, 101);
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 10, kCompute}}, i < 3);
      const TimePoint from = b.now() - Nanos(10'000'000);
      b.doing(other, from, b.now(), {ThreadState::kLock, {{"wait", "/home/u/train.py", 60}}});
      model::Step& step = b.run().steps.steps.back();
      const TimePoint held = b.now();
      b.pass(8);
      b.doing(b.trainer(), held, b.now(), {ThreadState::kLock, {{"step", "/home/u/train.py", 50}}});
      b.doing(other, held, b.now(),
              saves ? Doing{ThreadState::kOnCpuNative, {write, save}}
                    : Doing{ThreadState::kDisk, {write}, SYS_fsync});
      step.end = b.now();
      step.part(Part::kOther) += b.now() - held;
    }
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, saves ? "stall.checkpoint" : "stall.logging");
    EXPECT_EQ(d.findings.size(), 1u);
    EXPECT_EQ(d.findings.front().where->line, 71);
    EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 8, 0.5);
  }
}

TEST(Stalls, SyncingRightAfterASaveIsTheSaves) {
  const Line save{"save", "/lib/python3/site-packages/torch/serialization.py", 700};
  for (const uint32_t line : {58, 90}) {
    const Line at_save{"<module>", "/home/u/train.py", 56},
        at_sync{"<module>", "/home/u/train.py", line};
    RunBuilder b;
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 10, kCompute},
              {Part::kCheckpoint, 6, {ThreadState::kOnCpuNative, {at_save, save}}},
              {Part::kOther, 8, {ThreadState::kDisk, {at_sync}, SYS_fsync}}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 0.7);
    const Diagnosis d = diagnose(b.build());
    const Finding* saved = find(d, "stall.checkpoint");
    ASSERT_NE(saved, nullptr) << d.headline;
    EXPECT_NEAR(*saved->cost_ms_per_step, line == 58 ? 14 : 6, 0.5);
    EXPECT_EQ(find(d, "stall.logging") == nullptr, line == 58);
  }
}

// Readings in the kernel keep the stack that was seen last, which may be that of any line.
TEST(Stalls, ANativeProgramThatEntersTheKernelToWriteOnlyWritesThere) {
  const auto native = [](const std::string& function, const std::string& file, uint32_t line) {
    return Line{function, file, line, model::FrameKind::kNative};
  };
  const Line trains = native("train_pair", "/home/u/pairs.cpp", 16);
  const Line logs = native("main", "/home/u/pairs.cpp", 35);
  const Line flushes = native("std::ostream::flush", "/usr/lib/libstdc++.so.6", 0);
  for (const bool writes : {true, false}) {
    RunBuilder b;
    for (int i = 0; i < 100; ++i) {
      b.step({{Part::kForward, 28, {ThreadState::kOnCpuNative, {trains}}},
              {Part::kForward, 8, {ThreadState::kKernel, {trains}}},
              {Part::kForward, 4, {ThreadState::kOnCpuNative, {logs, flushes}}}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    const model::EntityId job = b.process_entity(100);
    b.counter(SignalId::kProcWriteCalls, job, 100 * 9000);
    b.counter(SignalId::kProcWriteChars, job, 100 * 9000 * 17.0);
    b.counter(SignalId::kProcMinorFaults, job, writes ? 1000 : 100 * 9000);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "stall.logging") << d.headline;
    EXPECT_NEAR(*d.findings.front().cost_ms_per_step, writes ? 12 : 4, 0.5);
    EXPECT_EQ(d.findings.front().where->line, 35);
  }
}

TEST(Stalls, ManyLinesOfTextAreNoCheckpoint) {
  const Line logs{"main", "/home/u/pairs.cpp", 35, model::FrameKind::kNative};
  const Line streams{"std::ostream& std::ostream::_M_insert<double>", "/usr/lib/libstdc++.so.6", 0,
                     model::FrameKind::kNative};
  for (const double bytes : {20.0, 8192.0}) {
    RunBuilder b;
    for (int i = 0; i < 100; ++i) {
      b.step({{Part::kForward, 30, {ThreadState::kOnCpuNative, {logs}}},
              {Part::kForward, 10, {ThreadState::kOnCpuNative, {logs, streams}}}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    b.counter(SignalId::kProcWriteChars, b.process_entity(100), 100 * 400e3);
    b.counter(SignalId::kProcWriteCalls, b.process_entity(100), 100 * 400e3 / bytes);
    EXPECT_EQ(diagnose(b.build()).verdict, bytes > 1000 ? "stall.checkpoint" : "stall.logging");
  }
}

// Its model goes out in pieces of 4 KiB, which cost the kernel little: the time is the stream's,
// and that of the rename.
TEST(Stalls, ANativeProgramThatPutsItsModelIntoAStreamSavesIt) {
  const Line trains{"train", "/home/u/rows.cpp", 35, model::FrameKind::kNative};
  const Line saves{"store", "/home/u/rows.cpp", 20, model::FrameKind::kNative};
  const Line renames{"store", "/home/u/rows.cpp", 23, model::FrameKind::kNative};
  const Line streams{"fwrite", "/usr/lib/libc.so.6", 0, model::FrameKind::kNative};
  RunBuilder b;
  for (int i = 0; i < 100; ++i) {
    b.step({{Part::kForward, 20, {ThreadState::kOnCpuNative, {trains}}},
            {Part::kForward, 40, {ThreadState::kOnCpuNative, {saves, streams}}},
            {Part::kOther, 20, {ThreadState::kDisk, {renames}, SYS_rename}}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  b.counter(SignalId::kProcWriteChars, b.process_entity(100), 100 * 1e6);
  b.counter(SignalId::kProcWriteCalls, b.process_entity(100), 100 * 1e6 / 4096);
  const Diagnosis d = diagnose(b.build());
  EXPECT_EQ(d.verdict, "stall.checkpoint");
  EXPECT_NEAR(*d.findings.front().gain, 4, 0.4);
  EXPECT_EQ(d.findings.front().where->function, "store");
}

// Every 50th step writes a table as text: what it writes then counts, not what that is a step.
TEST(Stalls, TextThatIsWrittenInFewStepsIsACheckpointIfItIsMuch) {
  const Line trains{"train", "/home/u/vectors.cpp", 35, model::FrameKind::kNative};
  const Line saves{"save", "/home/u/vectors.cpp", 20, model::FrameKind::kNative};
  const Line streams{"std::ostream& std::ostream::_M_insert<double>", "/usr/lib/libstdc++.so.6", 0,
                     model::FrameKind::kNative};
  for (const double bytes : {4e6, 40e3}) {
    RunBuilder b;
    for (int i = 0; i < 300; ++i) {
      const double ms = i % 50 == 49 ? 90 : 0;
      b.step({{Part::kForward, 10, {ThreadState::kOnCpuNative, {trains}}},
              {Part::kForward, ms, {ThreadState::kOnCpuNative, {saves, streams}}}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    b.counter(SignalId::kProcWriteChars, b.process_entity(100), 6 * bytes);
    b.counter(SignalId::kProcWriteCalls, b.process_entity(100), 6 * bytes / 8192);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, bytes > 1e6 ? "stall.checkpoint" : "stall.logging");
    EXPECT_EQ(d.findings.front().where->line, 20);
  }
}

// json.dump() writes what it is given: a model every 25 steps, or a line of a log.
TEST(Stalls, AModelThatIsWrittenAsJsonIsACheckpoint) {
  const Line keep{"keep", "/home/u/train.py", 20};
  const Line dump{"dump", "/usr/lib/python3.11/json/__init__.py", 179};
  for (const double bytes : {2e6, 20e3}) {
    RunBuilder b;
    for (int i = 0; i < 200; ++i) {
      const double ms = i % 25 == 24 ? 90 : 0;
      b.step({{Part::kForward, 3, kCompute},
              {Part::kBackward, 5, kCompute},
              {Part::kOther, ms, {ThreadState::kOnCpuPython, {kMain, keep, dump}}}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    b.counter(SignalId::kProcWriteChars, b.process_entity(100), 8 * bytes);
    b.counter(SignalId::kProcWriteCalls, b.process_entity(100), 8 * bytes / 8192);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, bytes > 1e6 ? "stall.checkpoint" : "stall.logging");
    EXPECT_EQ(d.findings.front().where->line, 20);
  }
}

TEST(Stalls, WhatARankSendsToOthersIsNoCheckpoint) {
  const Line log{"log", "/home/u/train.py", 33};
  for (const double stored : {4096.0, 4e6}) {
    RunBuilder b;
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 10, kCompute},
              {Part::kCommunication, 3, {ThreadState::kPoll, {kMain}}},
              {Part::kOther, 3, {ThreadState::kDisk, {log}, SYS_fsync}}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 0.7);
    const model::EntityId job = b.process_entity(100);
    b.counter(SignalId::kProcWriteChars, job, 60 * 4e6);
    b.counter(SignalId::kProcWriteCalls, job, 60 * 60);
    b.counter(SignalId::kProcWriteBytes, job, 60 * stored);
    const Diagnosis d = diagnose(b.build());
    EXPECT_NE(find(d, stored > 1e6 ? "stall.checkpoint" : "stall.logging"), nullptr) << d.headline;
  }
}

TEST(Stalls, HooksOfModulesAreToldApartFromForward) {
  const std::string module = "/v/site-packages/torch/nn/modules/module.py";
  const Line call{"_call_impl", module, 1884}, inner{"inner", module, 1845};
  const Line record{"record", "/home/u/train.py", 18}, helper{"entropy", "/home/u/stats.py", 4};
  const Line wrapper{"timed", "/home/u/train.py", 40}, forward{"forward", "/home/u/model.py", 9};
  const Line pruning{"__call__", "/v/site-packages/torch/nn/utils/prune.py", 30};
  const auto run_of = [&](const std::vector<Line>& stack) {
    RunBuilder b;
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 12, {ThreadState::kOnCpuNative, stack}},
              {Part::kBackward, 12, kCompute}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    return diagnose(b.build());
  };
  for (const auto& stack :
       {std::vector<Line>{kMain, call, inner, record}, {kMain, call, inner, record, helper}}) {
    const Diagnosis d = run_of(stack);
    ASSERT_EQ(d.verdict, "stall.logging") << d.headline;
    EXPECT_EQ(d.findings.size(), 1u);
    EXPECT_NEAR(*d.findings.front().gain, 2, 0.05);
    EXPECT_EQ(d.findings.front().where->line, stack.back().line);
  }
  // forward() itself, one that a function of the job's stands before, and PyTorch's own hooks.
  for (const auto& stack : {std::vector<Line>{kMain, call, inner, forward},
                            {kMain, call, inner, wrapper, forward},
                            {kMain, call, inner, wrapper, call, inner, forward},
                            {kMain, call, inner, pruning}}) {
    EXPECT_EQ(run_of(stack).verdict, "healthy") << stack.back().function;
  }
}

TEST(Stalls, ABatchThatNobodyMakesIsIdleWaitUnlessSomebodyWorks) {
  const Doing waiting{ThreadState::kLock, {{"take", "/home/u/train.py", 52}}};
  for (const bool idle : {true, false}) {
    RunBuilder b;
    train(b, 60, 20, 10, waiting);
    const model::ThreadId other = b.thread(0, 101);
    for (const model::Step& s : b.run().steps.steps) {
      b.doing(other, s.begin, s.begin + Nanos(20'000'000),
              idle ? Doing{ThreadState::kLock, {{"get", "/home/u/train.py", 41}}} : kCompute);
    }
    b.machine(2, 1.4).process_cpu(100, idle ? 0.4 : 1);
    EXPECT_EQ(diagnose(b.build()).verdict == "stall.idle_wait", idle);
  }
}

TEST(Stalls, APoolThatSpinsOrComputesForPythonDoesNotWorkForAWaitAfterTheStep) {
  const Line spin{std::string(model::kSpinWaitFrame), "", 0, model::FrameKind::kNative};
  const Line wait{"wait", "/usr/lib/python3.11/threading.py", 331};
  for (const bool spins : {true, false}) {
    RunBuilder b;
    const model::ThreadId pool = b.thread(0, 101);
    for (int i = 0; i < 60; ++i) {
      const TimePoint begin = b.now();
      b.step(
          {{Part::kForward, 18, kCompute}, {Part::kOther, 12, {ThreadState::kLock, {kMain, wait}}}},
          i < 3);
      b.doing(pool, begin, b.now(),
              {ThreadState::kOnCpuNative, spins ? std::vector{spin} : std::vector<Line>{}});
    }
    b.machine(2, 0.5).process_cpu(100, 1.4);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, "stall.idle_wait") << d.headline;
  }
}

TEST(Stalls, AStallWithoutANameThatRecursIsPeriodic) {
  RunBuilder b;
  for (int i = 0; i < 100; ++i)
    b.step({{Part::kForward, i % 10 == 7 ? 60.0 : 10.0, kCompute}}, i < 3);
  b.machine(2, 1).process_cpu(100, 1);
  EXPECT_EQ(diagnose(b.build()).verdict, "stall.periodic");
}

// Every 15th step a loop of tiny operations runs: a stall, not the way the job works. What it is
// for is told by what is written meanwhile.
TEST(Stalls, ALoopThatRunsInFewStepsIsAStallAndASaveIfItWrites) {
  const Line text{"export", "/home/u/model.py", 44};
  for (const double written : {20e6, 200.0}) {
    RunBuilder b;
    for (int i = 0; i < 300; ++i) {
      b.step({{Part::kForward, 5, kCompute}}, i < 3);
      if (i % 15 != 14) continue;
      RunBuilder::PartTime stall{Part::kOther, 90, {ThreadState::kOnCpuPython, {kMain, text}}};
      b.step({{Part::kForward, 5, kCompute}, stall}, false);
    }
    b.counter(SignalId::kProcWriteChars, b.process_entity(100), written);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, written > 1e6 ? "stall.checkpoint" : "stall.periodic");
    EXPECT_EQ(find(d, "cpu.python_bound"), nullptr);
    ASSERT_TRUE(d.findings.front().where);
    EXPECT_EQ(d.findings.front().where->line, 44);
  }
}

TEST(Stalls, AStallBetweenStepsThatOthersMadeALittleLongerIsPeriodicAllTheSame) {
  RunBuilder b;
  for (int i = 0; i < 200; ++i) {
    const bool disturbed = i == 31 || i == 32 || i == 75 || i == 113 || i == 158 || i == 159;
    b.step({{Part::kForward, i % 20 == 7 ? 90.0 : disturbed ? 18.0 : 10.0, kCompute}}, i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  EXPECT_EQ(diagnose(b.build()).verdict, "stall.periodic");
}

TEST(Stalls, FewLongStepsThatComeAtOddsAreNoPeriod) {
  for (const bool exact : {true, false}) {
    RunBuilder b;
    const std::vector<int> at = exact ? std::vector{27, 57, 87, 117} : std::vector{27, 56, 87, 118};
    for (int i = 0; i < 130; ++i) {
      const bool is_long = std::find(at.begin(), at.end(), i) != at.end();
      b.step({{Part::kForward, is_long ? 60.0 : 10.0, kCompute}}, i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    EXPECT_EQ(diagnose(b.build()).verdict, exact ? "stall.periodic" : "healthy");
  }
}

TEST(Stalls, StepsThatWaitForACoreAreNoStallThatRecurs) {
  RunBuilder b;
  model::Series delay{SignalId::kThreadRunDelay, b.thread_entity(100), {{b.now(), 0}}};
  double waited = 0;
  for (int i = 0; i < 100; ++i) {
    const bool is_long = i % 10 == 7;
    b.step({{Part::kForward, is_long ? 22.0 : 10.0, kCompute}}, i < 3);
    waited += is_long ? 9e6 : 0;
    delay.readings.push_back({b.now(), waited});
  }
  b.machine(2, 1).process_cpu(100, 1);
  EXPECT_EQ(diagnose(b.build()).verdict, "stall.periodic");
  b.run().series.push_back(delay);
  EXPECT_NE(diagnose(b.build()).verdict, "stall.periodic");
}

TEST(Stalls, AGeneratorThatTrainsEveryThirdStepIsNoStall) {
  RunBuilder b;
  for (int i = 0; i < 90; ++i) {
    std::vector<RunBuilder::PartTime> parts = {{Part::kForward, 10, kCompute},
                                               {Part::kBackward, 10, kCompute},
                                               {Part::kOptimizer, 2, kCompute}};
    if (i % 3 == 2) parts.insert(parts.end(), parts.begin(), parts.begin() + 3);
    b.step(parts, i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  EXPECT_EQ(diagnose(b.build()).verdict, "healthy");
}

// A figure every ten steps: what takes the time is drawing and encoding it, or the disk.
TEST(Stalls, ASaveThatComputesIsNotAdvisedToWriteInAThread) {
  for (const bool encodes : {true, false}) {
    RunBuilder b;
    const std::vector<Line> stack{kMain, {"log", "/home/u/figures.py", 35}};
    for (int i = 0; i < 200; ++i) {
      b.step({{Part::kForward, 10, kCompute},
              {Part::kOther,
               i % 10 == 7 ? 80.0 : 0.0,
               {encodes ? ThreadState::kOnCpuNative : ThreadState::kDisk, stack}},
              {Part::kOther, i % 10 == 7 ? 10.0 : 0.0, {ThreadState::kKernel, stack}}},
             i < 3);
    }
    b.counter(SignalId::kProcWriteChars, b.process_entity(100), 20e6);
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "stall.checkpoint") << d.headline;
    const model::Finding& f = d.findings.front();
    EXPECT_EQ(f.where->line, 35);
    EXPECT_EQ(f.remedies.front().id, encodes ? "less_often" : "async_save");
  }
}

TEST(Stalls, WhoWaitsForThreadsThatTakeWorkOutOfAQueueWaitsForTheirWork) {
  for (const bool queue : {true, false}) {
    RunBuilder b;
    const model::ThreadId pool = b.thread(0, 101);
    for (int i = 0; i < 100; ++i) {
      const TimePoint from = b.now();
      b.step({{Part::kForward, 10, kCompute}, {Part::kOther, 10, {ThreadState::kLock, {kMain}}}},
             i < 3);
      b.doing(pool, from + nanos(10e6), b.now(), {ThreadState::kOnCpuNative, {}});
    }
    b.machine(2, 1).process_cpu(100, 1);
    if (queue) b.run().info["jax.version"] = "0.10.2";
    EXPECT_EQ(find(diagnose(b.build()), "stall.idle_wait") == nullptr, queue);
  }
}

// A database that commits each step waits for the disk in calls that could not be read.
TEST(Stalls, WhoWaitsForADiskFromWhichNothingComesWrites) {
  for (const auto& [python, read] : {std::pair(true, 0.0), {true, 50e6}, {false, 0.0}}) {
    RunBuilder b;
    b.run().processes[0].python = python;
    const Line commit{"note", "/home/u/train.py", 16};
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 10, kCompute},
              {Part::kOther, 3, {ThreadState::kDisk, {kMain, commit}}},
              {Part::kOther, 2, {ThreadState::kKernel, {kMain, commit}}}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 0.8);
    b.counter(SignalId::kProcWriteBytes, b.process_entity(100), 5e6);
    b.counter(SignalId::kProcReadBytes, b.process_entity(100), read);
    const Diagnosis d = diagnose(b.build());
    const bool known = python && read == 0;  // without Python the stack may be one from before
    ASSERT_EQ(d.verdict == "stall.logging", known) << d.headline;
    if (known) {
      EXPECT_EQ(d.findings.front().where->line, 16);
      EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 5, 0.3);
    }
  }
}

// The journal of a database is written, and removed at each commit.
TEST(Stalls, RemovingWhatALineWritesIsPartOfItsWriting) {
  for (const double writes : {1.0, 0.0}) {
    RunBuilder b;
    const std::vector<Line> stack{kMain, {"note", "/home/u/train.py", 16}};
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 10, kCompute},
              {Part::kOther, writes, {ThreadState::kDisk, stack, SYS_fdatasync}},
              {Part::kOther, 1, {ThreadState::kDisk, stack, SYS_rename}},
              {Part::kOther, 4, {ThreadState::kOnCpuNative, stack}}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 0.9);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict == "stall.logging", writes > 0) << d.headline;
    if (writes > 0) {
      EXPECT_NEAR(*find(d, "stall.logging")->cost_ms_per_step, 6, 0.3);
    }
  }
}

// What others do meanwhile may or may not be what is waited for: nothing is said of it.
TEST(Stalls, ASleepIsSaidToBeWhileNothingWorksOnlyWhereThatIsSo) {
  for (const double idle : {1.4, 0.2}) {
    RunBuilder b;
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 10, kCompute},
              {Part::kOther, 10, {ThreadState::kSleep, {kMain, {"wait", "/home/u/train.py", 7}}}}},
             i < 3);
    }
    b.machine(2, idle).process_cpu(100, 0.5);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "stall.idle_wait") << d.headline;
    EXPECT_EQ(d.findings.front().title,
              idle > 1 ? "The job sleeps or polls while nothing works" : "The job sleeps or polls");
  }
}

// As a progress line is printed ten times a second while threads train.
TEST(Stalls, AMainThreadThatWatchesThoseThatTrainIsNotIdle) {
  for (const bool works : {true, false}) {
    RunBuilder b;
    b.run().processes[0].python = false;
    const auto thread = b.thread(0, 101);
    const TimePoint begin = b.now();
    b.pass(10'000);
    const Line watch{"watch", "/home/u/train.cpp", 7, model::FrameKind::kNative};
    const Line train{"train", "/home/u/train.cpp", 9, model::FrameKind::kNative};
    b.doing(b.trainer(), begin, b.now(), {ThreadState::kSleep, {watch}});
    if (works) b.doing(thread, begin, b.now(), {ThreadState::kOnCpuNative, {train}});
    b.run().steps.thread = b.trainer();
    b.machine(2, works ? 1 : 2).process_cpu(100, works ? 1 : 0.01);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict == "stall.idle_wait", !works) << d.headline;
  }
}

// Without line numbers what writes and what computes look like one place.
TEST(Stalls, AFunctionOfWhichNoLineIsKnownIsNotThereToWriteOnly) {
  const auto native = [](const std::string& function, const std::string& file, uint32_t line) {
    return Line{function, file, line, model::FrameKind::kNative};
  };
  const Line flushes = native("std::ostream::flush", "/usr/lib/libstdc++.so.6", 0);
  for (const uint32_t line : {0u, 35u}) {
    const Line main = native("main", "/home/u/evolve", line);
    RunBuilder b;
    for (int i = 0; i < 100; ++i) {
      b.step({{Part::kForward, 26, {ThreadState::kOnCpuNative, {main}}},
              {Part::kForward, 14, {ThreadState::kOnCpuNative, {main, flushes}}}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "stall.logging") << d.headline;
    EXPECT_NEAR(*d.findings.front().cost_ms_per_step, line == 0 ? 14 : 40, 0.5);
  }
}

}  // namespace
}  // namespace flatout::diagnose
