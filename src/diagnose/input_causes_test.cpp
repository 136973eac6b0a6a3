// Causes of the input that need a second look: look-ups of files on a core, workers on too few
// cores, helpers beside a pool; each with a near miss.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <algorithm>

#include "base/contains.h"
#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

TEST(InputCauses, KernelTimeWithoutReadsIsLookUpsUnlessSomethingElseIsSeen) {
  struct Case {
    const char* call;  // "": none is seen
    double writes;     // for each read
    bool lookups;
  };
  for (const auto& [name, writes, seen] :
       {Case{"fstatat64", 0, true}, Case{"malloc", 0, true}, Case{"malloc", 3, false},
        Case{"fstatat64", 3, true}, Case{"__memmove_avx_unaligned", 0, false},
        Case{"__clock_gettime", 0, false}, Case{"[vdso]", 0, false}, Case{"", 0, false}}) {
    RunBuilder b;
    train(b, 60, 20, 10);
    const Line call{name, "/lib/libc.so.6", 0, model::FrameKind::kUnderPython};
    const Doing known = *name == 0 ? Doing{ThreadState::kOnCpuNative, {kItem}}
                                   : Doing{ThreadState::kOnCpuNative, {kItem, call}};
    for (int w = 0; w < 2; ++w) {
      const model::ThreadId t = b.worker(200 + w);
      for (TimePoint at = b.run().begin; at + nanos(60e6) <= b.now(); at += nanos(60e6)) {
        b.slice(t, SliceKind::kFetch, at, at + nanos(60e6), 16, w);
        b.doing(t, at, at + nanos(55e6), {ThreadState::kKernel, {kItem}});
        // Native frames are seen in few readings.
        b.doing(t, at + nanos(55e6), at + nanos(60e6), known);
      }
    }
    b.machine(2, 0.1).process_cpu(100, 0.3).process_cpu(200, 0.1, 0.7).process_cpu(201, 0.1, 0.7);
    for (const int32_t pid : {200, 201}) {  // one little read for each sample, and the queues
      b.counter(SignalId::kProcReadCalls, b.process_entity(pid), 60 * 26 / 2.0);
      b.counter(SignalId::kProcReadChars, b.process_entity(pid), 60 * 16 * 200 / 2.0);
      b.counter(SignalId::kProcWriteCalls, b.process_entity(pid), writes * 60 * 26 / 2.0);
    }
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict == "input.small_files", seen) << name << writes << d.headline;
    EXPECT_EQ(find(d, "input.decode_cpu") == nullptr, seen) << name << writes;
  }
}

// The training thread draws what the workers are to fetch, sample by sample. Or it takes as long to
// take the batches, whoever wrote the loop over the loader.
TEST(InputCauses, TheOrderOfSamplesIsWorkedOutInTheTrainingThread) {
  const Line next{"__next__", "/x/site-packages/torch/utils/data/dataloader.py", 700};
  const Line draw{"__iter__", "/home/u/data.py", 17, model::FrameKind::kGenerator};
  for (const bool draws : {true, false}) {
    RunBuilder b;
    train(b, 60, 20, 10,
          {ThreadState::kOnCpuPython,
           draws ? std::vector<Line>{kMain, next, draw} : std::vector<Line>{kMain, next}});
    workers(b, 1, 2, kDecode, 28);
    b.machine(2, 1).process_cpu(100, 1).process_cpu(200, 0.1);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(find(d, "input.decode_cpu") != nullptr, draws) << d.headline;
    if (!draws) continue;
    EXPECT_EQ(d.verdict, "input.decode_cpu");
    EXPECT_EQ(find(d, "input.decode_cpu")->where->line, draw.line);
    EXPECT_NEAR(*find(d, "input.decode_cpu")->gain, 3, 0.2);
  }
}

// An archive that is opened for each sample: its members become objects, and the collector runs.
TEST(InputCauses, CollectionsThatASearchSetsOffAreTheSearchs) {
  const Line list{"_RealGetContents", "/usr/lib/python3.11/zipfile.py", 1373};
  for (const bool inside : {true, false}) {
    RunBuilder b;
    train(b, 60, 40, 10);
    Doing collects{ThreadState::kOnCpuPython,
                   inside ? std::vector<Line>{kItem, list} : std::vector<Line>{kItem}};
    collects.flags = model::kGcRunning;
    workers(b, 1, {{26, {ThreadState::kOnCpuPython, {kItem, list}}}, {22, collects}, {2, kDecode}});
    b.machine(2, 0.8).process_cpu(100, 0.2).process_cpu(200, 1);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "input.random_seek") << d.headline;
    EXPECT_EQ(find(d, "cpu.gc") == nullptr, inside);
    EXPECT_EQ(*d.findings.front().gain > 4, inside) << *d.findings.front().gain;
  }
}

