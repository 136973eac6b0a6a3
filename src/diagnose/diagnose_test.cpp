#include "diagnose/diagnose.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;
using model::Run;

Run two_busy_decoders() {
  RunBuilder b;
  train(b, 60, 20, 10);
  workers(b, 2, 60, kDecode);
  b.machine(2, 0.05).process_cpu(100, 0.33).process_cpu(200, 0.8).process_cpu(201, 0.8);
  return b.build();
}

TEST(Diagnose, BusyDecodersOnAllCoresAreDecodeBoundAtTheUsersLine) {
  const Diagnosis d = diagnose(two_busy_decoders());
  ASSERT_EQ(d.verdict, "input.decode_cpu");
  const Finding& f = d.findings.front();
  ASSERT_TRUE(f.where);
  EXPECT_EQ(f.where->file, "/home/u/data.py");
  EXPECT_EQ(f.where->line, 41);
  // 30 ms steps of which 10 remain, less what the decoders on the other core took of them.
  EXPECT_NEAR(*f.gain, 3.4, 0.2);
  EXPECT_EQ(d.findings.size(), 1u);
}

TEST(Diagnose, OneBusyWorkerBesideIdleCoresIsTooFewWorkers) {
  RunBuilder b;
  train(b, 60, 20, 10);
  workers(b, 1, 30, kDecode);
  b.machine(8, 6.6).process_cpu(100, 0.33).process_cpu(200, 1.0);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.too_few_workers");
  // Three times as fast, and what remains of the step no longer starts on a cold core.
  EXPECT_NEAR(*d.findings.front().gain, 3.6, 0.3);
  EXPECT_EQ(find(d, "input.decode_cpu"), nullptr);
}

TEST(Diagnose, DecodingInTheTrainingThreadBesideAnIdleCoreIsTooFewWorkers) {
  RunBuilder b;
  train(b, 60, 20, 20, kDecode);
  for (const model::Step& s : b.run().steps.steps) {
    b.slice(b.trainer(), SliceKind::kFetch, s.begin, s.begin + nanos(19e6), 16);
  }
  b.machine(2, 1.0).process_cpu(100, 1.0);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.too_few_workers");
  // Twice as fast at most; two cores with nothing to spare share their caches.
  EXPECT_NEAR(*d.findings.front().gain, 1.7, 0.15);
}

// Nothing is read: that a generator makes what the loop runs over says that it is input.
// With more workers all cores are busy: the training thread no longer waits on an idle one, but
// has none to itself either.
TEST(Diagnose, MoreWorkersLeaveNoCoreIdle) {
  RunBuilder b;
  train(b, 100, 20, 20);
  workers(b, 1, 40, {ThreadState::kOnCpuNative, {kItem}});
  b.machine(2, 0.75).process_cpu(100, 0.4).process_cpu(200, 0.85);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.too_few_workers");
  EXPECT_NEAR(*d.findings.front().gain, 40.0 / 25, 0.01) << "50 ms of CPU time on two cores";
}

TEST(Diagnose, BatchesComputedInAGeneratorAreInputUnlessItIsTheLoopItself) {
  const Line generator{"batches", "/home/u/train.py", 30, model::FrameKind::kGenerator};
  const Line plain{"prepare", "/home/u/train.py", 30};
  const Line work{"logmel", "/home/u/train.py", 22}, model{"step", "/home/u/train.py", 50};
  const auto verdict = [&](const std::vector<Line>& input, const std::vector<Line>& forward) {
    RunBuilder b;
    train(b, 60, 20, 10, {ThreadState::kOnCpuNative, input}, {ThreadState::kOnCpuNative, forward});
    b.machine(2, 0).process_cpu(100, 1.0);
    return diagnose(b.build()).verdict;
  };
  EXPECT_EQ(verdict({kMain, generator, work}, {kMain, model}), "input.decode_cpu");
  EXPECT_EQ(verdict({kMain, plain, work}, {kMain, model}), "healthy");
  EXPECT_EQ(verdict({generator, plain, work}, {generator, model}), "healthy");
}

