// What traces say beyond the golden numbers: whose work a device does, launches by call and those
// that left nothing, gaps without a launch, where in the program a difference lies, the trace of a
// run folder.
#include "timeline/trace_analysis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "timeline/export_chrome.h"
#include "timeline/import_trace.h"
#include "timeline/steps.h"
#include "timeline/test_run.h"
#include "timeline/trace_diff.h"
#include "timeline/trace_host.h"

namespace flatout::timeline {
namespace {

using namespace model;  // NOLINT

/// Slices in microseconds, as PyTorch writes them.
class Made {
 public:
  Made& slice(std::string_view category, std::string_view name, double begin, double end,
              int correlation = 0, int thread = 1, std::string_view args = "") {
    add(category, name, begin, end, 1, thread,
        correlation > 0 ? R"("correlation": )" + std::to_string(correlation) +
                              std::string(args.empty() ? "" : ", ") + std::string(args)
                        : std::string(args));
    return *this;
  }
  Made& kernel(std::string_view name, double begin, double end, int correlation, int stream = 7) {
    add("kernel", name, begin, end, 0, stream,
        R"("device": 0, "stream": )" + std::to_string(stream) + R"(, "correlation": )" +
            std::to_string(correlation));
    return *this;
  }
  Trace read(bool shapes = false) const {
    TraceOptions options;
    options.shapes = shapes;
    auto trace = import_trace_bytes("{\"traceEvents\": [" + text_ + "]}", "made", options);
    EXPECT_TRUE(trace.ok());
    return trace.ok() ? std::move(*trace) : Trace{};
  }
  TraceSummary summary(bool shapes = false) const {
    const Trace trace = read(shapes);
    return summarize(TraceIndex(trace));
  }

