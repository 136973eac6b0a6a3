// Loops whose batches come from elsewhere than a DataLoader. The readings are what the probe sees:
// every 7 ms, which is no fraction of the loops' 30 ms.
#include "timeline/step_evidence.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include "base/uneven_beat.h"
#include "timeline/steps.h"
#include "timeline/test_run.h"

namespace flatout::timeline {
namespace {

using model::Part;
using model::StackId;
using model::StepSource;
using model::ThreadState;
using testing::RunBuilder;

constexpr const char* kTorchModule =
    "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py";
constexpr const char* kTorchTensor = "/venv/lib/python3.11/site-packages/torch/_tensor.py";
constexpr const char* kTorchOptim = "/venv/lib/python3.11/site-packages/torch/optim/sgd.py";

double share(const model::Run& run, Part part) {
  return run.steps.summary.breakdown[static_cast<size_t>(part)];
}

// Stacks of a loop in train.py: line 10 gets the batch, 12 forward, 13 loss, 14 backward,
// 15 optimizer, 17 logs.
struct Loop {
  RunBuilder b;
  Loop() { b.every(7); }
  StackId at(uint32_t line, std::vector<RunBuilder::At> below = {}) {
    std::vector<RunBuilder::At> frames = {{"<module>", "train.py", 40}, {"main", "train.py", line}};
    frames.insert(frames.end(), below.begin(), below.end());
    return b.stack(frames);
  }
  StackId forward = at(12, {{"_call_impl", kTorchModule, 1700}, {"forward", "model.py", 8}});
  StackId plain_forward = at(12);
  StackId backward = at(14, {{"backward", kTorchTensor, 600}});
  StackId optimizer = at(15, {{"step", kTorchOptim, 80}});