// What comes between calls of a step that JAX compiled is no part of a model. Keras' fit does its
// own work there, and imports JAX where it is installed.
TEST(Diagnose, WorkBetweenCompiledStepsIsInputInAJobOfJaxOnly) {
  for (const std::string_view library : {"jax", "tensorflow"}) {
    RunBuilder b;
    train(b, 60, 3, 20, {ThreadState::kOnCpuNative, {kMain}}, {ThreadState::kOnCpuNative, {kMain}});
    b.machine(2, 0).process_cpu(100, 1.0);
    b.run().info["jax.version"] = "0.10.2";
    b.run().info["steps.framework"] = library;
    EXPECT_EQ(diagnose(b.build()).verdict, library == "jax" ? "input.decode_cpu" : "healthy");
  }
}

// NumPy before the forward pass makes the batch; what stands after it in the loop, or is an
// operator of the framework's (which lets go of the interpreter's lock), may be anything.
TEST(Diagnose, BatchesComputedByTheLoopAreInputWhereTheyComeBeforeTheForwardPass) {
  const auto at = [](uint32_t line) { return Line{"train", "/home/u/train.py", line}; };
  const Line warp{"warp", "/home/u/data.py", 22}, model{"forward", "/home/u/model.py", 50};
  const Line module{"_call_impl", "/lib/python3/site-packages/torch/nn/modules/module.py", 1773};
  const auto verdict = [&](double input_ms, ThreadState state, const std::vector<Line>& input,
                           const std::vector<Line>& forward) {
    RunBuilder b;
    train(b, 60, input_ms, 20, {state, input}, {ThreadState::kOnCpuNative, forward});
    b.machine(2, 0).process_cpu(100, 1.0);
    return diagnose(b.build()).verdict;
  };
  const std::vector<Line> forward{kMain, at(51), module, model};
  const ThreadState python = ThreadState::kOnCpuPython, native = ThreadState::kOnCpuNative;
  EXPECT_EQ(verdict(10, python, {kMain, at(50), warp}, forward), "input.decode_cpu");
  EXPECT_EQ(verdict(10, python, {kMain, at(50)}, forward), "input.decode_cpu");
  EXPECT_EQ(verdict(10, python, {kMain, at(51), warp}, forward), "input.decode_cpu");
  EXPECT_EQ(verdict(10, python, {kMain, at(55), warp}, forward), "healthy");
  EXPECT_EQ(verdict(10, native, {kMain, at(50), warp}, forward), "healthy");
  EXPECT_EQ(verdict(1.5, python, {kMain, at(50), warp}, forward), "healthy");
  // Another function's lines have no order with these.
  EXPECT_EQ(verdict(10, python, {warp}, {at(51), model}), "healthy");
}

TEST(Diagnose, WorkersThatKeepUpAreHealthy) {
  RunBuilder b;
  train(b, 60, 0.3, 20);
  workers(b, 2, 20, kDecode, 20);
  b.machine(4, 2).process_cpu(100, 1).process_cpu(200, 0.5).process_cpu(201, 0.5);
  const Diagnosis d = diagnose(b.build());
  EXPECT_EQ(d.verdict, "healthy");
  EXPECT_TRUE(d.findings.empty());
}

TEST(Diagnose, ABlockedReadIsTheDiskUnlessALimitExplainsIt) {
  const Doing read{ThreadState::kDisk, {kItem}, SYS_read};
  for (const bool limited : {false, true}) {
    RunBuilder b;
    train(b, 60, 20, 10);
    workers(b, 2, 60, read);
    b.machine(2, 1.5).process_cpu(100, 0.33).process_cpu(200, 0.05).process_cpu(201, 0.05);
    const double seconds = b.wall_ns() * 1e-9;
    b.counter(SignalId::kProcReadBytes, b.process_entity(200), 10e6 * seconds);
    if (limited) {
      b.gauge(SignalId::kCgroupIoLimitRead, b.entity(EntityKind::kCgroup, 0, "/job"), 10.5e6);
    }
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, limited ? "input.disk_throttled" : "input.disk");
    ASSERT_TRUE(d.findings.front().where);
    EXPECT_EQ(d.findings.front().where->line, 41);
  }
}

TEST(Diagnose, BytesReadAgainAreAColdCache) {
  const Doing read{ThreadState::kDisk, {kItem}, SYS_read};
  RunBuilder b;
  train(b, 60, 20, 10);
  workers(b, 2, 60, read);
  b.machine(2, 1.5);
  b.counter(SignalId::kProcReadBytes, b.process_entity(200), 100e6);
  b.counter(SignalId::kVmRefaultFile, b.host(), 90e6 / 4096);
  EXPECT_EQ(diagnose(b.build()).verdict, "input.cold_cache");
}