// The training thread's pool finds room on the two cores, and so does a helper; beside workers it
// does not. What these wait for cores goes with their work. Where it is the pool that crowds the
// cores, it stays.
TEST(InputCauses, WorkersWaitForCoresForTheirOwnWorkUnlessAPoolAloneCrowdsThem) {
  double gains[2] = {};
  for (const int pool : {1, 3}) {
    RunBuilder b;
    std::vector<model::ThreadId> threads;
    for (int i = 0; i < pool; ++i) threads.push_back(b.thread(0, 101 + i));
    const model::ThreadId helper = b.thread(0, 110);
    for (int i = 0; i < 60; ++i) {
      const TimePoint begin = b.now();
      b.step({{Part::kInputWait, 12, kQueueWait}, {Part::kForward, 28, kCompute}}, i < 3);
      for (const model::ThreadId t : threads) {
        b.doing(t, begin + nanos(12e6), b.now(), {ThreadState::kOnCpuNative, {}});
      }
      b.doing(helper, begin, begin + nanos(16e6), {ThreadState::kOnCpuPython, {kMain}});
    }
    workers(b, 2, {{20, kDecode}, {60, {ThreadState::kRunQueue, {kItem}}}});
    b.machine(2, 0).process_cpu(100, 1.4).process_cpu(200, 0.25).process_cpu(201, 0.25);
    const Diagnosis d = diagnose(b.build());
    const Finding* f = find(d, "input.decode_cpu");
    gains[pool > 1] = f != nullptr ? *f->gain : 1;
  }
  EXPECT_GT(gains[0], 1.38);
  EXPECT_LT(gains[1], 1.35);
}

// The loop runs over a progress bar around its loader, which decodes in the training thread; or the
// bar draws all that time.
TEST(InputCauses, WhatAProgressBarHandsOnIsNoLogging) {
  const Line bar{"__iter__", "/x/site-packages/tqdm/std.py", 1186};
  const Line fetch{"fetch", "/x/site-packages/torch/utils/data/_utils/fetch.py", 54};
  const Line draw{"print_status", "/x/site-packages/tqdm/std.py", 450};
  for (const bool draws : {false, true}) {
    for (const auto kind : {model::FrameKind::kPython, model::FrameKind::kGenerator}) {
      Line wrapper = bar;
      wrapper.kind = kind;
      RunBuilder b;
      train(b, 60, 20, 10,
            draws ? Doing{ThreadState::kOnCpuPython, {kMain, wrapper, draw}}
                  : Doing{ThreadState::kOnCpuNative, {kMain, wrapper, fetch, kItem}});
      for (TimePoint at = b.run().begin; at + nanos(30e6) <= b.now(); at += nanos(30e6))
        if (!draws) b.slice(b.trainer(), SliceKind::kFetch, at, at + nanos(20e6), 16);
      b.machine(2, 1).process_cpu(100, 1);
      const Diagnosis d = diagnose(b.build());
      EXPECT_EQ(d.verdict, draws ? "stall.logging" : "input.decode_cpu") << d.headline;
      EXPECT_EQ(find(d, "stall.logging") == nullptr, !draws);
    }
  }
}

TEST(InputCauses, LookUpsOfFilesAreKnownByTheirPythonFunctions) {
  struct Case {
    const char *function, *file;
    bool looks_up;
  };
  for (const auto& [function, file, looks_up] :
       {Case{"getmtime", "/usr/lib/python3.10/genericpath.py", true},
        Case{"getmtime", "<frozen genericpath>", true}, Case{"walk", "<frozen os>", true},
        Case{"realpath", "<frozen posixpath>", true}, Case{"join", "<frozen posixpath>", false},
        Case{"glob1", "/usr/lib/python3.12/glob.py", true}}) {
    RunBuilder b;
    train(b, 60, 20, 10);
    workers(b, 2, {{60, {ThreadState::kOnCpuPython, {kItem, {function, file, 55}}}}});
    b.machine(2, 0.1).process_cpu(100, 0.3).process_cpu(200, 0.8).process_cpu(201, 0.8);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, looks_up ? "input.small_files" : "input.decode_cpu") << function << file;
    EXPECT_EQ(d.findings.front().where->line, kItem.line);
  }
}

// Twenty batches of a sample each, a step: the workers idle, their threads and the training thread
// are at the queue. With fewer, larger ones the cores that this takes are free, too; those of a
// pool that computes for the samples are not.
TEST(InputCauses, WhatBothSidesTakeToPassTinyBatchesGoesWithThePassing) {
  const Line get{"get", "/usr/lib/python3.11/multiprocessing/queues.py", 103};
  const Line serve{"_serve", "/usr/lib/python3.11/multiprocessing/resource_sharer.py", 138};
  for (const bool passes : {true, false}) {
    RunBuilder b;
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kInputWait, 60, {ThreadState::kPoll, {kMain, get}}},
              {Part::kInputWait, 35, {ThreadState::kOnCpuNative, {kMain, get}}},
              {Part::kForward, 5, kCompute}},
             i < 3);
    }
    workers(b, 2, 0.1, {ThreadState::kOnCpuNative, {kItem}}, 9.9);
    for (model::Slice& s : b.run().slices) s.value = 1;
    for (int w = 0; w < 2; ++w) {
      const model::ThreadId t = b.thread(static_cast<model::ProcessId>(1 + w), 300 + w);
      for (TimePoint at = b.run().begin; at < b.now(); at += nanos(10e6)) {
        const std::vector<Line> stack = passes ? std::vector<Line>{serve} : std::vector<Line>{};
        b.doing(t, at, at + nanos(5e6), {ThreadState::kOnCpuNative, stack});
      }
    }
    b.machine(2, 0.6).process_cpu(100, 0.4).process_cpu(200, 0.5).process_cpu(201, 0.5);
    const Diagnosis d = diagnose(b.build());
    const Finding* f = find(d, "input.collate");
    ASSERT_NE(f, nullptr) << d.headline;
    EXPECT_NEAR(*f->cost_ms_per_step, passes ? 95 : 47, 2) << "100 ms of their cores, of two";
    EXPECT_EQ(f->remedies.front().id, "batch_in_workers");
  }
}

