// Workers that start anew for each epoch or validation, and validations that come too often.
#include <gtest/gtest.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

TEST(WorkerRestart, ProcessesThatReplaceEachOtherEveryEpochAreARestart) {
  for (const bool anew : {true, false}) {
    RunBuilder b;
    std::vector<TimePoint> epochs;
    const Line fork{"_launch", "/usr/lib/python3.11/multiprocessing/popen_fork.py", 70};
    const Doing spawn{ThreadState::kOnCpuPython, {kMain, {"batches", "/home/u/data.py", 55}, fork}};
    for (int epoch = 0; epoch < 6; ++epoch) {
      epochs.push_back(b.now());
      for (int i = 0; i < 20; ++i) {
        const bool first = anew && i == 0;
        b.step({{Part::kInputWait, first ? 20.0 : 0.0, spawn},
                {Part::kInputWait, first ? 300.0 : 4.0, kQueueWait},
                {Part::kForward, 10, kCompute}},
               epoch == 0 && i < 3);
      }
    }
    epochs.push_back(b.now());
    int32_t pid = 200;
    const size_t spans = anew ? epochs.size() - 1 : 1;
    for (size_t e = 0; e < spans; ++e) {
      for (int w = 0; w < 2; ++w) {
        const model::ThreadId t = b.worker(pid++);
        b.run().processes.back().ppid = 100;
        b.doing(t, epochs[e] + nanos(w * 1e6), anew ? epochs[e + 1] - nanos(2e6) : epochs.back(),
                {ThreadState::kOnCpuNative, {kItem}});
      }
    }
    b.machine(2, 0.1).process_cpu(100, 0.5);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict == "input.worker_restart", anew) << d.headline;
    if (!anew) continue;
    const Finding& f = d.findings.front();
    EXPECT_NEAR(*f.cost_ms_per_step, 5 * 316.0 / 117, 1) << "the warm-up is no part of it";
    EXPECT_EQ(f.where->line, 55);
  }
}

// A library's threads within the processes are busy at the starts alone, which may make up most of
// the job's time.
TEST(WorkerRestart, AStartIsOneOfAProcessWhateverItsThreadsAndHoweverLongItTakes) {
  RunBuilder b;
  const double starts[] = {300, 500, 7000};
  int32_t pid = 200;
  for (int epoch = 0; epoch < 3; ++epoch) {
    const TimePoint begin = b.now();
    for (int i = 0; i < 12; ++i) {
      b.step({{Part::kInputWait, i == 0 ? starts[epoch] : 1, kQueueWait},
              {Part::kForward, 13, kCompute}},
             epoch == 0 && i < 3);
    }
    const TimePoint started = begin + nanos(starts[epoch] * 1e6), end = b.now() - nanos(2e6);
    for (int w = 0; w < 2; ++w) {
      const model::ThreadId main = b.worker(pid);
      b.run().processes.back().ppid = 100;
      const model::ThreadId more = b.thread(b.run().threads[main].process, pid + 1);
      pid += 2;
      b.doing(main, begin, started, {ThreadState::kOnCpuNative, {kItem}});
      b.doing(main, started, end, kQueueWait);
      const bool helps = epoch != 1 || w != 0;
      b.doing(more, begin, started, helps ? Doing{ThreadState::kOnCpuNative, {kItem}} : kQueueWait);
      b.doing(more, started, end, kQueueWait);
    }
  }
  b.machine(2, 0.1).process_cpu(100, 0.1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.worker_restart") << d.headline;
  EXPECT_EQ(d.findings.front().evidence.front().text, "6 processes made batches, 2 at a time");
}

// Workers keep up between their starts, and are behind for the first two batches after each; what
// else is waited for varies about 3 ms.
TEST(WorkerRestart, AStartOfWorkersCostsWhatTheyAreBehindAndNotHowWaitsVary) {
  RunBuilder b;
  for (int epoch = 0; epoch < 10; ++epoch) {
    const TimePoint begin = b.now();
    for (int i = 0; i < 12; ++i) {
      const double wait = i == 0 ? 80 : i == 1 ? 20 : 1 + i * 7 % 5;
      b.step({{Part::kInputWait, wait, kQueueWait}, {Part::kForward, 5, kCompute}},
             epoch == 0 && i < 3);
    }
    b.slice(b.trainer(), SliceKind::kLoaderStart, begin, begin + nanos(15e6), 2);
    for (int w = 0; w < 2; ++w) {
      const model::ThreadId t = b.worker(200 + 2 * epoch + w);
      TimePoint at = begin + nanos(70e6);
      for (int i = w; i < 12; i += 2, at += nanos(18e6)) {
        b.slice(t, SliceKind::kFetch, at, at + nanos(8e6), 16, i);
        b.doing(t, at, at + nanos(8e6), kDecode);
      }
    }
  }
  b.machine(2, 1.2).process_cpu(100, 0.4);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.worker_restart") << d.headline;
  // Nine starts, 77 and 17 ms beyond what is usual, less the first batch, which is made anyway.
  EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 9 * (77 + 17 - 8) / 117.0, 0.1);
}