TEST(Diagnose, WhatIsReadAroundEachPageOfAMappedFileIsTold) {
  const Doing fault{ThreadState::kDisk, {kItem}};
  for (const bool mapped : {true, false}) {
    RunBuilder b;
    train(b, 60, 20, 10);
    workers(b, 2, 60, fault);
    b.machine(2, 1.5);
    const model::EntityId job = b.process_entity(200);
    b.counter(SignalId::kProcReadBytes, job, 500e6);
    b.counter(SignalId::kProcReadChars, job, mapped ? 1e6 : 500e6);
    b.counter(SignalId::kProcMajorFaults, job, 1000);
    b.counter(SignalId::kVmRefaultFile, b.host(), 400e6 / 4096);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "input.cold_cache");
    const Finding& f = d.findings.front();
    EXPECT_EQ(f.remedies.front().id, "memory");
    EXPECT_EQ(f.remedies.back().id == "no_read_ahead", mapped);
    EXPECT_EQ(std::ranges::any_of(f.evidence, [](const auto& e) { return e.value == 500e3; }),
              mapped);
  }
}

TEST(Diagnose, LookingUpFilesIsSmallFiles) {
  RunBuilder b;
  train(b, 60, 20, 10);
  workers(b, 2, 60, {ThreadState::kKernel, {kItem}, SYS_openat});
  b.machine(2, 0.1).process_cpu(100, 0.3).process_cpu(200, 0.1, 0.7).process_cpu(201, 0.1, 0.7);
  const Diagnosis d = diagnose(b.build());
  EXPECT_EQ(d.verdict, "input.small_files");
  EXPECT_EQ(d.findings.size(), 1u);
}

// Between the two lies what a fault costs: here 2.5 us, as on a virtual machine that is short of
// cores.
TEST(Diagnose, TheKernelsTimeBesideReadsIsThatOfFaultsWhereThereAreSoMany) {
  for (const bool many : {false, true}) {
    RunBuilder b;
    train(b, 60, 20, 10);
    workers(b, 2, 60, {ThreadState::kKernel, {kItem}});
    b.machine(2, 0.1).process_cpu(100, 0.3).process_cpu(200, 0.1, 0.7).process_cpu(201, 0.1, 0.7);
    const double seconds = b.wall_ns() * 1e-9;
    for (const int64_t pid : {200, 201}) {
      b.counter(SignalId::kProcReadCalls, b.process_entity(pid), 10e3 * seconds);
      b.counter(SignalId::kProcReadChars, b.process_entity(pid), 40e6 * seconds);
      b.counter(SignalId::kProcMinorFaults, b.process_entity(pid), (many ? 400e3 : 1e3) * seconds);
    }
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(find(d, "input.small_files") != nullptr, !many);
    // Two thirds of the step are waits: they are named all the same, though not surely.
    ASSERT_EQ(find(d, "input.decode_cpu") != nullptr, many);
    if (many) {
      EXPECT_EQ(d.findings.front().confidence, 0.5);
    }
  }
}

TEST(Diagnose, ScanningAnArchiveForEachSampleIsRandomSeek) {
  RunBuilder b;
  train(b, 60, 20, 10);
  workers(b, 2, 60,
          {ThreadState::kOnCpuPython, {kItem, {"next", "/usr/lib/python3.11/tarfile.py", 2300}}});
  b.machine(2, 0.1).process_cpu(100, 0.3).process_cpu(200, 0.8).process_cpu(201, 0.8);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.random_seek");
  EXPECT_EQ(d.findings.front().where->line, 41);
}

// Of the samples of a loop of one's own nothing is known, but no batch needs all there is twice.
// Two workers and the training thread on two cores: what they search they also wait for cores for.
TEST(Diagnose, SearchingThatIsSparedWaitsForNoCoreEither) {
  const Doing search{ThreadState::kOnCpuPython,
                     {kItem, {"next", "/usr/lib/python3.11/tarfile.py", 2300}}};
  RunBuilder b;
  train(b, 100, 26, 4);
  workers(b, 2, {{40, search}, {15, {ThreadState::kRunQueue, search.stack}}, {5, kDecode}});
  b.machine(2, 0).process_cpu(100, 0.33).process_cpu(200, 0.75).process_cpu(201, 0.75);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.random_seek");
  // What is left is an eighth of the work, a worker's 7 ms in two side by side.
  EXPECT_GT(*d.findings.front().gain, 4);
}