TEST(InputCauses, WorkersOnOneCoreAreAffinityWhereOthersAreFree) {
  for (const double idle : {6.67, 0.0}) {
    RunBuilder b;
    train(b, 60, 20, 10);
    workers(b, 2,
            {{30, {ThreadState::kOnCpuNative, {kItem}}}, {30, {ThreadState::kRunQueue, {kItem}}}});
    for (const int64_t pid : {200, 201}) {
      b.gauge(SignalId::kProcAllowedCores, b.process_entity(pid), 1);
    }
    b.machine(8, idle, 6.67 - idle).process_cpu(100, 0.33);
    b.process_cpu(200, 0.5).process_cpu(201, 0.5);
    b.gauge(SignalId::kProcAllowedCores, b.process_entity(100), 8);
    b.run().info["pid.200.affinity.set_at"] = "/home/u/hosts.py:12 in set_up";
    const Diagnosis d = diagnose(b.build());
    const Finding* f = find(d, "cpu.affinity");
    ASSERT_EQ(f != nullptr, idle > 0) << d.headline;
    if (f == nullptr) continue;
    // 30 ms of 60 in the queue, two side by side.
    EXPECT_NEAR(*f->cost_ms_per_step, 15, 2);
    EXPECT_EQ(f->where->line, 12);
    EXPECT_EQ(find(d, "input.decode_cpu"), nullptr) << "its time doubles on a shared core";
  }
}

TEST(InputCauses, APoolOfOneLacksWorkersWhereTheOtherCoreIdles) {
  for (const double idle : {0.9, 0.0}) {
    RunBuilder b;
    train(b, 60, 27, 3);
    workers(b, 1, 30, kDecode);
    b.machine(2, idle, 0.9 - idle).process_cpu(100, 0.1).process_cpu(200, 1);
    EXPECT_EQ(diagnose(b.build()).verdict, idle > 0 ? "input.too_few_workers" : "input.decode_cpu");
  }
}

// A thread prepares a batch in 6 ms and begins the next when it is told to: at once, or only once
// the step is over. And one that lasts longer than the step: it bounds whenever it begins.
TEST(InputCauses, ProducersThatWorkOnlyWhileTheStepWaitsTakeTurnsWithIt) {
  const Line join{"join", "/usr/lib/python3.11/queue.py", 90};
  const Line asks{"producer", "/home/u/data.py", 24}, puts{"producer", "/home/u/data.py", 23};
  const Line prepare{"producer", "/home/u/data.py", 19};
  enum Case { kTurns, kAhead, kFull, kLong };
  for (const Case at : {kTurns, kAhead, kFull, kLong}) {
    for (const bool process : {false, true}) {
      RunBuilder b;
      const double work = at == kLong ? 40 : 6;
      const double wait = at == kFull ? 0 : at == kAhead ? 3 : work, own = 14;
      const model::ThreadId t = process ? b.worker(200) : b.thread(0, 200);
      for (int i = 0; i < 60; ++i) {
        const TimePoint begin = b.now();
        b.step({{Part::kInputWait, wait, {ThreadState::kLock, {kMain}}},
                {Part::kForward, own, kCompute}},
               i < 3);
        const double before = at == kFull || at == kAhead ? own - 2 * (at == kAhead) : 0;
        const TimePoint works = begin + nanos(before * 1e6);
        const TimePoint done = std::min(works + nanos(work * 1e6), b.now());
        const Doing rests{process ? ThreadState::kPoll : ThreadState::kLock,
                          {at == kFull ? puts : asks, join}};
        b.doing(t, begin, works, rests);
        b.doing(t, works, done, {ThreadState::kOnCpuNative, {prepare}});
        b.doing(t, done, b.now(), rests);
      }
      const double busy = work / (wait + own);
      b.machine(4, 4 - 0.7 - busy).process_cpu(100, 0.7 + (process ? 0 : busy));
      if (process) b.process_cpu(200, busy);
      const Diagnosis d = diagnose(b.build());
      const Finding* f = find(d, "input.too_few_workers");
      const bool turns = f != nullptr && f->title.starts_with("Batches are made only while");
      ASSERT_EQ(turns, at == kTurns) << at << process << d.headline;
      if (!turns) continue;
      EXPECT_NEAR(*f->cost_ms_per_step, 6, 0.3);
      EXPECT_EQ(f->where->line, asks.line);
      EXPECT_EQ(f->remedies.front().id, "prefetch");
      EXPECT_EQ(find(d, "input.decode_cpu"), nullptr);
    }
  }
}

// Two batches in 33 ms where two steps compute 34: late now and then, the less the less they do.
TEST(InputCauses, WorkersWithHardlyAnyTimeToSpareAreWhatAStepNowAndThenWaitsFor) {
  RunBuilder b;
  train(b, 60, 3, 17);
  workers(b, 2, 33, kDecode, 7);
  b.machine(4, 1.5).process_cpu(100, 0.85).process_cpu(200, 0.82).process_cpu(201, 0.82);
  const Diagnosis d = diagnose(b.build());
  const Finding* f = find(d, "input.decode_cpu");
  ASSERT_NE(f, nullptr) << d.headline;
  // 2.6 ms of the waits; computing beside cores that come to rest gains the rest.
  EXPECT_NEAR(*f->cost_ms_per_step, 4, 0.5);
}

