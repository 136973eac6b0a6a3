// Tiny operations: whose they are, at which line, and what they cost.
#include <gtest/gtest.h>

#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

TEST(PythonBound, TinyOperationsInALoopArePythonBoundAndBigOnesAreNot) {
  for (const bool tiny : {true, false}) {
    RunBuilder b;
    const Line loop{"forward", "/home/u/model.py", 22};
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, tiny ? 8.0 : 1.0, {ThreadState::kOnCpuPython, {kMain, loop}}},
              {Part::kForward, 12, {ThreadState::kOnCpuNative, {kMain, loop}}}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    EXPECT_EQ(diagnose(b.build()).verdict, tiny ? "cpu.python_bound" : "healthy");
  }
}

TEST(PythonBound, ItsRemedyIsThatOfTheLibraryTheJobComputesWith) {
  for (const auto& [library, compiler] :
       {std::pair("torch", "torch.compile"), {"tensorflow", "tf.function"}, {"jax", "jax.jit"}}) {
    RunBuilder b;
    b.run().info[std::string(library) + ".version"] = "2.0";
    const Doing python{ThreadState::kOnCpuPython, {kMain}};
    for (int i = 0; i < 60; ++i)
      b.step({{Part::kForward, 12, python}, {Part::kBackward, 2, kCompute}}, i < 3);
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    const Finding* f = find(d, "cpu.python_bound");
    ASSERT_NE(f, nullptr) << library;
    EXPECT_NE(f->remedies.front().text.find(compiler), std::string::npos) << library;
  }
}

// A model that generates what it learns from, in passes that no graph counts: of a few readings a
// quarter is in the interpreter by chance.
TEST(PythonBound, AFewReadingsAreNoProofUnlessTheGraphHasTinyOperations) {
  const Line loop{"generate", "/home/u/model.py", 22};
  for (const int steps : {13, 100}) {
    for (const int operations : {100, 400}) {
      RunBuilder b;
      b.run().info["torch.graph_nodes"] = std::to_string(operations);
      for (int i = 0; i < steps; ++i) {
        b.step({{Part::kForward, 1, {ThreadState::kOnCpuPython, {kMain, loop}}},
                {Part::kForward, 2.6, {ThreadState::kOnCpuNative, {kMain, loop}}},
                {Part::kBackward, 8, kCompute}},
               i < 3);
      }
      b.machine(2, 1).process_cpu(100, 1);
      const bool tiny = operations == 400;
      EXPECT_EQ(diagnose(b.build()).verdict != "healthy", tiny || steps == 100) << steps;
    }
  }
}

TEST(PythonBound, TinyOperationsThatALibrarysOwnLoopStartsAreNotPythonsDoing) {
  for (const int steps : {8, 60}) {
    for (const bool library : {false, true}) {
      RunBuilder b;
      b.run().info["torch.graph_nodes"] = "500";
      const Doing python{ThreadState::kOnCpuPython, {kMain}};
      for (int i = 0; i < steps; ++i) {
        b.step({{Part::kForward, 1, library ? kCompute : python},
                {Part::kForward, 3, kCompute},
                {Part::kBackward, 6, kCompute}},
               i < 3);
      }
      b.machine(2, 1).process_cpu(100, 1);
      const Diagnosis d = diagnose(b.build());
      EXPECT_EQ(d.verdict, library ? "healthy" : "cpu.python_bound") << steps << " steps";
    }
  }
}

// Readings find a line of them, the graph has them all: 3000 that take 7 us each are dispatch.
TEST(PythonBound, ManyTinyOperationsAreSparedWholeWhateverTheirLinesShow) {
  for (const int operations : {3000, 300}) {
    RunBuilder b;
    b.run().info["torch.graph_nodes"] = std::to_string(operations);
    const Line loop{"spread", "/home/u/model.py", 32};
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 2, {ThreadState::kOnCpuPython, {kMain, loop}}},
              {Part::kForward, 2, {ThreadState::kOnCpuNative, {kMain, loop}}},
              {Part::kForward, 3, kCompute},
              {Part::kBackward, 14, kCompute}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "cpu.python_bound");
    if (operations == 3000) {
      EXPECT_GT(*d.findings.front().gain, 10);
    } else {
      EXPECT_LT(*d.findings.front().gain, 3);
    }
  }
}

