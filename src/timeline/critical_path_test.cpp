#include "timeline/critical_path.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "timeline/trace_builder.h"

namespace flatout::timeline {
namespace {

using model::CriticalPath;
using model::EventKind;
using model::PathPart;
using model::Trace;

constexpr int64_t kLaunch = 5'000, kNext = 1'000, kTail = 2'000;  // ns

// A program of one host thread and some streams, and the machine that runs it: the ground truth.
struct Call {
  int64_t work = 0, length = 0;  // before the call, and of it
  bool wait = false;             // cudaDeviceSynchronize, instead of a launch
  int64_t stream = 0;
  std::string kernel;
  int64_t duration = 0;
};

struct Machine {
  TraceBuilder builder;
  int64_t now = 0, over = 0;

  void add(EventKind kind, std::string_view category, std::string_view name, int64_t start,
           int64_t end, uint64_t correlation, std::optional<int64_t> stream = std::nullopt) {
    ImportedSlice s;
    s.time_ns = start;
    s.duration_ns = end - start;
    s.name = name;
    s.category = category;
    s.pid = s.tid = "1";
    s.kind = kind;
    s.correlation = correlation;
    if (stream) {
      s.device = 0;
      s.stream = stream;
    }
    builder.add(s);
  }
  Trace run(const std::vector<Call>& program, int64_t tail = kTail) {
    std::map<int64_t, int64_t> ends;  // of the streams
    uint64_t correlation = 0;
    for (const Call& call : program) {
      now += call.work;
      if (call.wait) {
        int64_t ready = now;
        for (const auto& [stream, end] : ends) ready = std::max(ready, end);
        add(EventKind::kRuntime, "cuda_runtime", "cudaDeviceSynchronize", now, ready + tail, 0);
        now = ready + tail;
        continue;
      }
      add(EventKind::kRuntime, "cuda_runtime", "cudaLaunchKernel", now, now + call.length,
          ++correlation);
      int64_t start = now + kLaunch;
      if (ends.contains(call.stream)) start = std::max(start, ends[call.stream] + kNext);
      ends[call.stream] = start + call.duration;
      add(EventKind::kKernel, "kernel", call.kernel, start, ends[call.stream], correlation,
          call.stream);
      now += call.length;
    }
    over = now;
    for (const auto& [stream, end] : ends) over = std::max(over, end);
    ScanReport report;
    return builder.finish(report);
  }
};

int64_t length_of(const std::vector<Call>& program, int64_t tail = kTail) {
  Machine machine;
  machine.run(program, tail);
  return machine.over;
}

CriticalPath path_of(const std::vector<Call>& program) {
  Machine machine;
  const Trace trace = machine.run(program);
  const TraceIndex index(trace);
  const auto path = critical_path(index, 0, machine.now);
  EXPECT_TRUE(path.has_value());
  return path.value_or(CriticalPath{});
}

int64_t sum(const CriticalPath& path) {
  int64_t all = 0;
  for (const int64_t part : path.parts) all += part;
  return all;
}
int64_t part(const CriticalPath& path, PathPart which) {
  return path.parts[static_cast<size_t>(which)];
}

// Two kernels one right after the other show how long a stream takes from one to the next.
std::vector<Call> opening() {
  return {
      {1000, 4000, false, 7, "gemm", 20'000}, {1000, 4000, false, 7, "gemm", 20'000}, {0, 0, true}};
}

TEST(CriticalPath, ADeviceThatNeverIdlesIsThePath) {
  const std::vector<Call> program(10, {1000, 4000, false, 7, "gemm", 100'000});
  const CriticalPath path = path_of(program);
  EXPECT_EQ(path.length, 1000 + kLaunch + 1'000'000 + 9 * kNext);
  EXPECT_EQ(part(path, PathPart::kCompute), 1'000'000);
  EXPECT_EQ(part(path, PathPart::kHost), 1000);
  EXPECT_EQ(part(path, PathPart::kDelay), kLaunch + 9 * kNext);
  EXPECT_EQ(sum(path), path.length);
  ASSERT_FALSE(path.what_if.empty());
  EXPECT_EQ(path.what_if.front().part, PathPart::kCompute);
}

TEST(CriticalPath, AHostThatLaunchesTooSlowlyIsThePath) {
  const std::vector<Call> program(10, {50'000, 4000, false, 7, "tiny", 2000});
  const CriticalPath path = path_of(program);
  EXPECT_EQ(path.length, 10 * 50'000 + 9 * 4000 + kLaunch + 2000);
  EXPECT_EQ(part(path, PathPart::kHost), 10 * 50'000 + 9 * 4000);
  EXPECT_EQ(part(path, PathPart::kCompute), 2000);
  EXPECT_EQ(sum(path), path.length);
  EXPECT_EQ(path.what_if.front().part, PathPart::kHost);
}

TEST(CriticalPath, HiddenCommunicationIsNotOnThePath) {
  std::vector<Call> program = opening();
  program.push_back({1000, 4000, false, 20, "ncclDevKernel_AllReduce", 50'000});
  program.push_back({1000, 4000, false, 7, "gemm", 300'000});
  program.push_back({1000, 0, true});
  const CriticalPath path = path_of(program);
  EXPECT_EQ(part(path, PathPart::kCommunication), 0);
  for (const CriticalPath::WhatIf& w : path.what_if) EXPECT_NE(w.part, PathPart::kCommunication);
}

// Whatever the program, the path is as long as the run, and each answer is what the same program
// takes on the same machine with that work gone.
TEST(CriticalPath, AnswersAreWhatTheMachineWouldDo) {
  std::mt19937 random(7);
  const auto from = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  size_t answers = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<Call> program = opening();
    const int64_t slow = from(1, 40);
    for (int64_t i = from(5, 60); i > 0; --i) {
      if (from(0, 9) == 0) {
        program.push_back({from(100, 3000), 0, true});
        continue;
      }
      const bool collective = from(0, 3) == 0;
      program.push_back({from(500, 5000 * slow), from(2000, 8000), false, collective ? 20 : 7,
                         collective        ? "ncclDevKernel_AllReduce"
                         : from(0, 1) == 0 ? "gemm"
                                           : "relu",
                         from(1000, 200'000)});
    }
    const CriticalPath path = path_of(program);
    EXPECT_EQ(path.length, length_of(program)) << round;
    EXPECT_EQ(sum(path), path.length) << round;
    for (const CriticalPath::WhatIf& w : path.what_if) {
      std::vector<Call> other = program;
      for (Call& call : other) {
        const bool collective = call.kernel.starts_with("nccl");
        if (w.part == PathPart::kHost) {
          call.work = call.length = 0;
        } else if (!w.name.empty() ? call.kernel == w.name
                                   : collective == (w.part == PathPart::kCommunication)) {
          call.duration = 0;
        }
      }
      EXPECT_EQ(w.length, length_of(other, w.part == PathPart::kHost ? 0 : kTail))
          << round << " " << static_cast<int>(w.part) << " " << w.name;
      ++answers;
    }
  }
  EXPECT_GT(answers, 200u);
}

// The training thread calls the backward pass, which another thread runs; it goes on when that is
// done.
TEST(CriticalPath, GoesThroughTheThreadThatRunsTheBackwardPass) {
  Machine m;
  const auto launch = [&](std::string_view thread, int64_t at, uint64_t id) {
    ImportedSlice s;
    s.time_ns = at;
    s.duration_ns = 5000;
    s.name = "cudaLaunchKernel";
    s.category = "cuda_runtime";
    s.kind = EventKind::kRuntime;
    s.pid = "1";
    s.tid = thread;
    s.correlation = id;
    m.builder.add(s);
    m.add(EventKind::kKernel, "kernel", "k", at + kLaunch, at + kLaunch + 1000, id, 7);
  };
  const auto op = [&](std::string_view thread, std::string_view name, int64_t begin, int64_t end) {
    ImportedSlice s;
    s.time_ns = begin;
    s.duration_ns = end - begin;
    s.name = name;
    s.category = "cpu_op";
    s.kind = EventKind::kOp;
    s.pid = "1";
    s.tid = thread;
    m.builder.add(s);
  };
  op("main", "forward", 0, 100'000);
  launch("main", 90'000, 1);
  op("autograd", "backward", 130'000, 630'000);
  launch("autograd", 600'000, 2);
  op("main", "optimizer", 650'000, 700'000);
  launch("main", 690'000, 3);
  const Trace trace = m.builder.finish({});
  const TraceIndex index(trace);
  const auto path = critical_path(index, 0, 700'000);
  ASSERT_TRUE(path.has_value());
  EXPECT_EQ(path->length, 700'000);
  EXPECT_EQ(sum(*path), path->length);
  // What the hand-overs take, 30 and 20 us, is nobody's work.
  EXPECT_EQ(part(*path, PathPart::kDelay), 50'000);
  EXPECT_EQ(part(*path, PathPart::kHost), 650'000);
  const auto at = std::find_if(path->pieces.begin(), path->pieces.end(),
                               [](const CriticalPath::Piece& p) { return p.name == "backward"; });
  ASSERT_NE(at, path->pieces.end());
  EXPECT_EQ(at->time, 495'000);  // less its launch
}

TEST(CriticalPath, ABatchThatWasWaitedForIsInput) {
  std::vector<Call> program = opening();
  Machine machine;
  machine.add(EventKind::kAnnotation, "user_annotation",
              "enumerate(DataLoader)#_SingleProcessDataLoaderIter", 100'000, 400'000, 0);
  program.push_back({351'000, 4000, false, 7, "gemm", 50'000});  // from 49 us on
  const Trace trace = machine.run(program);
  const TraceIndex index(trace);
  const auto path = critical_path(index, 0, machine.now);
  ASSERT_TRUE(path.has_value());
  EXPECT_EQ(part(*path, PathPart::kInput), 300'000);
  ASSERT_FALSE(path->what_if.empty());
  EXPECT_EQ(path->what_if.front().part, PathPart::kInput);
  EXPECT_EQ(path->what_if.front().length, path->length - 300'000);
}

TEST(CriticalPath, WithoutADeviceThereIsNone) {
  TraceBuilder builder;
  const Trace trace = builder.finish({});
  EXPECT_FALSE(critical_path(TraceIndex(trace)).has_value());
}

TEST(CriticalPath, ADeviceWithoutAHostHasNone) {
  Machine machine;
  machine.add(EventKind::kKernel, "kernel", "k", 10, 20, 0, 7);
  machine.add(EventKind::kKernel, "kernel", "k", 30, 40, 0, 7);
  const Trace trace = machine.builder.finish({});
  EXPECT_FALSE(critical_path(TraceIndex(trace)).has_value());
}

}  // namespace
}  // namespace flatout::timeline