// Two workers that idle more than half of the time on the two cores that the training needs, too.
TEST(InputCauses, WorkersThatIdleAreACauseWhereComputingWaitsForTheirCores) {
  for (const double delayed : {0.2, 2.0}) {
    RunBuilder b;
    train(b, 60, 2, 11);
    workers(b, 2, 11, kDecode, 15);
    b.machine(2, 1.6).process_cpu(100, 0.8).process_cpu(200, 0.4).process_cpu(201, 0.4);
    b.counter(SignalId::kThreadRunDelay, b.thread_entity(100), 60 * delayed * 1e6);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(find(d, "input.decode_cpu") != nullptr, delayed > 1) << d.headline;
  }
}

// Pretraining with a worker that keeps up, then fine-tuning without one.
TEST(InputCauses, BatchesMadeInTheLoopAreACauseWhereWorkersServedItBefore) {
  RunBuilder b;
  train(b, 60, 0.1, 20);
  workers(b, 1, 19, kDecode);
  for (int i = 0; i < 60; ++i) {
    const TimePoint begin = b.now();
    b.step({{Part::kInputWait, 20, kDecode}, {Part::kForward, 20, kCompute}});
    b.slice(b.trainer(), SliceKind::kFetch, begin, begin + nanos(19.5e6), 16);
  }
  b.machine(2, 0.8).process_cpu(100, 0.9).process_cpu(200, 0.3);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.too_few_workers") << d.headline;
  EXPECT_EQ(d.findings.size(), 1U) << d.findings.back().id;
  EXPECT_EQ(d.findings.front().where->line, kItem.line);
}

// Batches that take 80 and 10 ms lie in turns, so that one of two workers gets all the long ones.
// Spread out they take 45 each; where that worker alone does something else, 10 remain.
TEST(InputCauses, HeavyBatchesOfOneWorkerRemainWorkWhereItDoesWhatTheOthersDo) {
  for (const bool same_work : {true, false}) {
    RunBuilder b;
    for (int i = 0; i < 120; ++i) {
      const double wait = i % 2 == 0 ? 75 : 0.3;
      b.step({{Part::kInputWait, wait, kQueueWait}, {Part::kForward, 5, kCompute}}, i < 3);
    }
    const Doing slow{ThreadState::kOnCpuNative, {{"resample", "/home/u/data.py", 77}}};
    for (int w = 0; w < 2; ++w) {
      const model::ThreadId t = b.worker(200 + w);
      TimePoint at = b.run().begin;
      for (int i = w; i < 120; i += 2) {
        const TimePoint end = at + nanos((w == 0 ? 80 : 10) * 1e6);
        b.slice(t, SliceKind::kFetch, at, end, 16, i);
        b.doing(t, at, end, w == 0 && !same_work ? slow : kDecode);
        at = end;
      }
    }
    b.machine(4, 2).process_cpu(100, 0.1).process_cpu(200, 0.9).process_cpu(201, 0.15);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "input.worker_skew") << d.headline;
    EXPECT_EQ(d.findings.size(), 1u);
    // A batch of the slow worker takes 40 ms a step; 22.5 where both make all, 5 of training else.
    EXPECT_NEAR(*d.findings.front().cost_ms_per_step, same_work ? 17.5 : 36, 2);
  }
}

TEST(InputCauses, WorkersThatAreSpreadOutMakeBatchesBesideEachOther) {
  const auto cost = [](double cores) {
    RunBuilder b;
    for (int i = 0; i < 120; ++i) {
      const double wait = i % 2 == 0 ? 75 : 0.3;
      b.step({{Part::kInputWait, wait, kQueueWait}, {Part::kForward, 5, kCompute}}, i < 3);
    }
    for (int w = 0; w < 2; ++w) {
      const model::ThreadId t = b.worker(200 + w);
      TimePoint at = b.run().begin;
      for (int i = w; i < 120; i += 2) {
        const TimePoint end = at + nanos((w == 0 ? 80 : 10) * 1e6);
        b.slice(t, SliceKind::kFetch, at, end, 16, i);
        b.doing(t, at, end, kDecode);
        at = end;
      }
    }
    b.machine(cores, cores - 1.2).process_cpu(100, 0.1).process_cpu(200, 0.9);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, "input.worker_skew") << d.headline;
    return d.findings.empty() ? 0.0 : *d.findings.front().cost_ms_per_step;
  };
  EXPECT_NEAR(cost(64), 17.5, 0.5);
  EXPECT_NEAR(cost(2), 15, 1);
}

// A process of the job's own puts what it has into a queue at once and waits for room; the queue's
// thread sends through a pipe that holds little while the training thread takes it. Where that
// thread only waits, too, passing on is not the cause.
TEST(InputCauses, AQueueWhoseEndsWaitForEachOtherIsPassingOnIfOneOfThemWorks) {
  const std::string folder = "/usr/lib/python3.11/multiprocessing/";
  const Line bootstrap{"_bootstrap", folder + "process.py", 314};
  const Line put{"put", folder + "queues.py", 89}, feed{"_feed", folder + "queues.py", 264};
  const Line send{"_send", folder + "connection.py", 384}, get{"get", folder + "queues.py", 103};
  const Line recv{"_recv", folder + "connection.py", 395}, takes{"batches", "/home/u/train.py", 62};
  for (const bool sends : {true, false}) {
    RunBuilder b;
    const model::ThreadId maker = b.worker(200), sender = b.thread(1, 201);
    b.run().processes[1].ppid = 100;
    for (int i = 0; i < 60; ++i) {
      const TimePoint at = b.now(), waited = at + nanos(16e6);
      b.step({{Part::kInputWait, 2, {ThreadState::kOnCpuNative, {kMain, takes, get, recv}}},
              {Part::kInputWait, 14, {ThreadState::kPoll, {kMain, takes, get, recv}}},
              {Part::kForward, 15, kCompute}},
             i < 3);
      const Doing blocked{ThreadState::kPoll, {feed, send}};
      b.doing(sender, at, waited, sends ? Doing{ThreadState::kKernel, {feed, send}} : blocked);
      b.doing(sender, waited, b.now(), blocked);
      b.doing(maker, at, at + nanos(4e6),
              {ThreadState::kOnCpuNative, {bootstrap, {"produce", "/home/u/feed.py", 36}}});
      b.doing(maker, at + nanos(4e6), b.now(),
              {ThreadState::kLock, {bootstrap, {"produce", "/home/u/feed.py", 40}, put}});
    }
    b.machine(2, 0.9).process_cpu(100, 0.6).process_cpu(200, sends ? 0.5 : 0.1);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict == "input.collate", sends) << d.headline;
    if (sends) {
      EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 16, 1.5);
    }
  }
}