// Each takes less than dispatch does elsewhere: what is left without them is the optimizer.
TEST(PythonBound, NoMoreThanTheOperationsTakeIsSpared) {
  RunBuilder b;
  b.run().info["torch.graph_nodes"] = "1500";
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kForward, 1, {ThreadState::kOnCpuPython, {kMain}}},
            {Part::kForward, 3, kCompute},
            {Part::kBackward, 6, kCompute},
            {Part::kOptimizer, 2, kCompute}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "cpu.python_bound");
  EXPECT_NEAR(*d.findings.front().gain, 6, 0.3);
}

// A loss of 1200 operations beside an encoder of few: Python starts those that its own function has
// time for, and none where it has hardly any part.
TEST(PythonBound, TinyOperationsBesideBigOnesAreCountedInTheirOwnFunction) {
  for (const bool pairs : {true, false}) {
    RunBuilder b;
    b.run().info["torch.graph_nodes"] = "1200";
    const Line loop{"pair", "/home/u/loss.py", 17}, encoder{"encode", "/home/u/model.py", 40};
    const Doing python{ThreadState::kOnCpuPython, {kMain, loop}};
    const Doing native{ThreadState::kOnCpuNative, {kMain, loop}};
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 11.3, {ThreadState::kOnCpuNative, {kMain, encoder}}},
              {Part::kForward, 0.4, pairs || i % 10 == 0 ? python : native},
              {Part::kForward, 3.5, native},
              {Part::kBackward, 25, kCompute}},
             i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, pairs ? "cpu.python_bound" : "healthy");
    if (!pairs) continue;
    EXPECT_EQ(d.findings.front().where->line, 17);
    EXPECT_NEAR(*d.findings.front().gain, 40.0 / (40 - 12), 0.1);
  }
}

// The interpreter shows most where the backward pass is called, but what it goes through was made
// before.
TEST(PythonBound, TheLineOfTinyOperationsIsNotThatOfTheirBackwardPass) {
  RunBuilder b;
  b.run().info["torch.graph_nodes"] = "2000";
  const Line loop{"mean_of", "/home/u/model.py", 32};
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kForward, 9, {ThreadState::kOnCpuNative, {kMain, loop}}},
            {Part::kForward, 1, {ThreadState::kOnCpuPython, {kMain, loop}}},
            {Part::kBackward, 3, {ThreadState::kOnCpuPython, {kMain}}},
            {Part::kBackward, 9, kCompute}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "cpu.python_bound") << d.headline;
  EXPECT_EQ(d.findings.front().where->line, 32);
}

// Where an installed trainer has the loop, its own Python and the backward pass are at one line of
// the user's.
TEST(PythonBound, ABackwardPassIsNotTinyBecauseATrainerRunsItAtItsLine) {
  RunBuilder b;
  b.run().info["torch.graph_nodes"] = "17";
  const Line fit{"fit", "/x/site-packages/trainers/loop.py", 300};
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kForward, 2, {ThreadState::kOnCpuNative, {kMain, fit}}},
            {Part::kForward, 5, {ThreadState::kOnCpuPython, {kMain, fit}}},
            {Part::kBackward, 10, {ThreadState::kOnCpuNative, {kMain, fit}}}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "cpu.python_bound") << d.headline;
  EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 7.2, 0.2);
}

// Norms of the gradients, or an average of the weights, parameter by parameter: autograd does not
// go through them.
TEST(PythonBound, TinyOperationsAfterTheBackwardPassHaveNone) {
  RunBuilder b;
  b.run().info["torch.graph_nodes"] = "60";
  const Line norms{"norms", "/home/u/train.py", 17};
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kForward, 10, kCompute},
            {Part::kBackward, 20, kCompute},
            {Part::kOther, 3, {ThreadState::kOnCpuPython, {kMain, norms}}},
            {Part::kOther, 3, {ThreadState::kOnCpuNative, {kMain, norms}}}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "cpu.python_bound") << d.headline;
  EXPECT_EQ(d.findings.front().where->line, 17);
  EXPECT_NEAR(*d.findings.front().gain, 36.0 / 30, 0.03);
}

