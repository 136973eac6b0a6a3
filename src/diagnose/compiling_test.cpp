#include "diagnose/compiling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

const std::string kPackages = "/v/lib/python3.11/site-packages/";
const Line kCall{"__call__", kPackages + "tensorflow/python/eager/def_function.py", 9};
const Doing kRun{ThreadState::kLock, {kMain, kCall}};  // TensorFlow's threads compute
// AutoGraph's own source, which runs while a tf.function is traced.
const Doing kTrace{
    ThreadState::kOnCpuPython,
    {kMain,
     kCall,
     {"create_concrete_function",
      kPackages + "tensorflow/python/eager/polymorphic_function/tracing_compilation.py", 7},
     {"tf__train_step", "/tmp/__autograph_generated_file86jlk6sd.py", 14}}};

bool is_compiling(const Finding& f) {
  return f.id == "stall.periodic" && f.remedies.front().id == "compile_once";
}

/// Steps of 10 ms, of which each tenth or so traces for `trace` ms, and then runs something new for
/// the first time: `first` ms.
void retrace(RunBuilder& b, double trace, double first) {
  for (int i = 0; i < 400; ++i) {
    const bool again = i % 10 == 9 && i % 30 != 9;
    b.step({{Part::kForward, again ? trace : 0, kTrace},
            {Part::kForward, again ? 10 + first : 10, kRun}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
}

TEST(Compiling, TheFirstRunOfWhatWasCompiledCostsToo) {
  RunBuilder b;
  retrace(b, 100, 80);
  const Diagnosis d = diagnose(b.build());
  const Finding& f = d.findings.front();
  ASSERT_TRUE(is_compiling(f)) << d.headline;
  const double all = 397 * 10 + 26 * 180;
  EXPECT_NEAR(*f.cost_ms_per_step, 26.0 * 180 / 397, 0.1);
  // The training thread works at it: nothing is faster for a wait less.
  EXPECT_NEAR(*f.gain, all / (397 * 10), 0.01);
}

TEST(Compiling, WhatStepsThatCompileWaitForTheirInputIsNotItsCost) {
  RunBuilder b;
  for (int i = 0; i < 100; ++i) {
    const bool again = i % 10 == 9;
    b.step({{Part::kInputWait, again ? 300.0 : 1, kQueueWait},
            {Part::kForward, again ? 100.0 : 0, kTrace},
            {Part::kForward, 10, kRun}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  const auto f = std::ranges::find_if(d.findings, is_compiling);
  ASSERT_NE(f, d.findings.end());
  EXPECT_NEAR(*f->cost_ms_per_step, 10 * 100.0 / 97, 0.1);
}

TEST(Compiling, WhereEachStepCompilesTheFirstRunOfWhatItCompiledGoesToo) {
  const Doing ready{ThreadState::kOnCpuNative, {kMain, kCall}};
  for (const bool graphs : {true, false}) {
    RunBuilder b;
    for (int i = 0; i < 100; ++i) {
      b.step({{Part::kForward, 45, kTrace}, {Part::kForward, 60, ready}}, i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    if (graphs) b.run().info["tensorflow.version"] = "2.21.0";
    const Diagnosis d = diagnose(b.build());
    const auto f = std::ranges::find_if(d.findings, is_compiling);
    ASSERT_NE(f, d.findings.end());
    EXPECT_NEAR(*f->cost_ms_per_step, graphs ? 104.9 : 49.5, 0.3);
  }
}

// It is compiled in a moment, in few steps: that others are long has another reason.
TEST(Compiling, LongStepsOfAnotherKindAreNotPutDownToIt) {
  RunBuilder b;
  for (int i = 0; i < 400; ++i) {
    const bool again = i % 60 == 30;
    b.step({{Part::kForward, again ? 10.0 : 0, kTrace}, {Part::kForward, 70.0 + i * 37 % 60, kRun}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  EXPECT_EQ(diagnose(b.build()).verdict, "healthy");
}

TEST(Compiling, TheFewStepsThatDoNotCompileTellWhatWouldBeLeft) {
  RunBuilder b;
  for (int i = 0; i < 100; ++i) {
    const bool again = i % 20 != 9;
    b.step({{Part::kForward, again ? 200.0 : 0, kTrace}, {Part::kForward, again ? 40.0 : 20, kRun}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  b.run().info["tensorflow.version"] = "2.21.0";
  const Diagnosis d = diagnose(b.build());
  const Finding& f = d.findings.front();
  ASSERT_TRUE(is_compiling(f)) << d.headline;
  EXPECT_NEAR(*f.gain, (92 * 240.0 + 5 * 20) / (97 * 20), 0.1);
}

// Readings are too few to be in each step: those that were missed are as long as the others.
TEST(Compiling, StepsInWhichItWasMissedCompileAsWell) {
  for (const bool all : {true, false}) {
    RunBuilder b;
    int reading = 0;
    for (int i = 0; i < 200; ++i) {
      const bool again = all || i % 20 != 9;
      const bool seen = again && reading++ % 3 != 0;
      b.step({{Part::kForward, again ? 30.0 : 0, seen ? kTrace : kRun},
              {Part::kForward, again ? 10.0 : 2, kRun}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    b.run().info["tensorflow.version"] = "2.21.0";
    const Diagnosis d = diagnose(b.build());
    const Finding& f = d.findings.front();
    ASSERT_TRUE(is_compiling(f)) << d.headline;
    EXPECT_GT(*f.gain, all ? 20 : 10) << d.headline;
  }
}

TEST(Compiling, SourceThatALibraryGeneratedIsNoLineOfTheUsers) {
  RunBuilder b;
  retrace(b, 100, 80);
  const Diagnosis d = diagnose(b.build());
  ASSERT_TRUE(is_compiling(d.findings.front())) << d.headline;
  EXPECT_EQ(d.findings.front().where->file, kMain.file);
  EXPECT_EQ(owner_of("/tmp/torchinductor_u/ab/cabcd.py", ""), Owner::kLibrary);
  EXPECT_EQ(owner_of("/home/u/.triton/cache/1f/kernel.py", ""), Owner::kLibrary);
  EXPECT_EQ(owner_of("<eval_with_key>.7", ""), Owner::kLibrary);
  EXPECT_EQ(owner_of("/tmp/train.py", ""), Owner::kUser);
}

// Graphs that are kept, of each trace or of each step: what grows with the steps that trace is told
// after them, however soon the memory ends.
TEST(Compiling, MemoryThatGrowsWithTheStepsThatCompileIsNoCauseBeforeThem) {
  for (const bool traces : {true, false}) {
    RunBuilder b;
    retrace(b, 20, 0);  // a gain of less than two
    b.gauge(SignalId::kMemAvailable, b.host(), 4e9);
    model::Series memory{SignalId::kProcRssAnon, b.process_entity(100), {}};
    double bytes = 300e6;
    int64_t next = 0;
    for (const model::Step& s : b.run().steps.steps) {
      bytes += traces ? (s.length() > nanos(15e6) ? 8e6 : 0) : 0.5e6;
      if (++next % 7 == 0) memory.readings.push_back({s.end, bytes});
    }
    b.run().series.push_back(memory);
    const Diagnosis d = diagnose(b.build());
    const Finding* leak = find(d, "mem.leak");
    ASSERT_NE(leak, nullptr);
    ASSERT_EQ(d.findings.size(), 2u);
    EXPECT_EQ(d.verdict, traces ? "stall.periodic" : "mem.leak");
    EXPECT_EQ(leak->remedies.front().id, traces ? "compile_once" : "release");
    EXPECT_EQ(leak->ends_in_s.has_value(), !traces);
  }
}

TEST(Compiling, CompilingAgainWithinTheStepsIsNamedAndAWarmUpIsNot) {
  for (const int compiles : {6, 2}) {
    RunBuilder b;
    const Doing compile{
        ThreadState::kOnCpuPython,
        {kMain,
         {"compile_wrapper", "/v/lib/python3.11/site-packages/torch/_dynamo/eval_frame.py", 9},
         {"_compile", "/v/lib/python3.11/site-packages/torch/_dynamo/convert_frame.py", 7}}};
    for (int i = 0; i < 60; ++i) {
      const bool again = i % 5 == 4 && i / 5 < compiles;
      b.step({{Part::kForward, again ? 200.0 : 0, compile},
              {Part::kForward, 10, kCompute},
              {Part::kBackward, 10, kCompute}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    const Finding* f = find(d, "stall.periodic");
    const bool named = f != nullptr && f->remedies.front().id == "compile_once";
    ASSERT_EQ(named, compiles == 6) << d.headline;
    EXPECT_EQ(find(d, "cpu.python_bound"), nullptr);
    if (!named) continue;
    EXPECT_EQ(f->where->line, kMain.line);
    EXPECT_NEAR(*f->gain, (57 * 20.0 + 6 * 200) / (57 * 20), 0.1);
  }
}

}  // namespace
}  // namespace flatout::diagnose
