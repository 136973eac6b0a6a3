#include <gtest/gtest.h>

#include <string>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

const Line kTracer{"watch", "/home/u/tools/tracer.py", 4};

/// Steps of 30 ms, 12 of them in the interpreter, `watched` of these in a tracer's function.
RunBuilder job(double watched) {
  RunBuilder b;
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kOther, 12 - watched, {ThreadState::kOnCpuPython, {kMain}}},
            {Part::kOther, watched, {ThreadState::kOnCpuPython, {kMain, kTracer}}},
            {Part::kForward, 18, kCompute}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  return b;
}

TEST(Watchers, ATracerThatWasLeftOnIsNamedByItsFunction) {
  RunBuilder b = job(6);
  b.run().info["python.tracer"] = "/home/u/tools/tracer.py:4 in watch";
  const Diagnosis d = diagnose(b.build());
  const Finding* f = find(d, "cpu.tracing");
  ASSERT_NE(f, nullptr) << d.headline;
  EXPECT_EQ(f->where->line, 4);
  EXPECT_GE(*f->cost_ms_per_step, 6);
  EXPECT_LE(*f->cost_ms_per_step, 12);
  for (const Finding& other : d.findings)
    EXPECT_TRUE(&other == f || !other.where || other.where->file != f->where->file);
}

TEST(Watchers, OneWrittenInCTakesPartOfTheInterpretersTime) {
  for (const char* key : {"python.tracer", "python.profiler"}) {
    RunBuilder b = job(0);
    b.run().info[key] = "cProfile.Profile";
    const Diagnosis d = diagnose(b.build());
    ASSERT_NE(find(d, "cpu.tracing"), nullptr) << d.headline;
    EXPECT_LT(*find(d, "cpu.tracing")->cost_ms_per_step, 12);
  }
}

// What a debugger runs has its file around it: that is no time in the debugger.
TEST(Watchers, WhatRunsUnderADebuggersFileIsNotInItsTracer) {
  const Line run{"run", kTracer.file, 90};
  RunBuilder b;
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kOther, 12, {ThreadState::kOnCpuPython, {run, kMain}}},
            {Part::kForward, 18, kCompute}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  b.run().info["python.tracer"] = kTracer.file + std::string(":4 in watch");
  EXPECT_EQ(find(diagnose(b.build()), "cpu.tracing"), nullptr);
}

TEST(Watchers, WithoutOneOrWhereItIsHardlyCalledThereIsNone) {
  EXPECT_EQ(find(diagnose(job(6).build()), "cpu.tracing"), nullptr);
  RunBuilder b = job(0.5);
  b.run().info["python.tracer"] = "/home/u/tools/tracer.py:4 in watch";
  EXPECT_EQ(find(diagnose(b.build()), "cpu.tracing"), nullptr);
}

}  // namespace
}  // namespace flatout::diagnose