TEST(Diagnose, ALoopOfItsOwnThatReadsAllThereIsForABatchSearches) {
  for (const double files : {9.0, 1.0}) {  // read for each batch
    RunBuilder b;
    train(b, 60, 20, 10, {ThreadState::kOnCpuPython, {kMain, kItem}});
    b.machine(2, 1).process_cpu(100, 1);
    b.counter(SignalId::kProcReadChars, b.process_entity(100), 60 * files * 8e6);
    b.counter(SignalId::kProcReadCalls, b.process_entity(100), 60 * 500);
    b.gauge(SignalId::kProcOpenDataBytes, b.process_entity(100), 8e6);
    b.gauge(SignalId::kProcFilesSeen, b.process_entity(100), 1);
    EXPECT_EQ(diagnose(b.build()).verdict == "input.random_seek", files > 1);
  }
}

TEST(Diagnose, ReadingTheSameFileAgainForEachSampleIsRandomSeekAndOneOfItsOwnIsDecoding) {
  for (const bool again : {true, false}) {
    RunBuilder b;
    train(b, 60, 20, 10);
    const double batches = 60;
    for (const model::ThreadId t : workers(b, 2, 60, kDecode)) {
      for (TimePoint at = b.run().begin; at < b.now(); at += Nanos(60'000'000))
        b.slice(t, SliceKind::kCollate, at, at + Nanos(1000), int64_t{16} * 512);
    }
    b.machine(2, 0.05).process_cpu(100, 0.33).process_cpu(200, 0.8).process_cpu(201, 0.8);
    for (const int32_t pid : {200, 201}) {
      b.counter(SignalId::kProcReadChars, b.process_entity(pid), batches / 2 * 16 * 4e6);
      b.counter(SignalId::kProcReadCalls, b.process_entity(pid), batches / 2 * 16 * 500);
      b.gauge(SignalId::kProcOpenDataBytes, b.process_entity(pid), 8e6);
      if (again) {
        b.gauge(SignalId::kProcFilesSeen, b.process_entity(pid), 1);
      } else {
        b.ramp(SignalId::kProcFilesSeen, b.process_entity(pid), 0, 480);
      }
    }
    b.gauge(SignalId::kMemCached, b.host(), 8e9);
    EXPECT_EQ(diagnose(b.build()).verdict, again ? "input.random_seek" : "input.decode_cpu");
  }
}

TEST(Diagnose, AWorkerThatSleepsIsIdleWaitAndNotDecode) {
  RunBuilder b;
  train(b, 60, 20, 10);
  workers(b, 2, 60, {ThreadState::kSleep, {kItem}, SYS_clock_nanosleep});
  b.machine(2, 1.6).process_cpu(100, 0.33);
  EXPECT_EQ(diagnose(b.build()).verdict, "stall.idle_wait");
}

TEST(Diagnose, AnEventLoopWithoutWorkWaitsWhereTheAgentSaysThatItsTrainingTaskDoes) {
  const Line loop{"run_until_complete", "/usr/lib/python3.11/asyncio/base_events.py", 650},
      select{"select", "/usr/lib/python3.11/selectors.py", 468};
  for (const bool told : {true, false}) {
    RunBuilder b;
    train(b, 60, 20, 10, {ThreadState::kPoll, {kMain, loop, select}},
          {ThreadState::kOnCpuNative, {kMain, loop, {"train", "/home/u/train.py", 30}}});
    b.machine(2, 1.6).process_cpu(100, 0.33);
    if (told) b.run().info["asyncio.waits_at"] = "/home/u/client.py:7 in ask";
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "stall.idle_wait");
    EXPECT_EQ(d.findings.front().where->line, told ? 7 : kMain.line);
  }
}