// A replay memory's look-ups, and beside them what makes tensors of the samples: one piece of work
// is named, with what it calls, and the gain is that of this piece.
TEST(PythonBound, OfLinesThatThePythonInterpreterBoundsOnePieceOfWorkIsCounted) {
  RunBuilder b;
  b.run().info["torch.graph_nodes"] = "11";
  const Line optimize{"optimize", "/home/u/dqn.py", 70}, tensor{"optimize", "/home/u/dqn.py", 71};
  const Line sample{"sample", "/home/u/dqn.py", 47}, draw{"draw", "/home/u/dqn.py", 12};
  const auto python = [](std::initializer_list<Line> stack) {
    return Doing{ThreadState::kOnCpuPython, {stack}};
  };
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kForward, 14, python({kMain, optimize, sample})},
            {Part::kForward, 4, python({kMain, optimize, sample, draw})},
            {Part::kForward, 2, python({kMain, optimize})},
            {Part::kForward, 8, python({kMain, tensor})},
            {Part::kForward, 8, kCompute},
            {Part::kBackward, 4, kCompute}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "cpu.python_bound");
  EXPECT_EQ(d.findings.front().where->line, 47);
  EXPECT_NEAR(*d.findings.front().gain, 40.0 / (40 - 20), 0.1);
}

// An environment in Python: most of its step is looking at neighbours. What else the step does is
// the same piece of work, unless it is much, or the call trains as well.
TEST(PythonBound, ACallThatIsMostlyOnePieceOfTinyOperationsIsAllOfThatPiece) {
  struct Case {
    double view;
    bool trains;
    double saved;
  };
  for (const Case& c : {Case{3, false, 16}, {9, false, 13}, {3, true, 13}}) {
    RunBuilder b;
    const Line acts{"main", "/home/u/rl.py", 62}, trains{"main", "/home/u/rl.py", 67};
    const Line spread{"step", "/home/u/grid.py", 23}, looks{"step", "/home/u/grid.py", 26};
    const Line neighbours{"neighbours", "/home/u/grid.py", 20}, view{"view", "/home/u/grid.py", 8};
    const Line backward{"backward", "/x/site-packages/torch/autograd/__init__.py", 300};
    const auto python = [](std::initializer_list<Line> stack) {
      return Doing{ThreadState::kOnCpuPython, {stack}};
    };
    for (int i = 0; i < 60; ++i) {
      b.step(
          {{Part::kForward, 12, python({acts, spread, neighbours})},
           {Part::kForward, 1, python({acts, spread})},
           {Part::kForward, c.view, python({acts, looks, view})},
           {Part::kForward, 20, kCompute},
           {Part::kBackward, 1, {ThreadState::kOnCpuNative, {c.trains ? acts : trains, backward}}}},
          i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "cpu.python_bound");
    EXPECT_EQ(d.findings.front().where->line, 20);
    // And their part of the backward pass.
    EXPECT_NEAR(*d.findings.front().cost_ms_per_step, c.saved + 0.4, 0.3) << c.view << c.trains;
  }
}

TEST(PythonBound, ReadingsWithoutAStackAreSpreadAsTheOthersAre) {
  RunBuilder b;
  const Line loop{"forward", "/home/u/model.py", 22};
  for (int i = 0; i < 60; ++i) {
    b.step({{Part::kForward, 12, {ThreadState::kOnCpuPython, {kMain, loop}}},
            {Part::kForward, 8, kCompute},
            {Part::kForward, 5, {ThreadState::kOnCpuNative, {}}}},
           i < 3);
  }
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "cpu.python_bound");
  EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 12 * 25 / 20.0, 0.1);
}

// A loop over the elements of tensors: the kernel and the collector work for what it makes. Where
// one of them has more to do than the interpreter, that is a cause of its own.
TEST(PythonBound, WhatTheKernelAndTheCollectorDoForTinyOperationsIsTheirs) {
  struct Case {
    double kernel, collector, saved;
  };
  for (const Case& c : {Case{4, 60, 16 + 4 + 6}, {14, 60, 16 + 6}, {4, 140, 16 + 4}}) {
    RunBuilder b;
    b.run().info["torch.graph_nodes"] = "11";
    const Line loop{"update", "/home/u/metric.py", 16}, rows{"update", "/home/u/metric.py", 15};
    const Doing collect{ThreadState::kOnCpuPython, {kMain, rows}, -1, model::kGcRunning};
    for (int i = 0; i < 100; ++i) {
      b.step({{Part::kForward, 30, kCompute},
              {Part::kBackward, 40, kCompute},
              {Part::kOther, 12, {ThreadState::kOnCpuPython, {kMain, loop}}},
              {Part::kOther, 4, {ThreadState::kOnCpuNative, {kMain, rows}}},
              {Part::kOther, i % 10 == 9 ? c.collector : 0, collect},  // a long step
              {Part::kOther, c.kernel, {ThreadState::kKernel, {kMain, loop}}}},
             i < 10);
    }
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    const Finding* f = find(d, "cpu.python_bound");
    ASSERT_NE(f, nullptr);
    EXPECT_EQ(f->where->line, 16);
    EXPECT_NEAR(*f->cost_ms_per_step, c.saved, 0.7);  // and a little of the backward pass
    EXPECT_NE(find(d, "cpu.gc"), nullptr);
  }
}