 private:
  void add(std::string_view category, std::string_view name, double begin, double end, int pid,
           int tid, const std::string& args) {
    text_ += (text_.empty() ? "" : ",\n") + std::string(R"({"ph": "X", "cat": ")") +
             std::string(category) + R"(", "name": ")" + std::string(name) + R"(", "pid": )" +
             std::to_string(pid) + R"(, "tid": )" + std::to_string(tid) + R"(, "ts": )" +
             std::to_string(begin) + R"(, "dur": )" + std::to_string(end - begin) +
             R"(, "args": {)" + args + "}}";
  }
  std::string text_;
};

TEST(TraceAnalysis, ADevicesWorkBelongsToTheInnermostOperatorAndModule) {
  Made made;
  made.slice("python_function", "nn.Module: Net_0", 0, 300)
      .slice("python_function", "nn.Module: Linear_1", 5, 95)
      .slice("cpu_op", "aten::linear", 10, 90, 0, 1, R"("Input Dims": [[8, 4], [2, 4]])")
      .slice("cpu_op", "aten::addmm", 20, 80, 0, 1, R"("Input Dims": [[2], [8, 4], [4, 2]])")
      .slice("cuda_runtime", "cudaLaunchKernel", 30, 35, 1)
      .slice("cpu_op", "aten::relu", 100, 150)
      .slice("cuda_runtime", "cudaLaunchKernel", 100, 105, 2)
      .slice("cuda_runtime", "cudaLaunchKernel", 400, 405, 3)
      .kernel("gemm", 40, 140, 1)
      .kernel("relu", 140, 160, 2)
      .kernel("stray", 410, 411, 3);
  const TraceSummary s = made.summary();
  ASSERT_EQ(s.devices.size(), 1u);
  const WorkOwners& owners = s.devices[0].owners;
  EXPECT_EQ(owners.time, 121'000);
  ASSERT_EQ(owners.operators.size(), 2u);
  EXPECT_EQ(owners.operators[0].name, "aten::addmm");
  EXPECT_EQ(owners.operators[0].time, 100'000);
  EXPECT_EQ(owners.operators[1].name, "aten::relu");
  ASSERT_EQ(owners.modules.size(), 2u);
  EXPECT_EQ(owners.modules[0].name, "nn.Module: Linear_1");
  EXPECT_EQ(owners.modules[1].name, "nn.Module: Net_0");
  EXPECT_EQ(owners.modules[1].time, 20'000);
  EXPECT_EQ(s.devices[0].kernels[0].owner, "aten::addmm");
  EXPECT_EQ(s.devices[0].kernels.back().owner, "");
  EXPECT_EQ(made.summary(true).devices[0].owners.operators[0].name,
            "aten::addmm [[2], [8, 4], [4, 2]]");
}

TEST(TraceAnalysis, LaunchesAreToldByTheirCallGraphsAndHipToo) {
  Made made;
  made.slice("cuda_runtime", "cudaGraphLaunch", 0, 10, 1)
      .slice("cuda_runtime", "hipModuleLaunchKernel", 20, 24, 2)
      .slice("cuda_driver", "cuLaunchKernelEx", 30, 33, 3);
  for (int i = 0; i < 5; ++i) made.kernel("in graph", 12 + i, 12.5 + i, 1);
  made.kernel("k", 40, 50, 2).kernel("k", 50, 60, 3);
  const LaunchSummary launch = made.summary().devices[0].launch;
  ASSERT_EQ(launch.calls.size(), 3u);
  EXPECT_EQ(launch.count, 3u);
  for (const LaunchCall& call : launch.calls) {
    EXPECT_EQ(call.count, 1u);
    EXPECT_EQ(call.events, call.name == "cudaGraphLaunch" ? 5u : 1u);
    if (call.name == "hipModuleLaunchKernel") {
      EXPECT_EQ(call.delay, 16'000);
    }
  }
}

// A graph is replayed a hundred times; of most replays no kernel was recorded.
TEST(TraceAnalysis, ReplaysThatLeftNothingMakeARecordingIncomplete) {
  for (const int recorded : {100, 99, 10}) {
    Made made;
    for (int i = 0; i < 100; ++i) {
      made.slice("cuda_runtime", "cudaGraphLaunch", i * 1000, i * 1000 + 10, i + 1);
      if (i < recorded) made.kernel("k", i * 1000 + 15, i * 1000 + 900, i + 1);
    }
    const TraceSummary s = made.summary();
    EXPECT_EQ(s.launches, 100u);
    EXPECT_EQ(s.unrecorded_launches, static_cast<uint64_t>(100 - recorded));
    EXPECT_EQ(s.incomplete(), recorded < 90);
  }
}

TEST(TraceAnalysis, WhatIsCapturedIsNotMissed) {
  Made made;
  made.slice("cuda_runtime", "cudaStreamBeginCapture", 0, 1, 100);
  for (int i = 0; i < 50; ++i)
    made.slice("cuda_runtime", "cudaLaunchKernel", 2 + i, 2.5 + i, 101 + i);
  // Another thread launches for good meanwhile, in vain.
  made.slice("cuda_runtime", "cudaLaunchKernel", 10, 11, 300, 2);
  made.slice("cuda_runtime", "cudaStreamEndCapture", 60, 61, 200);
  made.slice("cuda_runtime", "cudaGraphLaunch", 70, 71, 201).kernel("k", 80, 90, 201);
  const TraceSummary s = made.summary();
  EXPECT_EQ(s.launches, 2u);
  EXPECT_EQ(s.unrecorded_launches, 1u);
}

TEST(TraceAnalysis, GapsBeforeWorkWithoutALaunchAreUnknown) {
  Made made;
  made.slice("cuda_runtime", "cudaLaunchKernel", 0, 5, 1)
      .slice("cuda_runtime", "cudaLaunchKernel", 6, 9, 2)
      .kernel("a", 10, 20, 1)
      .kernel("b", 120, 130, 2)    // launched in time: it waited for something else
      .kernel("c", 330, 340, 99);  // its launch was not recorded
  const DeviceSummary d = made.summary().devices[0];
  EXPECT_EQ(d.idle.other, 300'000);
  EXPECT_EQ(d.unknown, 200'000);
}

TEST(TraceAnalysis, HostWaitInACollectiveIsTold) {
  Made made;
  made.slice("cuda_runtime", "cudaLaunchKernel", 0, 5, 1)
      .slice("user_annotation", "gloo:all_reduce", 30, 80, 0, 2)
      .slice("cuda_runtime", "cudaLaunchKernel", 100, 105, 2)
      .kernel("a", 10, 20, 1)
      .kernel("b", 110, 130, 2);
  const DeviceSummary d = made.summary().devices[0];
  EXPECT_EQ(d.idle.host_wait, 90'000);
  EXPECT_EQ(d.collective_wait, 50'000);
}

// The same operator, called from two modules; one of the two gets slower.
TEST(TraceAnalysis, ADifferenceIsToldByWhereItIsCalled) {
  const auto trace = [](double second) {
    Made made;
    made.slice("python_function", "nn.Module: Linear_0", 0, 100)
        .slice("cpu_op", "aten::mm", 10, 90)
        .slice("cuda_runtime", "cudaLaunchKernel", 20, 25, 1)
        .slice("python_function", "nn.Module: Linear_1", 200, 300 + second)
        .slice("cpu_op", "aten::mm", 210, 290 + second)
        .slice("cuda_runtime", "cudaLaunchKernel", 220, 225, 2)
        .kernel("gemm", 30, 60, 1)
        .kernel("gemm", 230, 260 + second, 2);
    return made.read();
  };
  const Trace a = trace(0), b = trace(40);
  const TraceDiff diff = diff_traces(a, b);
  EXPECT_TRUE(diff.faster.empty());
  ASSERT_EQ(diff.slower.size(), 3u);
  for (const TraceChange& c : diff.slower) {
    EXPECT_EQ(c.difference(), 40'000) << c.name;
    EXPECT_EQ(c.kind == "module" ? c.name : c.place, "nn.Module: Linear_1") << c.name;
  }
  // Stacks on one side alone match nothing: names do.
  Made bare;
  bare.slice("cpu_op", "aten::mm", 10, 130).slice("cpu_op", "aten::mm", 200, 240);
  for (const TraceChange& c : diff_traces(a, bare.read()).faster) EXPECT_EQ(c.place, "") << c.name;
}

// What makes batches may be another process: no operator or kernel tells of it.
TEST(TraceAnalysis, ADifferenceMayBeTheWaitForBatches) {
  const auto trace = [](double wait) {
    Made made;
    for (int step = 0; step < 3; ++step) {
      const double begin = step * (1000 + wait);
      made.slice("user_annotation", "ProfilerStep#" + std::to_string(step), begin,
                 begin + 1000 + wait)
          .slice("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                 begin + 10, begin + 10 + wait)
          .slice("cpu_op", "aten::mm", begin + wait + 100, begin + wait + 200);
    }
    return made.read();
  };
  const TraceDiff diff = diff_traces(trace(100), trace(500));
  ASSERT_EQ(diff.slower.size(), 1u);
  EXPECT_EQ(diff.slower[0].kind, "input");
  EXPECT_EQ(diff.slower[0].a, 100'000);
  EXPECT_EQ(diff.slower[0].b, 500'000);
  EXPECT_TRUE(diff.faster.empty());
}

TEST(TraceAnalysis, ShapesAreTheSameHoweverTheyAreLaidOut) {
  for (const char* dims : {"[[8, 4], []]", "[[8,4],[]]", "[\n  [\n    8,\n    4\n  ],\n  []\n]"}) {
    Made made;
    made.slice("cpu_op", "aten::mm", 0, 9, 0, 1, std::string(R"("Input Dims": )") + dims);
    EXPECT_EQ(made.read(true).name_of(0), "aten::mm [[8, 4], []]") << dims;
  }
}

TEST(TraceAnalysis, ARunFoldersTraceHasTheRunsSteps) {
  testing::RunBuilder b;
  for (int i = 0; i < 20; ++i) b.wait(4).forward(2).backward(6).optimizer(1, 0, i + 1);
  model::Run run = b.build();
  find_steps(run);
  const auto trace = import_trace_bytes(chrome_json(run));
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->format, "flatout");
  const TraceSummary s = summarize(TraceIndex(*trace));
  ASSERT_EQ(s.steps.size(), run.steps.steps.size());
  for (size_t i = 0; i < s.steps.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(s.steps[i].wall),
                static_cast<double>(run.steps.steps[i].length().count()), 2000);
    EXPECT_NEAR(static_cast<double>(s.steps[i].input_wait),
                static_cast<double>(run.steps.steps[i].part(Part::kInputWait).count()), 2000);
  }
}

TEST(TraceAnalysis, TheGridIsThatOfDoubles) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 100'000; ++i) {
    const auto ns =
        static_cast<int64_t>(1'000'000'000'000'000'000 + random() % 1'400'000'000'000'000'000);
    const auto us = static_cast<double>(static_cast<long double>(ns) / 1000);
    ASSERT_EQ(on_double_grid(ns), std::llround(us * 1000)) << ns;
  }
}

TEST(TraceAnalysis, AWindowIsFoundInMemoryThatDoesNotGrow) {
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    text += std::string(i > 0 ? "," : "") +
            R"({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": )" +
            std::to_string(100 + i) + R"(, "dur": 1})";
    if (i % 500 == 0) {
      text += R"(,{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#)" +
              std::to_string(i / 500) + R"(", "pid": 1, "tid": 1, "ts": )" +
              std::to_string(100 + i) + R"(, "dur": 500})";
    }
  }
  TraceOptions options;
  options.steps_only = true;
  const auto trace = import_trace_bytes("{\"traceEvents\": [" + text + "]}", "t", options);
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->size(), 5u);  // four steps and the first event
  EXPECT_EQ(trace->start[0], 100'000);
  EXPECT_EQ(TraceIndex(*trace).steps().size(), 4u);
}

// Each nanosecond belongs to the line that encloses it, however many slices lie in between.
TEST(TraceAnalysis, ALineIsFoundBelowAnyNumberOfSlices) {
  constexpr int kDeep = 20'000;
  Made made;
  made.slice("python_function", "train.py(7): step", 0, 2 * kDeep + 20);
  for (int i = 0; i < kDeep; ++i)
    made.slice("python_function", "<built-in function f>", 1 + i, 2 * kDeep + 10 - i);
  const HostUse use = made.summary().host.training;
  ASSERT_EQ(use.interpreter.lines.size(), 1u);
  EXPECT_EQ(use.interpreter.lines[0].name, "train.py(7): step");
  EXPECT_EQ(use.interpreter.lines[0].time, (2 * kDeep + 20) * int64_t{1000});
}

TEST(TraceAnalysis, WhatTheHostDidIsDividedBySort) {
  Made made;
  made.slice("python_function", "train.py(7): step", 0, 100)
      .slice("python_function", "<built-in function sleep>", 10, 30)
      .slice("python_function", "torch/serialization.py(9): save", 30, 60)
      .slice("python_function", "<built-in function sleep>", 40, 50)
      .slice("python_function", "<built-in method acquire of _thread.lock object at 0x7f>", 70, 75)
      .slice("python_function", "<built-in method acquire of _thread.lock object at 0x8f>", 75, 80);
  const HostUse use = made.summary().host.training;
  EXPECT_EQ(use.time, 100'000);
  EXPECT_EQ(use.asleep.time, 20'000);
  EXPECT_EQ(use.saving.time, 30'000);       // whatever it does meanwhile
  EXPECT_EQ(use.interpreter.time, 40'000);  // the rest waits for a lock
  EXPECT_EQ(use.asleep.lines[0].name, "train.py(7): step");
  const auto lock = std::find_if(use.slices.begin(), use.slices.end(), [](const HostBlame& b) {
    return b.name == "<built-in method acquire of _thread.lock>";
  });
  ASSERT_NE(lock, use.slices.end());
  EXPECT_EQ(lock->time, 10'000);
}

// A window is told from the pieces of a gap alone in which no batch was asked for.
TEST(TraceAnalysis, HostWaitIsToldWithoutTheWaitForABatch) {
  Made made;
  made.slice("cuda_runtime", "cudaLaunchKernel", 0, 5, 1).kernel("k", 10, 20, 1);
  made.slice("user_annotation", "enumerate(DataLoader)#x", 30, 60)
      .slice("python_function", "<built-in function sleep>", 60, 80)
      .slice("cuda_runtime", "cudaLaunchKernel", 80, 85, 2)
      .kernel("k", 90, 100, 2);
  const DeviceSummary d = made.summary().devices[0];
  EXPECT_EQ(d.idle.input_wait, 30'000);
  EXPECT_EQ(d.host.time, 40'000);
  EXPECT_EQ(d.host.asleep.time, 20'000);
}

TEST(TraceAnalysis, CollectivesOfTheHostAreForRanksToCompare) {
  Made made;
  made.slice("cpu_op", "aten::mm", 0, 50)
      .slice("user_annotation", "gloo:all_reduce", 40, 90, 0, 2)
      .slice("cpu_op", "aten::add", 90, 100);
  const TraceSummary s = made.summary();
  ASSERT_EQ(s.collectives.size(), 1u);
  EXPECT_EQ(s.collectives[0].name, "gloo:all_reduce");
  EXPECT_EQ(s.host.collective_wait, 40'000);
}

TEST(UserLine, IsNeitherALibrarysNorTheAgents) {
  model::Where where;
  EXPECT_FALSE(user_line("/src/python/flatout/agent/profiler.py(44): _start", where));
  EXPECT_FALSE(user_line("/venv/lib/python3.11/site-packages/x.py(3): f", where));
  for (const char* library :
       {"selectors.py(402): select", "torch/nn/modules/module.py(1): forward",
        "json/decoder.py(3): f", "/usr/lib/python3.11/queue.py(3): get",
        "/tmp/torchinductor_root/ab/cab.py(3): call", "<built-in function sleep>", "$time sleep"}) {
    EXPECT_FALSE(user_line(library, where)) << library;
  }
  for (const char* own :
       {"multithreading.py(1): f", "my_contextlib.py(1): f", "profile.py(1): f",
        "pytorch/train.py(1): f", "mykeras/train.py(1): f", "lib/data.py(1): f"}) {
    EXPECT_TRUE(user_line(own, where)) << own;
  }
  ASSERT_TRUE(user_line("/job/agent/train.py(12): step", where));
  EXPECT_EQ(where.file, "/job/agent/train.py");
  EXPECT_EQ(where.line, 12);
}

}  // namespace
}  // namespace flatout::timeline