// A loader in the training thread takes 1 ms for a batch, the loop 19 more before the forward pass.
TEST(Diagnose, WhatTheLoopDoesToABatchBeforeTheForwardPassIsPartOfMakingIt) {
  const Doing in_loop{ThreadState::kOnCpuNative, {kMain}};
  for (const bool sleeps : {true, false}) {
    RunBuilder b;
    train(b, 60, 20, 20,
          sleeps ? Doing{ThreadState::kSleep, {kMain}, SYS_clock_nanosleep} : in_loop);
    for (const model::Step& s : b.run().steps.steps) {
      b.slice(b.trainer(), SliceKind::kFetch, s.begin, s.begin + nanos(1e6), 16);
    }
    b.machine(2, 1.0).process_cpu(100, sleeps ? 0.5 : 1.0);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, sleeps ? "stall.idle_wait" : "input.too_few_workers");
    const Finding& f = d.findings.front();
    EXPECT_EQ(f.where->line, kMain.line);
    EXPECT_NEAR(*f.gain, sleeps ? 2.4 : 1.8, 0.2);
    const bool moves = f.remedies.front().text.starts_with("Move what this line does");
    EXPECT_EQ(moves, !sleeps);
  }
}

TEST(Diagnose, AFewHeavySamplesAreSkewAndNotDecode) {
  RunBuilder b;
  // Every 12th step waits for one batch of 200 ms; all others come in time.
  for (int i = 0; i < 96; ++i) {
    b.step(
        {{Part::kInputWait, i % 12 == 0 ? 150 : 0.3, kQueueWait}, {Part::kForward, 10, kCompute}},
        i < 3);
  }
  std::vector<model::ThreadId> threads = {b.worker(200), b.worker(201)};
  TimePoint at[2] = {b.run().begin, b.run().begin};
  const Doing heavy{ThreadState::kOnCpuNative, {{"resample", "/home/u/data.py", 77}}};
  for (int i = 0; i < 96; ++i) {
    const int w = i % 2;
    const double ms = i % 12 == 0 ? 190 : 8;
    const TimePoint end = at[w] + nanos(ms * 1e6);
    b.slice(threads[w], SliceKind::kFetch, at[w], end, 16, i);
    b.doing(threads[w], at[w], end, i % 12 == 0 ? heavy : kDecode);
    at[w] = end + nanos(10e6);
  }
  b.machine(4, 2).process_cpu(100, 0.5).process_cpu(200, 0.5).process_cpu(201, 0.5);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.worker_skew");
  EXPECT_EQ(d.findings.front().where->line, 77);
}

TEST(Diagnose, ANeighbourCountsOnlyWhereThreadsWaitForCores) {
  for (const bool hurts : {true, false}) {
    RunBuilder b;
    train(b, 60, 0.2, hurts ? 14 : 20);
    if (hurts) {
      b = RunBuilder();
      for (int i = 0; i < 60; ++i) {
        b.step({{Part::kForward, 10, kCompute},
                {Part::kForward, 8, {ThreadState::kRunQueue, {kMain}}}},
               i < 3);
      }
    }
    b.machine(2, hurts ? 0 : 0.1, 0.9).process_cpu(100, hurts ? 0.55 : 1.0);
    const model::EntityId other = b.entity(EntityKind::kOther, 999, "burner");
    b.counter(SignalId::kOtherCpu, other, 0.9 * b.wall_ns());
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, hurts ? "cpu.noisy_neighbour" : "healthy");
  }
}

TEST(Diagnose, DecodingThatAQuotaStopsIsThrottling) {
  for (const double stopped : {0.9, 0.2}) {
    RunBuilder b;
    train(b, 60, 36, 4);
    workers(b, 1, 40, kDecode);
    b.machine(2, 1).process_cpu(100, 0.1).process_cpu(200, 1.0 - stopped / 2);
    const model::EntityId group = b.entity(EntityKind::kCgroup, 0, "/job");
    b.counter(SignalId::kCgroupThrottledTime, group, stopped * b.wall_ns());
    b.counter(SignalId::kCgroupThrottled, group, 9).counter(SignalId::kCgroupPeriods, group, 10);
    b.gauge(SignalId::kCgroupCpuLimit, group, 0.7);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, stopped > 0.5 ? "cpu.throttled" : "input.decode_cpu");
    EXPECT_EQ(find(d, "input.decode_cpu") != nullptr, stopped < 0.5);
    EXPECT_NE(find(d, "cpu.throttled"), nullptr);
  }
}