// multiprocessing.Pool: the worker simulates for 10 ms and pickles for 20; a thread of the training
// process unpickles what comes and holds the interpreter's lock meanwhile.
TEST(InputCauses, APoolsThreadsInTheTrainingProcessPassBatchesOn) {
  const std::string folder = "/usr/lib/python3.11/multiprocessing/";
  const Line bootstrap{"_bootstrap", folder + "process.py", 314};
  const Line put{"put", folder + "queues.py", 371}, send{"send", folder + "connection.py", 206};
  const Line results{"_handle_results", folder + "pool.py", 579};
  const Line receive{"recv", folder + "connection.py", 250};
  const Line get{"main", "/home/u/train.py", 54}, simulate{"simulate", "/home/u/train.py", 34};
  RunBuilder b;
  const model::ThreadId worker = b.worker(200), handler = b.thread(0, 101);
  const Doing blocked{ThreadState::kGilWait, {kMain}};
  for (int i = 0; i < 60; ++i) {
    const TimePoint at = b.now();
    b.step({{Part::kInputWait, 10, {ThreadState::kLock, {get}}},
            {Part::kForward, 5, blocked},
            {Part::kForward, 15, kCompute}},
           i < 3);
    b.doing(worker, at, at + nanos(20e6), {ThreadState::kOnCpuPython, {bootstrap, put, send}});
    b.doing(worker, at + nanos(20e6), at + nanos(30e6),
            {ThreadState::kOnCpuPython, {bootstrap, simulate}});
    b.doing(handler, at + nanos(5e6), at + nanos(15e6),
            {ThreadState::kOnCpuPython, {results, receive}});
    b.doing(handler, at + nanos(15e6), at + nanos(35e6), {ThreadState::kPoll, {results, receive}});
  }
  b.machine(4, 2.2).process_cpu(100, 0.8).process_cpu(200, 1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.collate") << d.headline;
  const Finding& f = d.findings.front();
  // The wait and what the lock costs: 15 ms of 30 remain, and no longer begin on a cold core.
  EXPECT_NEAR(*f.gain, 2.4, 0.2);
  ASSERT_TRUE(f.where);
  EXPECT_EQ(f.where->line, 54) << "a library does it all: the line that takes the batch";
  EXPECT_EQ(find(d, "input.gil"), nullptr) << "told already";
}

// Threads make batches in Python, and the training thread waits for the lock in each step. Two hold
// each other up; one alone would be no faster in a process of its own, nor would two where there
// are no cores for them: less work then saves the waits for the lock as well.
TEST(InputCauses, TheLockIsTheCauseOnlyWhereItCostsMuchOfWhatTheWorkDoes) {
  const Doing works{ThreadState::kOnCpuPython, {kItem}}, blocked{ThreadState::kGilWait, {kItem}};
  struct Case {
    int feeders;
    double cores;
    bool lock;
  };
  for (const Case& c : {Case{1, 4, false}, {2, 4, true}, {2, 1.5, false}}) {
    RunBuilder b;
    std::vector<model::ThreadId> threads;
    threads.reserve(2);
    for (int f = 0; f < c.feeders; ++f) threads.push_back(b.thread(0, 101 + f));
    for (int i = 0; i < 60; ++i) {
      const TimePoint at = b.now();
      b.step({{Part::kInputWait, 20, kQueueWait},
              {Part::kForward, 4, {ThreadState::kGilWait, {kMain}}},
              {Part::kForward, 8, kCompute}},
             i < 3);
      const TimePoint middle = at + (b.now() - at) / 2;
      for (int f = 0; f < c.feeders; ++f) {
        b.doing(threads[f], at, middle, f == 0 ? works : blocked);
        b.doing(threads[f], middle, b.now(), f == 1 || c.feeders == 1 ? works : blocked);
      }
      b.doing(threads[0], b.now() - nanos(1e6), b.now(), blocked);
    }
    b.machine(c.cores, c.cores - 1.4).process_cpu(100, 1.4);
    for (int f = 0; f < c.feeders; ++f) {
      b.counter(SignalId::kThreadOnCpu, b.thread_entity(101 + f), b.wall_ns() / c.feeders);
    }
    model::Run run = b.build();
    const Diagnosis d = diagnose(run);
    ASSERT_EQ(d.verdict, c.lock ? "input.gil" : "input.decode_cpu") << d.headline;
    EXPECT_EQ(d.findings.front().where->line, kItem.line);
    if (!c.lock) {
      EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 24, 0.5) << "all but computing";
      continue;
    }
    EXPECT_EQ(d.findings.front().remedies.front().id, "processes");
    run.info["python.version"] = "3.14.7t";
    EXPECT_EQ(diagnose(run).findings.front().remedies.front().id, "gil_off");
  }
}

