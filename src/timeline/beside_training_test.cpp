#include "timeline/beside_training.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>

#include "timeline/steps.h"

namespace flatout::timeline {
namespace {

using model::Part;
using model::ThreadState;

constexpr int64_t kTick = 5'000'000;  // ns
constexpr model::ThreadId kMain = 0, kOther = 1;

/// A program whose main thread ends a step every 20 ms and two threads beside it, read every 5 ms.
class Program {
 public:
  explicit Program(bool python = false) {
    run_.processes.push_back({.pid = 7, .in_job = true, .main = true, .python = python});
    for (const int tid : {7, 8, 9}) run_.threads.push_back({0, tid, "", tid == 7});
    run_.entities.emplace_back();
    cpu_.signal = model::SignalId::kThreadCpuUser;
  }
  /// What all of its threads do from now on has this function in its stack.
  Program& in(const std::string& function, const std::string& file = "train.cpp") {
    stack_ = waits_ = stack_of(function, file);
    return *this;
  }
  /// But for the main thread's waits, which have this one.
  Program& waits_in(const std::string& function, const std::string& file) {
    waits_ = stack_of(function, file);
    return *this;
  }
  /// `runs`, `others`: whether they work in each of the step's four readings.
  Program& steps(int count, std::array<bool, 4> runs, std::array<bool, 4> others,
                 bool marked = true) {
    for (int i = 0; i < count; ++i) {
      for (size_t tick = 0; tick < 4; ++tick) {
        at_ += kTick;
        for (const model::ThreadId t : {kMain, kOther, kOther + 1}) {
          const bool works = t == kMain ? runs[tick] : others[tick];
          const auto state = works ? ThreadState::kOnCpuNative : ThreadState::kLock;
          run_.readings.push_back(
              {time_point_ns(at_), t, t == kMain && !works ? waits_ : stack_, kTick / 1000, state});
        }
        if (runs[tick]) cpu_ns_ += kTick;
      }
      if (!marked) continue;
      run_.slices.push_back(
          {time_point_ns(at_), time_point_ns(at_), model::SliceKind::kStep, kMain});
    }
    return *this;
  }
  model::Run run() {
    run_.begin = time_point_ns(0);
    run_.end = time_point_ns(at_ + 1);
    run_.finished = true;
    run_.entities.push_back({model::EntityKind::kThread, 7});
    cpu_.entity = static_cast<model::EntityId>(run_.entities.size() - 1);
    cpu_.readings = {{run_.begin, 0}, {run_.end, static_cast<double>(cpu_ns_)}};
    run_.series.push_back(cpu_);
    find_steps(run_);
    return run_;
  }

 private:
  model::StackId stack_of(const std::string& function, const std::string& file) {
    run_.strings.push_back(function);
    run_.strings.push_back(file);
    const auto strings = static_cast<model::StringId>(run_.strings.size());
    run_.frames.push_back({strings - 2, strings - 1, 1, model::FrameKind::kNative});
    run_.stacks.push_back({0, static_cast<model::FrameId>(run_.frames.size() - 1)});
    return static_cast<model::StackId>(run_.stacks.size() - 1);
  }