TEST(Diagnose, AQuotaThatStopsTheJobIsThrottling) {
  RunBuilder b;
  for (int i = 0; i < 60; ++i) {
    b.step(
        {{Part::kForward, 10, kCompute}, {Part::kForward, 10, {ThreadState::kRunQueue, {kMain}}}},
        i < 3);
  }
  b.machine(2, 1.5).process_cpu(100, 0.5);
  const model::EntityId group = b.entity(EntityKind::kCgroup, 0, "/job");
  b.counter(SignalId::kCgroupThrottledTime, group, 0.5 * b.wall_ns());
  b.counter(SignalId::kCgroupThrottled, group, 9).counter(SignalId::kCgroupPeriods, group, 10);
  b.gauge(SignalId::kCgroupCpuLimit, group, 0.5);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "cpu.throttled");
  EXPECT_NEAR(*d.findings.front().gain, 2.0, 0.2);
}

TEST(Diagnose, CollectorPausesAndChildProcessesAreNamed) {
  RunBuilder b;
  for (int i = 0; i < 60; ++i) {
    const TimePoint begin = b.now();
    b.step({{Part::kForward, 10, kCompute},
            {Part::kOther, 4, {ThreadState::kOnCpuPython, {kMain}, -1, model::kGcRunning}},
            {Part::kOther, 6, {ThreadState::kChild, {kMain}, SYS_wait4}}},
           i < 3);
    b.slice(b.trainer(), SliceKind::kGc, begin + nanos(10e6), begin + nanos(14e6), 2, 100);
  }
  b.machine(2, 1).process_cpu(100, 0.7);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "cpu.process_churn");
  EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 6, 0.3);
  ASSERT_NE(find(d, "cpu.gc"), nullptr);
  EXPECT_NEAR(*find(d, "cpu.gc")->cost_ms_per_step, 4, 0.1);
}

// Two children are started one after the other and awaited. Their own work stays when they are
// kept, and is then no longer done while the other is being started.
TEST(Diagnose, WhatForkedChildrenWorkIsNotSavedByKeepingThem) {
  const Line bootstrap{"_bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314};
  const Line popen{"_launch", "/usr/lib/python3.11/multiprocessing/popen_fork.py", 66};
  const Line launch{"launch", "/home/u/train.py", 56};
  const auto cost = [&](double work) {
    RunBuilder b;
    const model::ThreadId child = b.worker(200);
    b.run().processes[1].ppid = 100;
    for (int i = 0; i < 60; ++i) {
      const TimePoint at = b.now();
      b.step({{Part::kForward, 10, kCompute},
              {Part::kOther, 20, {ThreadState::kKernel, {kMain, launch, popen}, SYS_clone}},
              {Part::kOther, 20, {ThreadState::kChild, {kMain, launch}, SYS_wait4}}},
             i < 3);
      const TimePoint end = at + nanos((20 + work) * 1e6);
      b.doing(child, at + nanos(20e6), end,
              {ThreadState::kOnCpuPython, {bootstrap, {"rollout", "/home/u/train.py", 18}}});
      b.doing(child, end, end + nanos(10e6), {ThreadState::kOnCpuNative, {}});
    }
    b.machine(2, 1).process_cpu(100, 0.6).process_cpu(200, (work + 10) / 50);
    b.counter(SignalId::kHostForks, b.host(), 60);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, "cpu.process_churn");
    return d.findings.empty() ? 0.0 : *d.findings.front().cost_ms_per_step;
  };
  EXPECT_NEAR(cost(0), 40, 1);
  EXPECT_NEAR(cost(15), 25, 1.5);
}

// A loop of unknown kind sends what it has in two pieces and waits for the answer.
TEST(Diagnose, ALoopThatWaitsForItsPeersAnswerIdles) {
  for (const double delayed : {1.0, 0.1}) {
    RunBuilder b;
    const Doing asks{ThreadState::kPoll, {kMain, {"pull", "/home/u/train.py", 17}}, SYS_recvfrom};
    train(b, 60, 44, 20, asks);
    b.run().steps.source = model::StepSource::kRepetition;
    b.machine(2, 1.6).process_cpu(100, 0.35);
    b.counter(SignalId::kNetDelayedAcks, b.host(), 60 * delayed);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "stall.idle_wait");
    EXPECT_EQ(d.findings.front().where->line, 17);
    EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 44, 1);
    const auto& remedies = d.findings.front().remedies;
    EXPECT_EQ(std::ranges::any_of(remedies, [](const auto& r) { return r.id == "nodelay"; }),
              delayed > 0.5);
  }
}