TEST(InputCauses, ThreadsBesideAPoolThatFitsAreToBlame) {
  const Line watch{"watch", "/home/u/watch.py", 24};
  RunBuilder b;
  const model::ThreadId pool = b.thread(0, 101);
  const TimePoint from = b.now();
  for (int i = 0; i < 60; ++i) {
    b.step(
        {{Part::kForward, 10, kCompute}, {Part::kForward, 20, {ThreadState::kRunQueue, {kMain}}}},
        i < 3);
  }
  b.doing(pool, from, b.now(), {ThreadState::kOnCpuNative, {}});
  for (int i = 0; i < 2; ++i) {  // a third of the time each
    const model::ThreadId helper = b.thread(0, 110 + i);
    for (TimePoint at = from; at < b.now(); at += nanos(30e6)) {
      b.doing(helper, at, at + nanos(13e6), {ThreadState::kOnCpuNative, {watch}});
      b.doing(helper, at + nanos(13e6), at + nanos(30e6), {ThreadState::kSleep, {watch}});
    }
  }
  b.machine(2, 0).process_cpu(100, 2);
  const Diagnosis d = diagnose(b.build());
  const Finding* f = find(d, "cpu.oversubscribed");
  ASSERT_NE(f, nullptr) << d.headline;
  EXPECT_EQ(f->where->line, 24);
}

// A worker and the training share one core of two: what decoding takes is what each waits for.
TEST(InputCauses, WhoSharesAPinnedCoreIsPinnedBeforeItDecodesSlowly) {
  RunBuilder b;
  const Doing queued{ThreadState::kRunQueue, {kMain}};
  const TimePoint from = b.now();
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kInputWait, 14, kQueueWait},
            {Part::kForward, 12, kCompute},
            {Part::kForward, 10, queued}},
           i < 3);
  }
  const model::ThreadId t = b.worker(200);
  for (TimePoint at = from; at < b.now(); at += nanos(36e6)) {
    b.slice(t, SliceKind::kFetch, at, at + nanos(36e6), 16, 0);
    b.doing(t, at, at + nanos(22e6), kDecode);
    b.doing(t, at + nanos(22e6), at + nanos(36e6), {ThreadState::kRunQueue, {kItem}});
  }
  b.machine(2, 1).process_cpu(100, 0.4).process_cpu(200, 0.6);
  b.gauge(SignalId::kThreadAllowedCores, b.thread_entity(100), 1);
  b.run().info["affinity.set_at"] = "/home/u/train.py:14 in place";
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "cpu.affinity") << d.headline;
  EXPECT_EQ(d.findings.front().where->line, 14);
  EXPECT_EQ(find(d, "input.decode_cpu"), nullptr);
}

TEST(InputCauses, ProgramsOfTheJobBesideItsTrainingAreNamed) {
  RunBuilder b;
  const TimePoint from = b.now();
  for (int i = 0; i < 60; ++i) {
    b.step(
        {{Part::kForward, 15, kCompute}, {Part::kForward, 15, {ThreadState::kRunQueue, {kMain}}}},
        i < 3);
  }
  for (int i = 0; i < 3; ++i) {
    b.doing(b.worker(210 + i), from, b.now(), {ThreadState::kOnCpuNative, {}});
    b.process_cpu(210 + i, 0.5);
  }
  b.machine(2, 0).process_cpu(100, 0.5);
  for (const char* pid : {"210", "211", "212"}) {
    b.run().info["program." + std::string(pid) + ".started_at"] = "/home/u/train.py:7 in main";
  }
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "cpu.oversubscribed") << d.headline;
  ASSERT_TRUE(d.findings.front().where);
  EXPECT_EQ(d.findings.front().where->line, 7) << "where they are started";
  std::vector<double> pids;
  for (const model::Evidence& e : d.findings.front().evidence)
    if (e.unit == "pid") pids.push_back(e.value);
  std::sort(pids.begin(), pids.end());
  EXPECT_EQ(pids, (std::vector<double>{210, 211, 212}));
}

TEST(InputCauses, SyncedLinesAreLoggingEvenWhereNoStepsAreKnown) {
  for (const double bytes_a_call : {4e3, 4e6}) {
    RunBuilder b;
    const TimePoint from = b.now();
    b.pass(6000);
    for (TimePoint at = from; at < b.now(); at += nanos(10e6)) {
      b.doing(b.trainer(), at, at + nanos(5e6), kCompute);
      b.doing(b.trainer(), at + nanos(5e6), at + nanos(10e6),
              {ThreadState::kDisk, {kMain, {"put", "/home/u/figures.py", 26}}, SYS_fsync});
    }
    b.machine(2, 1).process_cpu(100, 0.5);
    b.counter(SignalId::kProcWriteCalls, b.process_entity(100), 600);
    b.counter(SignalId::kProcWriteChars, b.process_entity(100), 600 * bytes_a_call);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, bytes_a_call < 1e5 ? "stall.logging" : "stall.checkpoint") << d.headline;
    EXPECT_EQ(d.findings.front().where->line, 26);
  }
}