  model::Run run_;
  model::Series cpu_;
  int64_t at_ = 0, cpu_ns_ = 0;
  model::StackId stack_ = 0, waits_ = 0;
};

double share(const model::Run& run, Part part) {
  return run.steps.summary.breakdown[static_cast<size_t>(part)];
}

TEST(BesideTraining, WaitsForThreadsThatComputeForItAreComputing) {
  const auto team =
      Program().steps(60, {true, false, false, false}, {false, true, true, true}).run();
  EXPECT_LT(share(team, Part::kInputWait), 0.05);
  EXPECT_TRUE(team.steps.working_ahead.empty());
}

TEST(BesideTraining, OneThatComputesNothingItselfHasOthersCompute) {
  const auto team =
      Program().steps(60, {false, false, false, false}, {true, true, true, true}).run();
  EXPECT_LT(share(team, Part::kInputWait), 0.05);
}

TEST(BesideTraining, ThreadsThatWorkAheadMakeTheBatches) {
  const auto input =
      Program().steps(60, {true, false, false, false}, {true, true, true, true}).run();
  EXPECT_GT(share(input, Part::kInputWait), 0.6);
  EXPECT_EQ(input.steps.working_ahead, (std::vector<uint32_t>{kOther, kOther + 1}));
}

// A team that is larger than the machine stands in line for a core while one of it computes.
TEST(BesideTraining, ThreadsOfAParallelRegionComputeWithIt) {
  using Place = std::pair<std::string, std::string>;
  for (const auto& [function, file] :
       {Place{"main._omp_fn.0", "train.cpp"}, Place{".omp_outlined._debug__", "train.cpp"},
        Place{"[libgomp.so.1.0.0]", "/usr/lib/libgomp.so.1.0.0"}}) {
    const auto team = Program()
                          .in(function, file)
                          .steps(60, {true, false, false, false}, {true, true, true, true})
                          .run();
    EXPECT_LT(share(team, Part::kInputWait), 0.05);
    EXPECT_TRUE(team.steps.working_ahead.empty());
  }
}

// A step that has its kernels run by a team may wait for its batch all the same.
TEST(BesideTraining, AWaitOutsideOfTheRegionIsNoneForTheTeam) {
  const auto input = Program()
                         .in("main._omp_fn.0")
                         .waits_in("pthread_cond_wait", "/usr/lib/libc.so.6")
                         .steps(60, {true, true, false, false}, {true, true, true, true})
                         .run();
  EXPECT_GT(share(input, Part::kInputWait), 0.4);
}

// Nor is there an order in which it works and waits.
TEST(BesideTraining, WithoutStepsItsWaitsAreToldAllTheSame) {
  for (const bool ahead : {true, false}) {
    Program program;
    uint32_t random = 1;
    for (int i = 0; i < 200; ++i) {
      std::array<bool, 4> runs{}, others{};
      for (size_t tick = 0; tick < 4; ++tick) {
        random = random * 1664525 + 1013904223;
        runs[tick] = (random >> 20) % 2 == 0;
        others[tick] = ahead || !runs[tick];
      }
      program.steps(1, runs, others, false);
    }
    const auto run = program.run();
    ASSERT_EQ(run.steps.source, model::StepSource::kNone);
    EXPECT_EQ(run.steps.working_ahead.size(), ahead ? 2u : 0u);
    ASSERT_EQ(run.steps.moments.size(), 800u);
    size_t waits = 0;
    for (size_t i = 0; i < run.steps.moments.size(); ++i) {
      const bool input = run.steps.moments[i].part == Part::kInputWait;
      EXPECT_EQ(input, ahead && run.readings[3 * i].state == ThreadState::kLock);
      waits += input;
    }
    EXPECT_NEAR(static_cast<double>(waits), ahead ? 400 : 0, 60);
  }
}

// It reads files and writes some by itself, in a line that computes as well.
TEST(BesideTraining, WhatItReadsIsInputAndWhatItWritesIsNot) {
  Program program;
  auto run = program.steps(50, {true, true, true, true}, {}, false).run();
  for (size_t i = 0; i < run.readings.size(); i += 12) {
    run.readings[i].state = ThreadState::kDisk;
    run.readings[i].syscall = SYS_pread64;
    run.readings[i + 3].state = ThreadState::kKernel;
    run.readings[i + 3].syscall = SYS_read;
    run.readings[i + 6].state = ThreadState::kDisk;
    run.readings[i + 6].syscall = SYS_fdatasync;
  }
  find_steps(run);
  EXPECT_GT(run.steps.moments.size(), 140u);
  for (const model::Moment& m : run.steps.moments) {
    const auto reading = std::ranges::find(run.readings, m.at, &model::StackReading::at);
    const auto tick = (reading - run.readings.begin()) / 3 % 4;
    EXPECT_EQ(m.part, tick < 2 ? Part::kInputWait : tick == 2 ? Part::kOther : Part::kCompute);
  }
}

// A function that makes a file, fills it and puts it in its place saves; one that reads it looks it
// up for that.
TEST(BesideTraining, NamesOfFilesBelongToWhatTheirFunctionDoesWithThem) {
  for (const int call : {SYS_fdatasync, SYS_pread64}) {
    Program program;
    auto run = program.in("model_file", "/home/u/train.cpp")
                   .steps(50, {true, true, true, true}, {}, false)
                   .run();
    for (size_t i = 0; i < run.readings.size(); i += 12) {
      run.readings[i].state = run.readings[i + 3].state = ThreadState::kDisk;
      run.readings[i].syscall = static_cast<int16_t>(call);
      run.readings[i + 3].syscall = SYS_rename;
    }
    find_steps(run);
    ASSERT_GT(run.steps.moments.size(), 140u);
    for (const model::Moment& m : run.steps.moments) {
      const auto reading = std::ranges::find(run.readings, m.at, &model::StackReading::at);
      const auto tick = (reading - run.readings.begin()) / 3 % 4;
      const Part files = call == SYS_pread64 ? Part::kInputWait : Part::kOther;
      EXPECT_EQ(m.part, tick < 2 ? files : Part::kCompute);
    }
  }
}

// Who waits for a mutex waits for no batch.
TEST(BesideTraining, AMutexIsNoInput) {
  for (const char* function : {"pthread_cond_wait", "pthread_mutex_lock"}) {
    auto run = Program().steps(60, {true, false, false, false}, {true, true, true, true}).run();
    run.strings.insert(run.strings.end(), {"main", function});
    const auto name = static_cast<model::StringId>(run.strings.size() - 1);
    run.frames.push_back({name - 1, 0, 3, model::FrameKind::kNative});
    run.frames.push_back({name, 0, 0, model::FrameKind::kNative});
    const auto frame = static_cast<model::FrameId>(run.frames.size() - 2);
    run.stacks.push_back({0, frame});
    const auto main = static_cast<model::StackId>(run.stacks.size() - 1);
    run.stacks.push_back({main, frame + 1});
    for (model::StackReading& r : run.readings) {
      if (r.thread == kMain) r.stack = r.state == ThreadState::kLock ? main + 1 : main;
    }
    find_steps(run);
    EXPECT_NEAR(share(run, Part::kInputWait), function[8] == 'c' ? 0.75 : 0, 0.05) << function;
  }
}

TEST(BesideTraining, WaitsWhileNobodyWorksAreNoComputing) {
  const auto idle =
      Program().steps(60, {true, false, false, false}, {false, true, false, false}).run();
  EXPECT_GT(share(idle, Part::kInputWait), 0.3);
}

TEST(BesideTraining, NothingIsSaidOfPython) {
  const auto python =
      Program(true).steps(60, {true, false, false, false}, {false, true, true, true}).run();
  EXPECT_GT(share(python, Part::kInputWait), 0.6);
  EXPECT_TRUE(python.steps.working_ahead.empty());
}

}  // namespace
}  // namespace flatout::timeline