TEST(Diagnose, ANeighbourOnTheNextCoreTakesCachesAndMemoryToo) {
  const auto cost = [](double cores) {
    RunBuilder b;
    for (int i = 0; i < 60; ++i) {
      b.step(
          {{Part::kForward, 10, kCompute}, {Part::kForward, 8, {ThreadState::kRunQueue, {kMain}}}},
          i < 3);
    }
    b.machine(cores, 0, 0.9).process_cpu(100, 0.55);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, "cpu.noisy_neighbour");
    return d.findings.empty() ? 0.0 : *d.findings.front().cost_ms_per_step;
  };
  EXPECT_NEAR(cost(64), 8, 0.3);
  EXPECT_GT(cost(2), 8.5);
  EXPECT_LT(cost(2), 10);
}

TEST(Diagnose, StolenCoresAreANeighboursDoing) {
  for (const double stolen : {0.2, 1.2}) {
    RunBuilder b;
    for (int i = 0; i < 60; ++i) b.step({{Part::kForward, 10, kCompute}}, i < 3);
    b.machine(2, 0.4).process_cpu(100, 1);
    b.ramp(SignalId::kHostCpuSteal, b.host(), 0, stolen * to_s(b.now() - TimePoint{}) * 1e9);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, stolen > 1 ? "cpu.noisy_neighbour" : "healthy");
  }
}

TEST(Diagnose, WorkersThatIdleWhileTheirBatchesAreUnpackedIsCollating) {
  RunBuilder b;
  const Line loop{"main", "/home/u/train.py", 30};
  const Line get{"get", "/usr/lib/python3.11/multiprocessing/queues.py", 100};
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kInputWait, 12, {ThreadState::kOnCpuNative, {loop, get}}},
            {Part::kInputWait, 13, {ThreadState::kPoll, {loop, get}}},
            {Part::kForward, 10, kCompute}},
           i < 3);
  }
  workers(b, 2, 6, kDecode, 64);
  b.machine(2, 0.8).process_cpu(100, 0.7).process_cpu(200, 0.1).process_cpu(201, 0.1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.collate");
  EXPECT_NEAR(*d.findings.front().gain, 4, 0.4);
  EXPECT_EQ(d.findings.front().where->line, 30u);
}

TEST(Diagnose, TheCauseOfAChangeWithinTheRunIsNamedWithItsStep) {
  RunBuilder b;
  for (int i = 0; i < 100; ++i) b.step({{Part::kForward, 10, kCompute}}, i < 3);
  for (int i = 0; i < 100; ++i) {
    b.step({{Part::kForward, 10, kCompute},
            {Part::kOther, 10, {ThreadState::kSleep, {kMain}, SYS_clock_nanosleep}}});
  }
  b.machine(2, 1).process_cpu(100, 1);
  b.run().steps.changes.push_back(
      {100, b.run().steps.steps[100].begin, Nanos(10'000'000), Nanos(20'000'000)});
  const Diagnosis d = diagnose(b.build());
  EXPECT_EQ(d.verdict, "stall.idle_wait");
  EXPECT_NE(d.headline.find("step 100"), std::string::npos) << d.headline;
  EXPECT_NE(d.headline.find("sleeps"), std::string::npos) << d.headline;
}

TEST(Diagnose, TheLineOfAChangeIsTheOneThatGrew) {
  const Line always{"normalise", "/home/u/data.py", 5}, late{"augment", "/home/u/data.py", 40};
  for (const double ms : {8.0, 2.0}) {  // of 12; below, it is not what most of the time goes into
    RunBuilder b;
    for (int i = 0; i < 200; ++i) {
      const bool slow = i >= 100;
      std::vector<RunBuilder::PartTime> parts = {
          {Part::kForward, 10, kCompute},
          {Part::kOther, 12, {ThreadState::kSleep, {kMain, always}, SYS_clock_nanosleep}}};
      if (slow) {
        parts.push_back(
            {Part::kOther, 2 * ms, {ThreadState::kSleep, {kMain, late}, SYS_clock_nanosleep}});
      }
      b.step(parts, i < 3);
    }
    const model::Step& first = b.run().steps.steps[100];
    b.run().steps.changes.push_back(
        {first.index, first.begin, nanos(22e6), nanos((22 + 2 * ms) * 1e6)});
    b.machine(2, 1).process_cpu(100, 0.5);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "stall.idle_wait");
    EXPECT_EQ(d.findings.front().where->line, ms > 6 ? 40 : 5) << d.headline;
  }
}