// Validations lie between the steps, so none of them is longer; the job is. Lasting workers make
// their first batch while it is waited for, too.
TEST(WorkerRestart, WorkersOfAValidationThatStartAnewCostTheJobWhatNoStepShows) {
  for (const bool anew : {true, false}) {
    RunBuilder b;
    const Line start{"start", "/usr/lib/python3.11/multiprocessing/process.py", 121};
    const Doing spawn{ThreadState::kOnCpuPython,
                      {kMain, {"validate", "/home/u/probe.py", 85}, start}};
    int32_t pid = 200;
    model::ThreadId worker = b.worker(pid++);
    for (int i = 0; i < 100; ++i) {
      const bool validates = i > 0 && i % 10 == 0;
      if (validates) {
        const auto lasts = [&](double ms) {
          const TimePoint begin = b.now();
          b.pass(ms);
          return begin;
        };
        if (anew) {
          worker = b.worker(pid++);
          const TimePoint begin = lasts(12);
          b.doing(b.trainer(), begin, b.now(), spawn);
          b.slice(b.trainer(), SliceKind::kLoaderStart, begin, b.now(), 1);
        }
        const TimePoint wait = lasts(anew ? 30 : 4);
        b.doing(b.trainer(), wait, b.now(), kQueueWait);
        b.slice(b.trainer(), SliceKind::kInputWait, wait, b.now());
        b.slice(worker, SliceKind::kFetch, b.now() - nanos(4e6), b.now(), 16, 0);
        const TimePoint scores = lasts(8);
        b.doing(b.trainer(), scores, b.now(), kCompute);
        b.slice(b.trainer(), SliceKind::kValidation, scores, b.now());
      }
      b.step({{Part::kForward, 4, kCompute}, {Part::kBackward, 6, kCompute}}, i < 3);
      b.run().steps.steps.back().validation = validates;
    }
    std::ranges::stable_sort(b.run().slices, {}, &model::Slice::begin);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, anew ? "input.worker_restart" : "healthy") << d.headline;
    if (!anew) continue;
    const Finding& f = d.findings.front();
    // Of each ten steps 100 ms and a validation of 50, of which a lasting worker saves 38.
    EXPECT_NEAR(*f.cost_ms_per_step, 9 * 38 / 97.0, 0.1);
    EXPECT_NEAR(*f.gain, 1 / (1 - 9 * 38 / (970 + 9 * 50.0)), 0.02);
    EXPECT_EQ(f.where->line, 85);
  }
}

// Predictions every ten steps that take as long as these are the job's largest part; every hundred,
// or at the end of each epoch, they are a validation.
TEST(WorkerRestart, PredictionsEveryFewStepsAreACauseAndValidationsAreNot) {
  struct Case {
    int every;
    bool after_epoch, cause;
  };
  for (const Case& at : {Case{10, false, true}, {100, false, false}, {10, true, false}}) {
    RunBuilder b;
    const Line model{"forward", "/home/u/model.py", 9};  // in steps, too, and so not told
    const Doing trains{ThreadState::kOnCpuNative, {kMain, model}};
    const Doing predict{ThreadState::kOnCpuNative,
                        {kMain, {"on_batch_end", "/home/u/fit.py", 24}, model}};
    for (int i = 0; i < 1000; ++i) {
      const bool validates = i > 0 && i % at.every == 0;
      if (validates) {
        if (at.after_epoch) b.slice(b.trainer(), SliceKind::kEpoch, b.now(), b.now());
        const TimePoint begin = b.now();
        b.pass(at.every * 10);
        b.doing(b.trainer(), begin, b.now(), predict);
        b.slice(b.trainer(), SliceKind::kValidation, begin, b.now());
      }
      b.step({{Part::kForward, 4, trains}, {Part::kBackward, 6, kCompute}}, i < 3);
      b.run().steps.steps.back().validation = validates;
    }
    std::ranges::stable_sort(b.run().slices, {}, &model::Slice::begin);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, at.cause ? "stall.periodic" : "healthy") << d.headline;
    if (!at.cause) continue;
    EXPECT_EQ(d.findings.front().where->line, 24);
    EXPECT_NEAR(*d.findings.front().gain, 2, 0.05);
  }
}

}  // namespace
}  // namespace flatout::diagnose
