// Jobs that hang, fail or are ended.
#include <gtest/gtest.h>

#include <csignal>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

TEST(Diagnose, AJobWithoutProgressHangsUnlessItWorksOrEndedWell) {
  enum { kWaits, kWorks, kWaitedAndEnded, kEndedWaiting, kEndedWhileOthersWork, kGaveUp };
  for (const int variant :
       {kWaits, kWorks, kWaitedAndEnded, kEndedWaiting, kEndedWhileOthersWork, kGaveUp}) {
    RunBuilder b;
    for (int i = 0; i < 30; ++i) b.step({{Part::kForward, 10, kCompute}}, i < 3);
    const TimePoint from = b.now();
    b.pass(20'000);
    b.doing(b.trainer(), from, b.now(),
            variant == kWorks ? kCompute
                              : Doing{ThreadState::kLock, {{"recv", "/home/u/train.py", 50}}});
    if (variant == kEndedWhileOthersWork) b.doing(b.thread(0, 101), from, b.now(), kCompute);
    if (variant == kGaveUp) {  // as kWaitedAndEnded, but what it waited for was the next batch
      b.slice(b.trainer(), SliceKind::kInputWait, from + nanos(1e6), b.now(), 1);
    }
    if (variant == kWaitedAndEnded || variant == kGaveUp) {
      const TimePoint woken = b.now();
      b.pass(100);
      b.doing(b.trainer(), woken, b.now(), kCompute);
    }
    const Diagnosis d = diagnose(b.build(variant >= kWaitedAndEnded));
    const bool hangs = variant == kWaits || variant == kEndedWaiting || variant == kGaveUp;
    EXPECT_EQ(d.verdict, hangs ? "stall.hang" : "healthy") << variant;
  }
}

TEST(Diagnose, AHangShowsWhereThreadsStoodNotWhatTheyDidWhileTheyWereEnded) {
  RunBuilder b;
  for (int i = 0; i < 30; ++i) b.step({{Part::kForward, 10, kCompute}}, i < 3);
  const TimePoint from = b.now();
  b.pass(20'000);
  b.doing(b.trainer(), from, b.now(), {ThreadState::kLock, {{"get", "/home/u/train.py", 50}}});
  const TimePoint ended = b.now();
  b.pass(100);
  const Line release{"free", "/usr/lib/libc.so.6", 0, model::FrameKind::kNative};
  b.doing(b.trainer(), ended, b.now(), {ThreadState::kOnCpuNative, {release}});
  const Diagnosis d = diagnose(b.build(true, SIGINT));
  ASSERT_EQ(d.verdict, "stall.hang");
  EXPECT_EQ(d.findings.front().evidence.back().text,
            "the training thread, t of pid 100, waiting for a lock:\n"
            "  get (/home/u/train.py:50)");
}

TEST(Diagnose, AHangThatEndsByItselfIsOneUnlessSomebodyWorkedMeanwhile) {
  for (const bool works : {false, true}) {
    RunBuilder b;
    const model::ThreadId other = b.thread(0, 101);
    for (int i = 0; i < 60; ++i) {
      if (i == 40) {
        const TimePoint from = b.now();
        b.step(
            {{Part::kInputWait, 12'000, {ThreadState::kLock, {{"get", "/home/u/train.py", 50}}}}});
        b.doing(other, from, b.now(), works ? kCompute : Doing{ThreadState::kLock, {kMain}});
      } else {
        b.step({{Part::kForward, 10, kCompute}}, i < 3);
      }
    }
    const Diagnosis d = diagnose(b.build());
    if (works) {
      EXPECT_NE(d.verdict, "stall.hang");
      continue;
    }
    ASSERT_EQ(d.verdict, "stall.hang");
    const Finding& f = d.findings.front();
    EXPECT_FALSE(f.ended_the_job);
    EXPECT_EQ(f.where->line, 50);
    EXPECT_NEAR(f.evidence.front().value, 12'000, 100);
    // Every thread with its stack, the training thread's first.
    ASSERT_EQ(f.evidence.size(), 5U);
    EXPECT_EQ(f.evidence[3].text,
              "the training thread, t of pid 100, waiting for a lock:\n"
              "  get (/home/u/train.py:50)");
    EXPECT_EQ(f.evidence[4].text,
              "t of pid 100, waiting for a lock:\n  main (/home/u/train.py:10)");
  }
}

// A validation is cut out of the step behind it: waiting in vain before or behind it is a stop all
// the same, validating is none.
TEST(Diagnose, AStopBesideAValidationIsAHangThatEnded) {
  enum { kBefore, kBehind, kValidates };
  for (const int variant : {kBefore, kBehind, kValidates}) {
    RunBuilder b;
    const Doing waits{ThreadState::kLock, {{"wait", "/home/u/save.py", 38}}};
    for (int i = 0; i < 60; ++i) {
      if (i != 40) {
        b.step({{Part::kForward, 10, kCompute}}, i < 3);
        continue;
      }
      if (variant != kBehind) {
        const TimePoint from = b.now();
        b.pass(8'000);
        b.doing(b.trainer(), from, b.now(), variant == kBefore ? waits : kCompute);
        b.step({{Part::kForward, 10, kCompute}});
      } else {
        b.step({{Part::kOther, 8'000, waits}, {Part::kForward, 10, kCompute}});
      }
      b.run().steps.steps.back().validation = true;
    }
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, variant == kValidates ? "healthy" : "stall.hang") << variant;
    if (variant == kValidates) continue;
    const Finding& f = d.findings.front();
    EXPECT_EQ(f.where->line, 38);
    // 56 steps of 10 ms that count, and 8 s on top.
    EXPECT_NEAR(*f.gain, (56 * 10 + 8000) / 560.0, 0.5);
    EXPECT_NEAR(*f.cost_ms_per_step, 8000.0 / 56, 2);
  }
}

// A time limit of the job's own ends it with exit code 0: its thread is on a core at the very end,
// where it stood. One that went on from there had only waited, and of one without lines of the
// user's that is not known.
TEST(Diagnose, AHangThatTheJobItselfEndsIsOneWhereItsThreadNeverWentOn) {
  enum { kStands, kWentOn, kNoLines };
  for (const int variant : {kStands, kWentOn, kNoLines}) {
    RunBuilder b;
    for (int i = 0; i < 60; ++i) b.step({{Part::kForward, 10, kCompute}}, i < 3);
    const Line put{"put", "/home/u/metrics.py", 48}, close{"close", "/home/u/train.py", 99};
    const TimePoint from = b.now();
    b.pass(12'000);
    const Line none{"worker", "/usr/lib/libengine.so", 0, model::FrameKind::kNative};
    const std::vector<Line> stood =
        variant == kNoLines ? std::vector{none} : std::vector{kMain, put};
    b.doing(b.trainer(), from, b.now(), {ThreadState::kLock, stood});
    const TimePoint end = b.now();
    b.pass(5);
    b.doing(b.trainer(), end, b.now(),
            {ThreadState::kOnCpuNative, variant == kWentOn ? std::vector{kMain, close} : stood});
    EXPECT_EQ(diagnose(b.build(true, 0)).verdict, variant == kStands ? "stall.hang" : "healthy");
  }
}

TEST(Diagnose, AnExceptionIsAVerdictWithItsLine) {
  RunBuilder b;
  for (int i = 0; i < 2; ++i) b.step({{Part::kForward, 10, kCompute}});
  b.run().info["exception.type"] = "RuntimeError";
  b.run().info["exception.message"] =
      "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call "
      "last):\n  File \"/x/site-packages/torch/utils/data/_utils/worker.py\", line 3, in loop\n"
      "  File \"/home/u/data.py\", line 17, in __getitem__\n    raise ValueError\n";
  const Diagnosis d = diagnose(b.build(true, 1 << 8));
  ASSERT_EQ(d.verdict, "crash.exception");
  EXPECT_EQ(d.findings.front().where->file, "/home/u/data.py");
  EXPECT_EQ(d.findings.front().where->line, 17);
  EXPECT_TRUE(d.findings.front().ended_the_job);
}

TEST(Diagnose, AJobThatFailedWithoutAnExceptionIsAVerdictToo) {
  for (const int code : {0, 7, 128 + SIGINT, 128 + SIGTERM}) {
    RunBuilder b;
    for (int i = 0; i < 40; ++i) b.step({{Part::kForward, 10, kCompute}}, i < 3);
    b.worker(101);
    model::Process& child = b.run().processes[1];
    child.ended = true;
    child.wait_status = 3 << 8;
    const Diagnosis d = diagnose(b.build(true, code << 8));
    if (code == 0 || code == 128 + SIGINT) {
      EXPECT_EQ(d.verdict, "healthy") << code;
      continue;
    }
    ASSERT_EQ(d.verdict, code == 7 ? "crash.exception" : "crash.signal") << code;
    const Finding& f = d.findings.front();
    EXPECT_TRUE(f.ended_the_job);
    EXPECT_EQ(f.evidence[0].value, code);
    EXPECT_EQ(f.evidence[1].text, "pid 101 (python) ended with exit code 3");
  }
}

TEST(Diagnose, WhatAFunctionOfTheUsersIsCalledSaysNothing) {
  // A data set that names its methods like a collate function, a loop that sleeps in a
  // "save_checkpoint", and files in the home of somebody called rich.
  RunBuilder decoder;
  train(decoder, 60, 20, 10);
  workers(decoder, 2, 60,
          {ThreadState::kOnCpuNative, {kMain, {"collate_labels", "/home/u/data.py", 5}}});
  decoder.machine(2, 0.05).process_cpu(100, 0.33).process_cpu(200, 0.8).process_cpu(201, 0.8);
  const Diagnosis decodes = diagnose(decoder.build());
  EXPECT_EQ(decodes.verdict, "input.decode_cpu");
  EXPECT_EQ(decodes.findings.front().where->line, 5);

  RunBuilder sleeper;
  const Doing sleeps{ThreadState::kSleep, {kMain, {"save_checkpoint", "/home/rich/train.py", 30}}};
  for (int i = 0; i < 60; ++i) {
    sleeper.step({{Part::kForward, 10, kCompute}, {Part::kOther, 10, sleeps}}, i < 3);
  }
  const Diagnosis idles = diagnose(sleeper.build());
  EXPECT_EQ(idles.verdict, "stall.idle_wait");
  EXPECT_EQ(idles.findings.front().where->line, 30);
}

TEST(Diagnose, AFatalSignalIsBlamedOnTheLineThatItStruck) {
  RunBuilder b;
  for (int i = 0; i < 20; ++i) b.step({{Part::kForward, 10, kCompute}});
  b.run().processes[0].ended = true;
  b.run().processes[0].wait_status = SIGABRT;
  b.run().info["fault.stack"] =
      "Fatal Python error: Aborted\n\nCurrent thread 0x00007f1 (most recent call first):\n"
      "  File \"/x/site-packages/torch/nn/functional.py\", line 3 in relu\n"
      "  File \"/home/u/net.py\", line 17 in forward\n"
      "  File \"/home/u/train.py\", line 40 in <module>\n";
  const Diagnosis d = diagnose(b.build(true, SIGABRT));
  ASSERT_EQ(d.verdict, "crash.signal");
  EXPECT_EQ(d.findings.front().where->file, "/home/u/net.py");
  EXPECT_EQ(d.findings.front().where->line, 17);
  EXPECT_EQ(d.findings.front().where->function, "forward");
}

TEST(Diagnose, AFatalSignalOutsideOfPythonIsNotBlamedOnTheLastLineSeen) {
  for (const bool told : {true, false}) {
    RunBuilder b;
    for (int i = 0; i < 20; ++i) b.step({{Part::kForward, 10, kCompute}});
    b.run().processes[0].ended = true;
    b.run().processes[0].end = b.now();
    b.run().processes[0].wait_status = SIGABRT;
    if (told) {
      b.run().info["fault.stack"] =
          "Fatal Python error: Aborted\n\nStack (most recent call first):\n  <no Python frame>\n";
    }
    const Diagnosis d = diagnose(b.build(true, SIGABRT));
    ASSERT_EQ(d.verdict, "crash.signal");
    EXPECT_EQ(d.findings.front().where.has_value(), !told);
  }
}

TEST(Diagnose, ASignalAfterTheInterpreterHasEndedStruckNoLineOfIts) {
  for (const bool ending : {true, false}) {
    RunBuilder b;
    for (int i = 0; i < 20; ++i) b.step({{Part::kBackward, 10, kCompute}});
    const TimePoint from = b.now();
    b.pass(60);
    if (ending) b.doing(b.trainer(), from, b.now(), {ThreadState::kOnCpuNative, {}});
    b.run().processes[0].ended = true;
    b.run().processes[0].end = b.now();
    b.run().processes[0].wait_status = SIGABRT;
    const Diagnosis d = diagnose(b.build(true, SIGABRT));
    ASSERT_EQ(d.verdict, "crash.signal");
    EXPECT_EQ(d.findings.front().where.has_value(), !ending);
    const bool said = std::ranges::any_of(d.findings.front().evidence, [](const auto& e) {
      return e.text.find("Python had ended") != std::string::npos;
    });
    EXPECT_EQ(said, ending);
  }
}

TEST(Diagnose, WhereASignalThatOthersSendFindsTheJobIsNoLineToBlame) {
  for (const auto& [signal, advice] : {std::pair{SIGKILL, "killer"},
                                       {SIGTERM, "sender"},
                                       {SIGXCPU, "cpu_limit"},
                                       {SIGSEGV, "stacks"}}) {
    RunBuilder b;
    for (int i = 0; i < 20; ++i) b.step({{Part::kBackward, 10, kCompute}});
    b.run().processes[0].ended = true;
    b.run().processes[0].end = b.now();
    b.run().processes[0].wait_status = signal;
    const Diagnosis d = diagnose(b.build(true, signal));
    ASSERT_EQ(d.verdict, "crash.signal") << signal;
    EXPECT_EQ(d.findings.front().where.has_value(), signal == SIGSEGV) << signal;
    EXPECT_EQ(d.findings.front().remedies.front().id, advice);
  }
}

TEST(Diagnose, AnExceptionThatAbortsIsNoSignalOfItsOwn) {
  RunBuilder b;
  for (int i = 0; i < 20; ++i) b.step({{Part::kForward, 10, kCompute}});
  b.run().processes[0].ended = true;
  b.run().processes[0].wait_status = SIGABRT;
  b.run().info["exception.type"] = "std::out_of_range";
  b.run().info["exception.message"] = "label 7";
  EXPECT_EQ(diagnose(b.build(true, SIGABRT)).verdict, "crash.exception");
}

TEST(Diagnose, AFaultInAHelperIsWhatBrokeItsPool) {
  for (const int signal : {SIGSEGV, SIGTERM}) {
    RunBuilder b;
    b.worker(200);
    for (int i = 0; i < 20; ++i) b.step({{Part::kForward, 10, kCompute}});
    b.run().processes[1].ended = true;
    b.run().processes[1].end = b.now();
    b.run().processes[1].wait_status = signal;
    b.run().info["exception.type"] = "RuntimeError";
    b.run().info["exception.message"] = "the result never came";
    const Diagnosis d = diagnose(b.build(true, 1 << 8));
    EXPECT_EQ(d.verdict, signal == SIGSEGV ? "crash.signal" : "crash.exception");
  }
}

/// Twenty steps, and a helper that ended in this way.
RunBuilder helper_ended(int wait_status) {
  RunBuilder b;
  b.worker(200);
  for (int i = 0; i < 20; ++i) b.step({{Part::kForward, 10, kCompute}});
  b.run().processes[1].ended = true;
  b.run().processes[1].end = b.now();
  b.run().processes[1].wait_status = wait_status;
  return b;
}

TEST(Diagnose, WhoKilledAHelperForMemoryEndedTheJob) {
  for (const bool oom : {true, false}) {
    RunBuilder b = helper_ended(SIGKILL);
    b.run().info["exception.type"] = "RuntimeError";
    b.run().info["exception.message"] = "the index went away, exit code -9";
    b.ramp(SignalId::kCgroupOomKills, b.entity(EntityKind::kCgroup, 0, "/"), 0, oom ? 1 : 0);
    EXPECT_EQ(diagnose(b.build(true, 1 << 8)).verdict, oom ? "mem.killed" : "crash.exception");
  }
}

TEST(Diagnose, WhatAProcessRaisedFirstIsTheCause) {
  for (const int code : {1, 0}) {
    RunBuilder b = helper_ended(code << 8);
    b.run().info["exception.type"] = "RuntimeError";
    b.run().info["exception.message"] = "the reader ended early";
    b.run().info["exception.file"] = "/home/u/train.py";
    b.run().info["exception.line"] = "75";
    b.run().info["pid.200.exception.type"] = "KeyError";
    b.run().info["pid.200.exception.file"] = "/home/u/reader.py";
    b.run().info["pid.200.exception.line"] = "9";
    const Diagnosis d = diagnose(b.build(true, 1 << 8));
    ASSERT_EQ(d.verdict, "crash.exception");
    EXPECT_EQ(d.findings.front().where->line, code != 0 ? 9 : 75);
    EXPECT_NE(d.findings.front().title.find(code != 0 ? "KeyError" : "RuntimeError"),
              std::string::npos);
  }
}

TEST(Diagnose, AThreadThatRaisedIsWhyItsQueueStayedEmpty) {
  for (const char* type : {"Empty", "ZeroDivisionError"}) {
    RunBuilder b;
    for (int i = 0; i < 20; ++i) b.step({{Part::kForward, 10, kCompute}});
    b.run().info["exception.type"] = type;
    b.run().info["exception.file"] = "/home/u/train.py";
    b.run().info["exception.line"] = "56";
    b.run().info["thread_exception.type"] = "ValueError";
    b.run().info["thread_exception.message"] = "could not broadcast\nat all";
    b.run().info["thread_exception.file"] = "/home/u/feeder.py";
    b.run().info["thread_exception.line"] = "42";
    const Diagnosis d = diagnose(b.build(true, 1 << 8));
    ASSERT_EQ(d.verdict, "crash.exception");
    const bool gave_up = std::string_view(type) == "Empty";
    EXPECT_EQ(d.findings.front().where->line, gave_up ? 42 : 56) << type;
    if (gave_up) {
      EXPECT_EQ(d.findings.front().evidence[0].text, "could not broadcast");
    }
  }
}

TEST(Diagnose, AForkThatFailsForWantOfPidsIsTheUnreapedChildrensDoing) {
  for (const double dead : {64.0, 3.0}) {
    RunBuilder b;
    for (int i = 0; i < 20; ++i) b.step({{Part::kForward, 10, kCompute}});
    b.run().info["exception.type"] = "BlockingIOError";
    b.run().info["exception.message"] = "[Errno 11] Resource temporarily unavailable";
    b.run().info["exception.file"] = "/home/u/train.py";
    b.run().info["exception.line"] = "21";
    const model::EntityId group = b.entity(EntityKind::kCgroup, 0, "/");
    b.gauge(SignalId::kCgroupPidsMax, group, 80);
    b.ramp(SignalId::kCgroupPids, group, 3, 71);
    b.ramp(SignalId::kHostZombies, b.host(), 0, dead);
    const Diagnosis d = diagnose(b.build(true, 1 << 8));
    EXPECT_EQ(d.verdict, dead > 10 ? "cpu.zombies" : "crash.exception");
    EXPECT_TRUE(d.findings.front().ended_the_job);
    EXPECT_EQ(d.findings.front().where->line, 21);
  }
}

TEST(Diagnose, AHangIsBlamedOnTheThreadThatRaised) {
  RunBuilder b;
  for (int i = 0; i < 20; ++i) b.step({{Part::kForward, 10, kCompute}});
  const TimePoint from = b.now();
  b.pass(20'000);
  b.doing(b.trainer(), from, b.now(), {ThreadState::kLock, {{"get", "/home/u/train.py", 50}}});
  b.run().info["thread_exception.type"] = "ValueError";
  b.run().info["thread_exception.file"] = "/home/u/feeder.py";
  b.run().info["thread_exception.line"] = "42";
  const Diagnosis d = diagnose(b.build(false));
  ASSERT_EQ(d.verdict, "stall.hang");
  EXPECT_EQ(d.findings.front().where->line, 42);
}

}  // namespace
}  // namespace flatout::diagnose