TEST(Diagnose, WhatIsCompressedIntoAFileIsSavedAndWhatIsReadIsNot) {
  for (const std::string function : {"write", "read"}) {
    RunBuilder b;
    const Line gzip{function, "/usr/lib/python3.11/gzip.py", 289};
    for (int i = 0; i < 100; ++i) {
      b.step({{Part::kForward, 10, kCompute}}, i < 3);
      if (i % 10 == 9) {
        b.step({{Part::kForward, 10, kCompute},
                {Part::kOther, 100, {ThreadState::kOnCpuNative, {kMain, gzip}}}});
      }
    }
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict == "stall.checkpoint", function == "write") << d.verdict;
  }
}

TEST(Diagnose, ThreadsThatSpinInUserSpaceDoNoWork) {
  const Line spin{std::string(model::kSpinWaitFrame), "", 0, model::FrameKind::kNative};
  for (const bool spins : {true, false}) {
    RunBuilder b;
    std::vector<model::ThreadId> pool;
    pool.reserve(7);
    for (int i = 0; i < 7; ++i) pool.push_back(b.thread(0, 101 + i));
    const TimePoint from = b.now();
    for (int i = 0; i < 60; ++i) {
      b.step(
          {{Part::kForward, 10, kCompute}, {Part::kForward, 30, {ThreadState::kRunQueue, {kMain}}}},
          i < 3);
    }
    for (const model::ThreadId thread : pool) {
      for (TimePoint at = from; at < b.now(); at += Nanos(40'000'000)) {
        const TimePoint until = at + Nanos(10'000'000);
        b.doing(thread, at, until,
                {ThreadState::kOnCpuNative, spins ? std::vector{spin} : std::vector<Line>{}});
        b.doing(thread, until, at + Nanos(40'000'000), {ThreadState::kRunQueue, {}});
      }
    }
    b.machine(2, 0).process_cpu(100, 2);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, spins ? "cpu.oversubscribed" : "healthy") << d.headline;
  }
}

TEST(Diagnose, AKilledWorkerIsMemoryOnlyIfTheKernelSaysSo) {
  for (const bool oom : {true, false}) {
    RunBuilder b;
    for (int i = 0; i < 20; ++i) b.step({{Part::kForward, 10, kCompute}});
    b.worker(200);
    b.run().processes[1].ended = true;
    b.run().processes[1].wait_status = SIGKILL;
    b.ramp(SignalId::kCgroupOomKills, b.entity(EntityKind::kCgroup, 0, "/job"), 0, oom ? 1 : 0);
    EXPECT_EQ(diagnose(b.build(true, 1 << 8)).verdict, oom ? "mem.killed" : "crash.signal");
  }
}

TEST(Diagnose, MemoryThatGrowsUntilTheEndLeaksAndACacheThatFillsDoesNot) {
  for (const bool leak : {true, false}) {
    RunBuilder b;
    for (int i = 0; i < 100; ++i) b.step({{Part::kForward, 10, kCompute}}, i < 3);
    b.machine(2, 1);
    b.gauge(SignalId::kMemAvailable, b.host(), 4e9);
    if (leak) {
      b.ramp(SignalId::kProcRssAnon, b.process_entity(100), 300e6, 500e6);
    } else {
      b.ramp(SignalId::kProcRssAnon, b.process_entity(100), 300e6, 700e6);
      for (model::Reading& r : b.run().series.back().readings) r.value = std::min(r.value, 500e6);
    }
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, leak ? "mem.leak" : "healthy");
    if (leak) {
      EXPECT_FALSE(d.findings.front().gain);
      EXPECT_NEAR(*d.findings.front().cost_bytes, 2e6, 0.2e6);
      EXPECT_EQ(d.findings.front().remedies.back().id, "heap");  // nobody is seen to keep it
    }
  }
}

}  // namespace
}  // namespace flatout::diagnose