// Two processes compute what a loop of unknown kind hands out, and the loop does little else. They
// make its batches only where they work while it does something else.
TEST(InputCauses, WorkThatAStepHandsOutIsNoInput) {
  const Line bootstrap{"_bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314};
  const Doing works{ThreadState::kOnCpuNative, {bootstrap, {"policy", "/home/u/train.py", 17}}};
  const Doing waits{ThreadState::kPoll, {bootstrap, {"actor", "/home/u/train.py", 26}}};
  for (const bool ahead : {false, true}) {
    RunBuilder b;
    const model::ThreadId actors[] = {b.worker(200), b.worker(201)};
    b.run().processes[1].ppid = b.run().processes[2].ppid = 100;
    for (int i = 0; i < 80; ++i) {
      const TimePoint at = b.now(), waited = at + nanos(17e6);
      b.step({{Part::kInputWait, 17, {ThreadState::kPoll, {kMain}}}, {Part::kCompute, 3, kCompute}},
             i < 3);
      for (const model::ThreadId actor : actors) {
        b.doing(actor, at, ahead ? b.now() : waited, works);
        if (!ahead) b.doing(actor, waited, b.now(), waits);
      }
    }
    b.run().steps.source = model::StepSource::kRepetition;
    b.machine(2, 0.1).process_cpu(100, 0.15).process_cpu(200, 0.85).process_cpu(201, 0.85);
    EXPECT_EQ(diagnose(b.build()).verdict, ahead ? "input.decode_cpu" : "healthy");
  }
}

// A C++ program whose markers say that it waits for input: what its pool does then makes batches,
// though it has nothing to do while the step computes.
TEST(InputCauses, MarkedWaitsOfAProgramAreForItsPool) {
  RunBuilder b;
  b.run().processes[0].python = false;
  const Line main{"main", "/home/u/train.cpp", 37, model::FrameKind::kNative};
  const Line warp{"warp", "/home/u/train.cpp", 25, model::FrameKind::kNative};
  const Line wait{"pthread_cond_wait", "libc.so.6", 0, model::FrameKind::kNative};
  const model::ThreadId pool[] = {b.thread(0, 101), b.thread(0, 102)};
  for (int i = 0; i < 100; ++i) {
    const TimePoint at = b.now(), made = at + nanos(15e6);
    b.step({{Part::kInputWait, 15, {ThreadState::kLock, {main, wait}}},
            {Part::kCompute, 5, {ThreadState::kOnCpuNative, {main}}}},
           i < 3);
    for (const model::ThreadId thread : pool) {
      b.doing(thread, at, made, {ThreadState::kOnCpuNative, {warp}});
      b.doing(thread, made, b.now(), {ThreadState::kLock, {wait}});
    }
  }
  b.run().steps.source = model::StepSource::kMarkers;
  b.machine(2, 0.25).process_cpu(100, 1.75);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.decode_cpu") << d.headline;
  EXPECT_EQ(d.findings.front().where->line, 25u);
}

// A C++ program whose own thread parses each sample's text between its steps.
TEST(InputCauses, TextThatAProgramParsesInItsLoopIsDecoding) {
  const Line main{"main", "/home/u/train.cpp", 58, model::FrameKind::kNative};
  const Line parse{"parse_line", "/home/u/train.cpp", 23, model::FrameKind::kNative};
  const Line number{"std::istream::operator>>", "/usr/lib/libstdc++.so.6", 0,
                    model::FrameKind::kNative};
  for (const bool text : {true, false}) {
    RunBuilder b;
    b.run().processes[0].python = false;
    const std::vector<Line> stack = text ? std::vector{main, parse, number} : std::vector{main};
    for (int i = 0; i < 100; ++i) {
      b.step({{Part::kInputWait, 15, {ThreadState::kOnCpuNative, stack}},
              {Part::kCompute, 5, {ThreadState::kOnCpuNative, {main}}}},
             i < 3);
    }
    b.run().steps.source = model::StepSource::kMarkers;
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(find(d, "input.decode_cpu") != nullptr, text) << d.headline;
    if (!text) continue;
    EXPECT_NEAR(*d.findings.front().gain, 4, 0.4);
    EXPECT_EQ(d.findings.front().where->line, 23u);
  }
}

// A C++ program that nobody marked, with a thread that parses its records: no steps are known, but
// that the training thread waits half of its time for that one.
TEST(InputCauses, AProgramWithoutStepsWaitsForItsReader) {
  for (const bool waits : {true, false}) {
    RunBuilder b;
    b.run().processes[0].python = false;
    const model::ThreadId reader = b.thread(0, 101);
    const Line main{"main", "/home/u/train.cpp", 144, model::FrameKind::kNative};
    const Line parse{"parse", "/home/u/train.cpp", 54, model::FrameKind::kNative};
    const Line wait{"pthread_cond_wait", "libc.so.6", 0, model::FrameKind::kNative};
    const TimePoint begin = b.now();
    for (int i = 0; i < 1000; ++i) {
      for (const bool input : {true, false}) {
        const TimePoint at = b.now();
        b.pass(7.5);
        const auto state = input && waits ? ThreadState::kLock : ThreadState::kOnCpuNative;
        b.doing(b.trainer(), at, b.now(),
                {state, state == ThreadState::kLock ? std::vector{main, wait} : std::vector{main}});
        b.run().steps.moments.push_back(
            {b.now(), input && waits ? Part::kInputWait : Part::kCompute});
      }
    }
    b.doing(reader, begin, b.now(), {ThreadState::kOnCpuNative, {parse}});
    b.run().steps.thread = b.trainer();
    b.run().steps.working_ahead = {reader};
    b.machine(2, waits ? 0.1 : 0, waits ? 0.4 : 0).process_cpu(100, waits ? 1.5 : 2);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, waits ? "input.decode_cpu" : "healthy") << d.headline;
    if (!waits) continue;
    EXPECT_EQ(d.findings.front().where->line, 54u);
    EXPECT_FALSE(d.findings.front().cost_ms_per_step);
    EXPECT_NEAR(d.findings.front().gain.value_or(0), 2, 0.3);
  }
}