// The graph and the setting tell, where the lines of few readings do not.
TEST(PythonBound, AnomalyDetectionIsNamedByItsSettingWhereverItsOperationsAre) {
  for (const bool on : {true, false}) {
    RunBuilder b;
    b.run().info["torch.graph_nodes"] = "400";
    b.run().info["torch.anomaly"] = on ? "True" : "False";
    b.run().info["torch.anomaly.set_at"] = "/home/u/train.py:13 in <module>";
    for (int i = 0; i < 60; ++i) {
      b.step({{Part::kForward, 20, kCompute}, {Part::kBackward, 30, kCompute}}, i < 3);
    }
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, on ? "cpu.python_bound" : "healthy");
    if (!on) continue;
    EXPECT_EQ(d.findings.front().where->line, 13);
    EXPECT_EQ(d.findings.front().remedies.front().id, "no_anomaly");
    EXPECT_NEAR(*d.findings.front().cost_ms_per_step, 400 * 0.04, 0.1);
  }
}

// A thread that shows progress all the time does no more where steps are fast; one that has
// something to do for each step does.
TEST(PythonBound, WhatHoldsTheLockAllTheTimeIsNoWorkOfTheSteps) {
  const Line show{"show", "/home/u/progress.py", 24};
  for (const bool for_steps : {false, true}) {
    RunBuilder b;
    const model::ThreadId thread = b.thread(0, 101);
    for (int i = 0; i < 60; ++i) {
      const TimePoint at = b.now();
      b.step({{Part::kForward, 4, {ThreadState::kOnCpuPython, {kMain}}},
              {Part::kForward, 16, {ThreadState::kGilWait, {kMain}}}},
             i < 3);
      b.doing(thread, at, at + nanos(4e6),
              {for_steps ? ThreadState::kPoll : ThreadState::kGilWait, {show}});
      b.doing(thread, at + nanos(4e6), b.now(), {ThreadState::kOnCpuPython, {show}});
    }
    b.machine(2, 1).process_cpu(100, 1);
    const Diagnosis d = diagnose(b.build());
    ASSERT_EQ(d.verdict, "input.gil") << d.headline;
    EXPECT_EQ(d.findings.front().where->line, show.line);
    // To 10 ms, half of all work; or to 4 ms and what they take longer beside a busy core.
    EXPECT_NEAR(*d.findings.front().gain, for_steps ? 1.8 : 5, for_steps ? 0.2 : 1);
  }
}

// Beside such a thread, work for each step stays work, and a thread that waits for an answer all
// the time is at rest.
TEST(PythonBound, WorkForTheStepsStaysBesideAThreadThatIsNeverAtRest) {
  const Line show{"show", "/home/u/progress.py", 24}, score{"score", "/home/u/score.py", 9};
  RunBuilder b;
  const model::ThreadId shows = b.thread(0, 101), scores = b.thread(0, 102),
                        asks = b.thread(0, 103);
  for (int i = 0; i < 60; ++i) {
    const TimePoint at = b.now();
    b.step({{Part::kForward, 4, {ThreadState::kOnCpuPython, {kMain}}},
            {Part::kForward, 16, {ThreadState::kGilWait, {kMain}}}},
           i < 3);
    b.doing(scores, at, at + nanos(4e6), {ThreadState::kPoll, {score}});
    b.doing(scores, at + nanos(4e6), at + nanos(8e6), {ThreadState::kOnCpuPython, {score}});
    b.doing(scores, at + nanos(8e6), b.now(), {ThreadState::kPoll, {score}});
    b.doing(shows, at, at + nanos(8e6), {ThreadState::kGilWait, {show}});
    b.doing(shows, at + nanos(8e6), b.now(), {ThreadState::kOnCpuPython, {show}});
    b.doing(asks, at, b.now(), {ThreadState::kPoll, {score}});
  }
  b.machine(2, 1).process_cpu(100, 1);
  const Diagnosis d = diagnose(b.build());
  ASSERT_EQ(d.verdict, "input.gil") << d.headline;
  // To 4 ms of the loop's and 4 ms of scores on the core that is left, beside a busy one.
  EXPECT_NEAR(*d.findings.front().gain, 2.2, 0.25);
}

}  // namespace
}  // namespace flatout::diagnose