  void rest(int i) {
    b.backward(9).read_back(9, backward, ThreadState::kOnCpuNative);
    b.optimizer(2, 0, i + 1).read_back(2, optimizer, ThreadState::kOnCpuNative);
  }
  model::Run finish() {
    model::Run run = b.build();
    find_steps(run);
    return run;
  }
};

// Without any framework: what a reader of files returns is input, what it writes is not.
TEST(OpenTime, ReadersOfFilesAreInputInALoopOfNumPy) {
  constexpr const char* kZip = "/usr/lib/python3.11/zipfile.py";
  for (const char* function : {"read", "_writestr"}) {
    RunBuilder b;
    b.every(7);
    const StackId data = b.stack({{"<module>", "train.py", 40},
                                  {"main", "train.py", 10},
                                  {"__getitem__", "/x/site-packages/numpy/lib/npyio.py", 250},
                                  {function, kZip, 924}});
    const StackId compute = b.stack({{"<module>", "train.py", 40}, {"main", "train.py", 12}});
    for (int i = 0; i < 60; ++i) {
      b.during(60, data, ThreadState::kOnCpuNative).during(40, compute, ThreadState::kOnCpuNative);
    }
    model::Run run = b.build();
    find_steps(run);
    ASSERT_EQ(run.steps.source, StepSource::kRepetition);
    EXPECT_NEAR(share(run, Part::kInputWait), function[0] == 'r' ? 0.6 : 0, 0.05) << function;
  }
}

// A program without Python that marks its steps. A function that is there to parse makes samples
// with all that it does; one that trains as well, only while it parses.
TEST(OpenTime, ParsingTextInNativeCodeIsInput) {
  constexpr const char* kStl = "/usr/lib/libstdc++.so.6";
  for (const bool own_function : {true, false}) {
    RunBuilder b;
    b.every(7);
    b.run().processes[0].python = false;
    const RunBuilder::At main{"main", "/home/u/train.cpp", 58};
    const RunBuilder::At parse{own_function ? "parse_line" : "main", "/home/u/train.cpp", 23};
    const StackId number = b.stack({main, parse, {"std::istream::operator>>", kStl, 0}});
    const StackId sorts = b.stack({main, parse, {"_M_insert_node", "/usr/include/stl_map.h", 9}});
    const StackId compute = b.stack({main});
    for (int i = 0; i < 60; ++i) {
      b.during(40, number, ThreadState::kOnCpuNative);
      b.during(20, sorts, ThreadState::kOnCpuNative);
      b.during(40, compute, ThreadState::kOnCpuNative);
      b.slice(model::SliceKind::kStep, 0);
    }
    model::Run run = b.build();
    find_steps(run);
    EXPECT_NEAR(share(run, Part::kInputWait), own_function ? 0.6 : 0.4, 0.05);
  }
}

// A compiler has inlined the parsing, so the function with the loop parses most of its time.
TEST(OpenTime, TheFunctionWithTheLoopIsNoParser) {
  for (const bool counted : {true, false}) {
    RunBuilder b;
    b.every(7);
    b.run().processes[0].python = false;
    const RunBuilder::At main{"main", "/home/u/train.cpp", 58};
    const RunBuilder::At train{"train", "/home/u/train.cpp", 23};
    const StackId number = b.stack({main, train, {"strtof", "/usr/lib/libc.so.6", 0}});
    const StackId compute = b.stack({main, train, {"cost", "/home/u/net.cpp", 5}});
    const StackId saves = b.stack({main, {"save", "/home/u/net.cpp", 8}});
    for (int i = 0; i < 60; ++i) {
      b.during(60, number, ThreadState::kOnCpuNative);
      b.during(40, compute, ThreadState::kOnCpuNative);
      if (counted) b.during(10, saves, ThreadState::kOnCpuNative);
      b.slice(model::SliceKind::kStep, 0);
    }
    model::Run run = b.build();
    if (counted) {
      run.series.push_back(
          {model::SignalId::kLoopRounds, static_cast<model::EntityId>(run.entities.size()), {}});
      run.entities.push_back({model::EntityKind::kLoop, int64_t{run.processes[0].pid} << 32,
                              model::kNoEntity, "train calls cost"});
    }
    find_steps(run);
    EXPECT_NEAR(share(run, Part::kInputWait), counted ? 0.55 : 0.6, 0.05) << counted;
  }
}

// What a progress bar hands on is made by what it calls; what it draws is no input.
TEST(OpenTime, AProgressBarAroundTheDataIsNoLogging) {
  constexpr const char* kBar = "/x/site-packages/tqdm/std.py";
  constexpr const char* kZip = "/usr/lib/python3.11/zipfile.py";
  for (const bool draws : {false, true}) {
    RunBuilder b;
    b.every(7);
    const RunBuilder::At main{"main", "train.py", 10}, bar{"__iter__", kBar, 1186};
    const StackId data = draws ? b.stack({main, bar, {"update", kBar, 1250}, {"print", kBar, 450}})
                               : b.stack({main, bar, {"load", "train.py", 5}, {"read", kZip, 924}});
    const StackId compute = b.stack({{"main", "train.py", 12}});
    for (int i = 0; i < 60; ++i) {
      b.during(60, data, ThreadState::kOnCpuNative).during(40, compute, ThreadState::kOnCpuNative);
    }
    model::Run run = b.build();
    find_steps(run);
    ASSERT_EQ(run.steps.source, StepSource::kRepetition);
    EXPECT_NEAR(share(run, Part::kInputWait), draws ? 0 : 0.6, 0.05);
  }
}

TEST(OpenTime, ALoaderThatTakesNearlyAllTheTimeIsInput) {
  constexpr const char* kLoader = "/x/site-packages/torch/utils/data/dataloader.py";
  RunBuilder b;
  b.every(7);
  const StackId data = b.stack(
      {{"<module>", "train.py", 10}, {"__next__", kLoader, 700}, {"__getitem__", "train.py", 5}});
  const StackId compute = b.stack({{"<module>", "train.py", 12}});
  for (int i = 0; i < 60; ++i) {
    b.during(140, data, ThreadState::kOnCpuPython).during(8, compute, ThreadState::kOnCpuNative);
  }
  model::Run run = b.build();
  find_steps(run);
  ASSERT_EQ(run.steps.source, StepSource::kRepetition);
  EXPECT_NEAR(share(run, Part::kInputWait), 0.95, 0.02);
}

TEST(OpenTime, BlockedInAQueueIsInputWait) {
  Loop l;
  const StackId get = l.at(10, {{"get", "/usr/lib/python3.11/queue.py", 171},
                                {"wait", "/usr/lib/python3.11/threading.py", 320}});
  for (int i = 0; i < 100; ++i) {
    l.b.during(14, get, ThreadState::kLock).during(5, l.forward, ThreadState::kOnCpuNative);
    l.rest(i);
  }
  const model::Run run = l.finish();
  EXPECT_NEAR(share(run, Part::kInputWait), 14 / 30.0, 0.04);
  EXPECT_NEAR(share(run, Part::kForward), 5 / 30.0, 0.04);
}

TEST(OpenTime, DecodingInTheLoopIsInputWait) {
  Loop l;
  const StackId decode = l.at(
      10,
      {{"load", "data.py", 5}, {"decode", "/venv/lib/python3.11/site-packages/PIL/Image.py", 9}});
  for (int i = 0; i < 100; ++i) {
    l.b.during(14, decode, ThreadState::kOnCpuNative)
        .during(5, l.forward, ThreadState::kOnCpuNative);
    l.rest(i);
  }
  EXPECT_NEAR(share(l.finish(), Part::kInputWait), 14 / 30.0, 0.04);
}

TEST(OpenTime, ReadingFromDiskIsInputWait) {
  Loop l;
  const StackId read = l.at(10);
  for (int i = 0; i < 100; ++i) {
    l.b.during(14, read, ThreadState::kDisk).during(5, l.plain_forward, ThreadState::kOnCpuNative);
    l.rest(i);
  }
  const model::Run run = l.finish();
  EXPECT_NEAR(share(run, Part::kInputWait), 14 / 30.0, 0.04);
  EXPECT_NEAR(share(run, Part::kForward), 5 / 30.0, 0.04);
}

// The line that writes a batch down before it is used does not make it, but a data set that keeps
// what it has decoded does.
TEST(OpenTime, WritingAFileBeforeTheForwardPassIsOther) {
  constexpr const char* kFetch = "/x/site-packages/torch/utils/data/_utils/fetch.py";
  for (const bool in_data_set : {false, true}) {
    Loop l;
    const StackId write = in_data_set
                              ? l.at(10, {{"fetch", kFetch, 54}, {"__getitem__", "train.py", 4}})
                              : l.at(10, {{"record", "train.py", 4}});
    for (int i = 0; i < 100; ++i) {
      const size_t before = l.b.run().readings.size();
      l.b.during(9, write, ThreadState::kDisk);
      // What a thread calls cannot always be read.
      for (size_t k = before; k < l.b.run().readings.size(); ++k) {
        if (i % 2 == 0) l.b.run().readings[k].syscall = SYS_fsync;
      }
      l.b.during(5, write, ThreadState::kKernel);
      l.b.during(5, l.forward, ThreadState::kOnCpuNative);
      l.rest(i);
    }
    const model::Run run = l.finish();
    EXPECT_NEAR(share(run, Part::kOther), in_data_set ? 0 : 14 / 30.0, 0.04);
    EXPECT_NEAR(share(run, Part::kInputWait), in_data_set ? 14 / 30.0 : 0, 0.04);
  }
}

TEST(OpenTime, AFunctionalForwardPassIsForward) {
  Loop l;
  for (int i = 0; i < 100; ++i) {
    l.b.during(19, l.plain_forward, ThreadState::kOnCpuNative);
    l.rest(i);
  }
  EXPECT_NEAR(share(l.finish(), Part::kForward), 19 / 30.0, 0.01);
}

TEST(OpenTime, AHelperThatIsCalledBeforeAFunctionalForwardPassIsInput) {
  Loop l;
  const StackId helper = l.at(10, {{"make_batch", "data.py", 5}, {"decode", "data.py", 25}});
  for (int i = 0; i < 100; ++i) {
    l.b.during(12, helper, ThreadState::kOnCpuNative);
    l.b.during(7, l.plain_forward, ThreadState::kOnCpuNative);
    l.rest(i);
  }
  EXPECT_NEAR(share(l.finish(), Part::kInputWait), 12 / 30.0, 0.04);
}

TEST(OpenTime, TransformsBuiltFromModulesAreInput) {
  Loop l;
  const StackId transform = l.at(
      10, {{"_call_impl", kTorchModule, 1700},
           {"forward", "/venv/lib/python3.11/site-packages/torchvision/transforms/v2/_a.py", 1}});
  for (int i = 0; i < 100; ++i) {
    l.b.during(12, transform, ThreadState::kOnCpuNative);
    l.b.during(7, l.plain_forward, ThreadState::kOnCpuNative);
    l.rest(i);
  }
  EXPECT_NEAR(share(l.finish(), Part::kInputWait), 12 / 30.0, 0.04);
}

TEST(OpenTime, AForwardPassWhoseThreadsAreWaitedForIsForward) {
  Loop l;
  for (int i = 0; i < 100; ++i) {
    l.b.during(12, l.plain_forward, ThreadState::kOnCpuNative);
    l.b.during(7, l.plain_forward, ThreadState::kLock);
    l.rest(i);
  }
  EXPECT_NEAR(share(l.finish(), Part::kForward), 19 / 30.0, 0.01);
}

TEST(OpenTime, WhatComesAfterTheOptimizerIsOther) {
  Loop l;
  const StackId log = l.at(17, {{"log", "train.py", 30}});
  for (int i = 0; i < 100; ++i) {
    l.b.during(12, log, ThreadState::kOnCpuPython).during(7, l.forward, ThreadState::kOnCpuNative);
    l.rest(i);
  }
  const model::Run run = l.finish();
  EXPECT_NEAR(share(run, Part::kOther), 12 / 30.0, 0.04);
  EXPECT_NEAR(share(run, Part::kInputWait), 0, 0.02);
}

// A step that is one call of a compiled function: what comes after its line is other, what comes
// before it input.
TEST(OpenTime, WhatComesAfterACompiledStepIsOther) {
  for (const uint32_t line : {17u, 10u}) {
    Loop loop;
    for (int i = 0; i < 60; ++i) {
      loop.b.forward(10).read_back(10, loop.at(14), ThreadState::kLock);
      loop.b.optimizer(0, 0, i + 1);
      loop.b.during(20, loop.at(line), ThreadState::kOnCpuPython);
    }
    const model::Run run = loop.finish();
    EXPECT_NEAR(share(run, Part::kOther), line == 17 ? 0.67 : 0, 0.05);
    EXPECT_NEAR(share(run, Part::kInputWait), line == 17 ? 0 : 0.67, 0.05);
  }
}

TEST(OpenTime, BeforeARealForwardPassLiesTheInputEvenWithoutReadings) {
  RunBuilder b;
  for (int i = 0; i < 50; ++i) b.idle(10).forward(5).idle(1).backward(9).optimizer(2, 0, i + 1);
  model::Run run = b.build();
  find_steps(run);
  EXPECT_NEAR(share(run, Part::kInputWait), 10 / 27.0, 1e-6);
  EXPECT_NEAR(share(run, Part::kForward), 6 / 27.0, 1e-6);
}

TEST(OpenTime, OneStalledStepIsNotSpreadOverAll) {
  Loop l;
  const StackId get = l.at(10);
  for (int i = 0; i < 100; ++i) {
    l.b.during(i == 60 ? 400 : 2, get, ThreadState::kDisk);
    l.b.during(5, l.forward, ThreadState::kOnCpuNative);
    l.rest(i);
  }
  const model::Run run = l.finish();
  EXPECT_GT(to_ms(run.steps.steps[60].part(Part::kInputWait)), 380);
  EXPECT_LT(to_ms(run.steps.steps[61].part(Part::kInputWait)), 4);
}

TEST(Repetition, StepsOfANumPyLoopComeFromItsLines) {
  RunBuilder b;
  const auto at = [&](uint32_t line) {
    return b.stack({{"<module>", "train.py", 40}, {"main", "train.py", line}});
  };
  const StackId read = at(10), compute = at(12), update = at(13);
  b.every(5).during(500, b.stack({{"<module>", "train.py", 1}}), ThreadState::kOnCpuPython);
  for (int i = 0; i < 40; ++i) {
    b.during(30 + i % 3, read, ThreadState::kDisk);
    b.during(50, compute, ThreadState::kOnCpuNative).during(20, update, ThreadState::kOnCpuNative);
  }
  model::Run run = b.build();
  find_steps(run);
  EXPECT_EQ(run.steps.source, StepSource::kRepetition);
  EXPECT_GE(run.steps.steps.size(), 25u);
  EXPECT_NEAR(to_ms(run.steps.summary.median), 101, 5);
  EXPECT_NEAR(share(run, Part::kInputWait), 0.3, 0.05);
}

TEST(Repetition, RandomWorkHasNoSteps) {
  RunBuilder b;
  uint32_t random = 1;
  const StackId stacks[] = {b.stack({{"main", "a.py", 1}}), b.stack({{"main", "a.py", 2}}),
                            b.stack({{"main", "a.py", 3}})};
  for (int i = 0; i < 600; ++i) {
    random = random * 1664525 + 1013904223;
    b.during(5 + (random >> 8) % 60, stacks[(random >> 20) % 3], ThreadState::kOnCpuPython);
  }
  model::Run run = b.every(5).build();
  find_steps(run);
  EXPECT_EQ(run.steps.source, StepSource::kNone);
}

// Its places come and go as the readings fall, which are 26 ms apart on average.
TEST(Repetition, ALoopFasterThanItsReadingsHasNoSteps) {
  for (const int64_t half : {8, 50}) {
    RunBuilder b;
    b.every(1);
    const StackId take = b.stack({{"main", "a.cpp", 9}, {"take", "a.cpp", 3}});
    const StackId train = b.stack({{"main", "a.cpp", 9}, {"train", "a.cpp", 5}});
    for (int64_t i = 0; i < 10'000 / half / 2; ++i) {
      b.during(static_cast<double>(half), take, ThreadState::kLock);
      b.during(static_cast<double>(half + i % 3), train, ThreadState::kOnCpuNative);
    }
    model::Run run = b.build();
    UnevenBeat beat;
    TimePoint next = run.begin;
    std::erase_if(run.readings, [&](const model::StackReading& r) {
      if (r.at < next) return true;
      next = r.at + beat.vary(Nanos(26'000'000));
      return false;
    });
    find_steps(run);
    EXPECT_EQ(run.steps.source, half == 8 ? StepSource::kNone : StepSource::kRepetition);
    if (half != 8) {
      EXPECT_NEAR(to_ms(run.steps.summary.median), 101, 5);
    }
  }
}

// Samples of native code come 49 times a second, and readings in between see the last one again. A
// loop of 45 ms is at each of its places in turn then, and at all of them again after five rounds.
TEST(Repetition, TheBeatOfSamplesIsNoLoop) {
  constexpr int64_t kBeat = 1'000'000'000 / 49;
  for (const double slower : {1.0, 10.0}) {
    RunBuilder b;
    b.every(1);
    std::vector<StackId> places;
    for (uint32_t line = 1; line <= 6; ++line) places.push_back(b.stack({{"main", "a.cpp", line}}));
    const double lengths[] = {4, 7, 9, 6, 12, 7};
    for (int i = 0; i < 333 / slower; ++i) {
      for (size_t k = 0; k < places.size(); ++k) {
        b.during(slower * lengths[k], places[k], ThreadState::kOnCpuNative);
      }
    }
    model::Run run = b.build();
    for (model::Frame& frame : run.frames) frame.kind = model::FrameKind::kNative;
    std::vector<model::StackReading> read;
    for (size_t i = 0; i < run.readings.size(); i += 5) {
      read.push_back(run.readings[i]);
      const int64_t since = (run.readings[i].at - run.begin).count();
      const auto sample = static_cast<size_t>(since / kBeat * kBeat / 1'000'000);
      read.back().stack = run.readings[sample].stack;
    }
    run.readings = read;
    find_steps(run);
    EXPECT_EQ(run.steps.source, slower == 1 ? StepSource::kNone : StepSource::kRepetition);
    if (slower != 1) {
      EXPECT_NEAR(to_ms(run.steps.summary.median), 450, 10);
    }
  }
}

}  // namespace
}  // namespace flatout::timeline