// NumPy's FFT lets go of the interpreter's lock, as a framework's operators do. What a framework
// does before the forward pass may belong to the model.
TEST(InputCauses, FeaturesThatALibraryWorksOutInTheLoopAreInputAndAFrameworksOperatorsAreNot) {
  for (const bool numpy : {true, false}) {
    const Line features{"main", "/home/u/train.py", 9}, model{"main", "/home/u/train.py", 12};
    const Line fft{"_raw_fft", "/x/site-packages/numpy/fft/_pocketfft.py", 101};
    const Line stft{"stft", "/x/site-packages/torch/functional.py", 700};
    RunBuilder b;
    train(b, 60, 8, 2, {ThreadState::kOnCpuNative, {features, numpy ? fft : stft}},
          {ThreadState::kOnCpuNative, {model}});
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    EXPECT_EQ(d.verdict, numpy ? "input.decode_cpu" : "healthy") << d.headline;
    if (numpy) {
      EXPECT_EQ(d.findings.front().where->line, 9);
    }
  }
}

TEST(InputCauses, WhatALibraryWorksOutEveryFewStepsIsAStallAndNoInput) {
  const Line index{"main", "/home/u/train.py", 9}, model{"main", "/home/u/train.py", 12};
  const Line sort{"argsort", "/x/site-packages/numpy/_core/fromnumeric.py", 1200};
  RunBuilder b;
  for (int i = 0; i < 200; ++i) {
    b.step(
        {{Part::kInputWait, i % 10 == 4 ? 60.0 : 0.0, {ThreadState::kOnCpuNative, {index, sort}}},
         {Part::kForward, 6, {ThreadState::kOnCpuNative, {model}}}},
        i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  EXPECT_EQ(d.verdict, "stall.periodic") << d.headline;
}

// There is nothing to decode in what is in memory as tensors; a collate_fn may do what it likes.
TEST(InputCauses, TensorsInMemoryAreToBeIndexedByBatch) {
  const std::string data = "/x/site-packages/torch/utils/data/";
  const Line fetch{"fetch", data + "_utils/fetch.py", 52};
  const Doing index{ThreadState::kOnCpuNative,
                    {kMain, fetch, {"__getitem__", data + "dataset.py", 205}}};
  const Doing augment{ThreadState::kOnCpuNative,
                      {kMain, fetch, {"augmented", "/home/u/train.py", 30}}};
  for (const auto& [what, tensors] : {std::pair{index, true}, {augment, false}}) {
    RunBuilder b;
    train(b, 60, 8, 12, what);
    for (const model::Step& s : std::vector(b.run().steps.steps)) {
      b.slice(b.trainer(), SliceKind::kFetch, s.begin, s.begin + nanos(8e6), 16);
    }
    b.run().info["loader.dataset_class"] = "TensorDataset";
    b.machine(1, 0).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    const Finding* f = find(d, "input.decode_cpu");
    ASSERT_NE(f, nullptr) << d.headline;
    EXPECT_EQ(f->remedies.front().id, tensors ? "by_batch" : "feed");
    EXPECT_EQ(contains(f->title, "tensors"), tensors) << f->title;
  }
}

// The training thread makes its batches, and every 25 steps its loader, whose sampler draws an
// order. What remains is told only where it is much by itself.
TEST(InputCauses, ShortEpochsThatBeginWithALoaderMadeAnewAreNoDecoding) {
  const Line draw{"__iter__", "/x/site-packages/torch/utils/data/sampler.py", 277};
  const Line loop{"main", "/home/u/train.py", 44}, make{"make_loader", "/home/u/train.py", 32};
  struct Case {
    double start, batch;
    const char* told;
    bool decodes;
  };
  for (const Case& c : {Case{20, 0.4, "stall.periodic", false}, Case{60, 2, "stall.periodic", true},
                        Case{6, 2, "input.decode_cpu", true}}) {
    RunBuilder b;
    for (int i = 0; i < 500; ++i) {
      const bool first = i % 25 == 0;
      const TimePoint at = b.now();
      b.step(
          {{Part::kInputWait,
            first ? 0.3 * c.start : 0,
            {ThreadState::kOnCpuNative, {kMain, make}}},
           {Part::kInputWait, first ? 0.7 * c.start : 0, {ThreadState::kOnCpuNative, {loop, draw}}},
           {Part::kInputWait, c.batch, {ThreadState::kOnCpuNative, {loop, kItem}}},
           {Part::kForward, 6, kCompute}},
          i < 3);
      b.run().steps.steps.back().epoch_start = first;
      const double before = first ? c.start : 0;
      b.slice(b.trainer(), SliceKind::kFetch, at + nanos(before * 1e6),
              at + nanos((before + c.batch) * 1e6), 64, i);
    }
    b.machine(2, 0.1, 0.9).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, c.told) << d.headline << ' ' << c.start;
    EXPECT_EQ(find(d, "input.decode_cpu") != nullptr, c.decodes) << c.start;
    if (c.start < 10) continue;
    const Finding& f = d.findings.front();
    EXPECT_NEAR(*f.cost_ms_per_step, c.start / 25, 0.05 * c.start / 25);
    EXPECT_EQ(f.where->line, 44u);
    EXPECT_EQ(f.remedies.front().id, "epochs");
  }
}

}  // namespace
}  // namespace flatout::diagnose
