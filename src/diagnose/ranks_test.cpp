#include "diagnose/ranks.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "diagnose/testing/run_builder.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;
using model::Rank;
using model::RankState;

constexpr TimePoint kStart = time_point_ns(1'000'000'000);

Nanos ms_of(double ms) { return nanos(ms * 1e6); }

/// Noise that is the same each time: -1 to 1.
double noise(size_t rank, size_t step) {
  const uint64_t mixed = (rank * 7919 + step * 104'729 + 13) * 2'654'435'761u;
  return static_cast<double>(mixed % 2001) / 1000 - 1;
}

/// Ranks of which each does own(rank, step) ms of work in a step; all leave its collective
/// together, `collective` ms after the last has come.
std::vector<Rank> job(size_t ranks, size_t steps, double collective,
                      const std::function<double(size_t, size_t)>& own) {
  std::vector<Rank> out(ranks);
  TimePoint now = kStart;
  for (size_t r = 0; r < ranks; ++r) {
    out[r].number = static_cast<int32_t>(r);
    out[r].world = static_cast<int32_t>(ranks);
    out[r].pid = 100 + static_cast<int32_t>(r);
    out[r].finished = true;
    out[r].wait_status = 0;
  }
  for (size_t k = 0; k < steps; ++k) {
    double last = 0;
    for (size_t r = 0; r < ranks; ++r) last = std::max(last, own(r, k));
    const Nanos length = ms_of(last + collective);
    now += length;
    for (size_t r = 0; r < ranks; ++r) {
      const Nanos waiting = length - ms_of(own(r, k));
      out[r].judged.push_back({static_cast<int64_t>(k), now, length, waiting});
      out[r].parts[static_cast<size_t>(Part::kForward)] +=
          own(r, k) * 1e-3 / static_cast<double>(steps);
      out[r].steps.median = length;
      out[r].longest_step = std::max(out[r].longest_step, length);
    }
  }
  for (Rank& r : out) {
    r.steps.count = static_cast<int64_t>(steps);
    r.last_step = static_cast<int64_t>(steps) - 1;
    r.last_step_end = r.end = now;
  }
  return out;
}

Finding costing(const std::string& id, double ms) {
  Finding f;
  f.id = id;
  f.title = "Title of " + id;
  f.cost_ms_per_step = ms;
  f.gain = 1.2;
  f.where = model::Where{"/home/u/data.py", 41, "__getitem__"};
  return f;
}

Finding ending(const std::string& id) {
  Finding f;
  f.id = id;
  f.title = "Title of " + id;
  f.ended_the_job = true;
  return f;
}

const Finding* find(const Diagnosis& d, const std::string& id) {
  for (const Finding& f : d.findings) {
    if (f.id == id) return &f;
  }
  return nullptr;
}

TEST(Ranks, TheOneThatWorksLongestHoldsUpTheOthers) {
  auto ranks = job(4, 100, 1, [](size_t r, size_t k) { return (r == 2 ? 60 : 40) + noise(r, k); });
  ranks[2].findings.push_back(costing("cpu.noisy_neighbour", 18));
  const Diagnosis d = diagnose_ranks(std::move(ranks));
  ASSERT_EQ(d.verdict, "dist.straggler");
  const Finding& f = d.findings.front();
  EXPECT_EQ(f.title, "Rank 2 holds up the others: Title of cpu.noisy_neighbour");
  // Without it steps take as long as the last of the others: about 41 of 61 ms.
  EXPECT_NEAR(*f.cost_ms_per_step, 19.5, 1);
  EXPECT_NEAR(*f.gain, 61.0 / 41.5, 0.03);
  ASSERT_TRUE(f.where);
  EXPECT_EQ(f.where->line, 41);
  EXPECT_EQ(d.ranks->ranks[2].cause, "cpu.noisy_neighbour");
  EXPECT_TRUE(d.ranks->ranks[2].late);
  EXPECT_FALSE(d.ranks->ranks[1].late);
  EXPECT_EQ(d.findings.size(), 1u) << "the cause is not said a second time";
}

TEST(Ranks, NoneIsToBlameWhereAllWereToldToEnd) {
  for (const int signal : {SIGTERM, SIGSEGV}) {
    for (const double apart : {5.0, 500.0}) {
      auto ranks = job(3, 100, 1, [](size_t, size_t) { return 10; });
      for (size_t r = 0; r < 3; ++r) {
        ranks[r].wait_status = signal;
        ranks[r].end += ms_of(static_cast<double>(3 - r) * apart);
        ranks[r].findings.push_back(ending("crash.signal"));
      }
      const Diagnosis d = diagnose_ranks(std::move(ranks));
      ASSERT_EQ(d.verdict, "crash.signal");
      const bool outside = signal == SIGTERM && apart < 100;
      EXPECT_EQ(d.findings.front().title,
                outside ? "All 3 ranks: Title of crash.signal" : "Rank 2: Title of crash.signal");
    }
  }
}

TEST(Ranks, WhatStrikesThemInTurnCostsAllOfThemEachTime) {
  struct Case {
    const char* what;
    std::function<double(size_t, size_t)> own;
    double cost, told;
  };
  const Case cases[] = {
      {"20 ms in every fourth step, each rank in its turn",
       [](size_t r, size_t k) { return (k % 4 == r ? 32 : 12) + 0.5 * noise(r, k); }, 5, 20},
      {"the same in the same steps of all",
       [](size_t r, size_t k) { return (k % 4 == 0 ? 32 : 12) + 0.5 * noise(r, k); }, 5, 5},
      {"in every step of all", [](size_t r, size_t k) { return 17 + 3 * noise(r, k); }, 5, 5},
      {"what strikes in turn costs four times what the finding does",
       [](size_t r, size_t k) { return (k % 4 == r ? 32 : 12) + 0.5 * noise(r, k); }, 1.25, 1.25},
  };
  for (const Case& c : cases) {
    auto ranks = job(4, 200, 1, c.own);
    for (Rank& rank : ranks) rank.findings.push_back(costing("stall.idle_wait", c.cost));
    const Diagnosis d = diagnose_ranks(std::move(ranks));
    const Finding* f = find(d, "stall.idle_wait");
    ASSERT_NE(f, nullptr) << c.what;
    EXPECT_NEAR(*f->cost_ms_per_step, c.told, 0.05 * c.told) << c.what;
    if (c.told > c.cost) {
      EXPECT_NEAR(*f->gain, 33.4 / 13.4, 0.1) << c.what;
    }
  }
}

TEST(Ranks, WhatTheOthersSpendAtTheSameLineIsNoCause) {
  for (const double others : {5.5, 0.0}) {
    auto ranks = job(2, 100, 0.5, [](size_t r, size_t) { return r == 1 ? 16.0 : 12.0; });
    ranks[1].findings.push_back(costing("cpu.python_bound", 6));
    ranks[1].findings.push_back(costing("input.decode_cpu", 4));
    ranks[1].findings[0].where->line = 113;
    ranks[1].findings[1].where->line = 87;
    ranks[1].lines = {{*ranks[1].findings[0].where, 6e-3}, {*ranks[1].findings[1].where, 4e-3}};
    if (others > 0) ranks[0].lines = {{*ranks[1].findings[0].where, others * 1e-3}};
    const Diagnosis d = diagnose_ranks(std::move(ranks));
    ASSERT_EQ(d.verdict, "dist.straggler");
    EXPECT_EQ(d.ranks->ranks[1].cause, others > 0 ? "input.decode_cpu" : "cpu.python_bound");
  }
}

TEST(Ranks, BalancedOnesHaveNoStraggler) {
  for (const size_t n : {2, 3, 8}) {
    const Diagnosis d =
        diagnose_ranks(job(n, 60, 0.5, [](size_t r, size_t k) { return 40 + 6 * noise(r, k); }));
    EXPECT_EQ(d.verdict, "healthy") << n;
    EXPECT_TRUE(d.findings.empty()) << n;
  }
}

// The first rank validates for 300 ms before each tenth step; the others wait in the next
// collective.
TEST(Ranks, WhatOneDoesAloneBetweenStepsTheOthersWaitFor) {
  for (const bool alone : {true, false}) {
    std::vector<Rank> ranks = job(4, 100, 1, [](size_t r, size_t k) { return 20 + noise(r, k); });
    for (Rank& rank : ranks) {
      for (size_t k = 90; k >= 10; k -= 10) {
        model::RankStep& step = rank.judged[k];
        if (rank.number > 0 && alone) {
          step.length += ms_of(300);
          step.waiting += ms_of(300);
          continue;
        }
        rank.aside.insert(rank.aside.begin(), step);
        rank.judged.erase(rank.judged.begin() + static_cast<std::ptrdiff_t>(k));
      }
      rank.aside_at = model::Where{"/home/u/train.py", 68, "validate"};
    }
    const Diagnosis d = diagnose_ranks(std::move(ranks));
    const Finding* f = find(d, "dist.straggler");
    ASSERT_EQ(f != nullptr, alone) << d.headline;
    if (!alone) continue;
    EXPECT_NEAR(*f->cost_ms_per_step, 9 * 300.0 / 100, 1);
    EXPECT_NEAR(*f->gain, (22 + 27) / 22.0, 0.1);
    EXPECT_EQ(f->where->line, 68);
  }
}

TEST(Ranks, AFewLongStepsOfOneAreChance) {
  const Diagnosis d = diagnose_ranks(job(
      2, 100, 0.5, [](size_t r, size_t k) { return r == 1 && k > 40 && k < 44 ? 400.0 : 40.0; }));
  EXPECT_EQ(find(d, "dist.straggler"), nullptr);
}

TEST(Ranks, ALittleLatenessIsToldWhereItHasACause) {
  for (const bool explained : {true, false}) {
    for (const double late : {3.0, 6.0}) {  // of some 41 ms
      auto ranks = job(2, 100, 0.5, [&](size_t r, size_t) { return r == 1 ? 40 + late : 40; });
      if (explained) ranks[1].findings.push_back(costing("stall.logging", late));
      const bool told = find(diagnose_ranks(std::move(ranks)), "dist.straggler") != nullptr;
      EXPECT_EQ(told, explained || late > 5) << explained << late;
    }
  }
}

TEST(Ranks, ShortJobsSayLittleOfWhoIsLate) {
  // Which core a thread has lasts for all of half a second.
  const auto own = [](size_t r, size_t) { return r == 1 ? 6.0 : 4.0; };
  EXPECT_EQ(find(diagnose_ranks(job(2, 100, 0.1, own)), "dist.straggler"), nullptr);
  EXPECT_NE(find(diagnose_ranks(job(2, 400, 0.1, own)), "dist.straggler"), nullptr);
}

TEST(Ranks, OneThatIsLateFromTheMiddleOnIsAStraggler) {
  const Diagnosis d = diagnose_ranks(
      job(2, 100, 0.5, [](size_t r, size_t k) { return r == 1 && k >= 50 ? 80.0 : 40.0; }));
  ASSERT_EQ(d.verdict, "dist.straggler");
  EXPECT_NEAR(*d.findings[0].cost_ms_per_step, 20, 0.5);
}

TEST(Ranks, SeveralThatAreLateAreNamedTogether) {
  const Diagnosis d = diagnose_ranks(
      job(8, 50, 1, [](size_t r, size_t) { return r == 3 || r == 6 ? 90.0 : 50.0; }));
  ASSERT_EQ(d.verdict, "dist.straggler");
  EXPECT_EQ(d.findings[0].title, "Ranks 3 and 6 hold up the others");
  EXPECT_NEAR(*d.findings[0].cost_ms_per_step, 40, 0.5);
}

TEST(Ranks, WhatMostHaveIsTheJobs) {
  auto ranks = job(4, 50, 1, [](size_t, size_t) { return 50.0; });
  for (Rank& r : ranks) r.findings.push_back(costing("input.decode_cpu", 20));
  ranks[0].findings.push_back(costing("stall.logging", 20));  // hidden in waiting for the others
  const Diagnosis d = diagnose_ranks(std::move(ranks));
  EXPECT_EQ(d.verdict, "input.decode_cpu");
  EXPECT_EQ(d.findings.size(), 1u);
}

TEST(Ranks, CommunicationIsExposedWhereEvenTheLastOneWaits) {
  const Diagnosis d =
      diagnose_ranks(job(2, 50, 20, [](size_t r, size_t k) { return 80 + 10 * noise(r, k); }));
  const Finding* f = find(d, "dist.exposed_communication");
  ASSERT_NE(f, nullptr);
  EXPECT_NEAR(*f->cost_ms_per_step, 20, 0.1) << "waiting for each other is no communication";
  EXPECT_NEAR(*f->gain, 1.24, 0.03);
}

TEST(Ranks, WhatIsMadeForACollectiveOfObjectsGoesWithIt) {
  for (const bool objects : {true, false}) {
    auto ranks = job(2, 50, 20, [](size_t, size_t) { return 80.0; });
    for (Rank& r : ranks) {
      r.meets_at = model::Where{"/home/u/train.py", 31, "main"};
      r.lines = {{*r.meets_at, 10e-3}};
      r.collectives = {{objects ? "all_gather_object" : "all_reduce", 15e-3}, {"gradients", 5e-3}};
    }
    const Diagnosis d = diagnose_ranks(std::move(ranks));
    const Finding* f = find(d, "dist.exposed_communication");
    ASSERT_NE(f, nullptr);
    EXPECT_NEAR(*f->cost_ms_per_step, objects ? 25 : 20, 0.1);
  }
}

TEST(Ranks, ThatDoNotWaitForEachOtherAreComparedInNothing) {
  auto ranks = job(2, 50, 0, [](size_t r, size_t) { return r == 1 ? 80.0 : 40.0; });
  for (Rank& r : ranks) {
    for (model::RankStep& s : r.judged) {
      s.length = s.own();
      s.waiting = {};
    }
  }
  ranks[1].findings.push_back(costing("cpu.gc", 40));
  const Diagnosis d = diagnose_ranks(std::move(ranks));
  EXPECT_EQ(find(d, "dist.straggler"), nullptr);
  ASSERT_EQ(d.verdict, "cpu.gc");
  EXPECT_EQ(d.findings[0].title, "Rank 1: Title of cpu.gc");
}

TEST(Ranks, MoreSamplesAreSaid) {
  auto ranks = job(2, 50, 1, [](size_t r, size_t) { return r == 1 ? 80.0 : 40.0; });
  ranks[0].samples = 16;
  ranks[1].samples = 32;
  const Diagnosis d = diagnose_ranks(std::move(ranks));
  ASSERT_EQ(d.verdict, "dist.straggler");
  std::vector<double> samples;
  for (const model::Evidence& e : d.findings[0].evidence) {
    if (e.unit == "samples") samples.push_back(e.value);
  }
  EXPECT_EQ(samples, (std::vector<double>{32, 16}));
}

TEST(Ranks, WithoutAFindingOfItsOwnTheLineIsNamed) {
  auto ranks = job(2, 50, 1, [](size_t r, size_t) { return r == 1 ? 80.0 : 40.0; });
  ranks[0].lines = {{{"/home/u/train.py", 20, "main"}, 0.03}};
  ranks[1].lines = {{{"/home/u/train.py", 31, "main"}, 0.039},
                    {{"/home/u/train.py", 20, "main"}, 0.03}};
  const Diagnosis d = diagnose_ranks(std::move(ranks));
  ASSERT_EQ(d.verdict, "dist.straggler");
  ASSERT_TRUE(d.findings[0].where);
  EXPECT_EQ(d.findings[0].where->line, 31);
  EXPECT_EQ(d.ranks->ranks[1].cause, "");
}

/// Four ranks of 100 ms steps of which the others wait for `missing` since `silent` ms.
std::vector<Rank> hung(double silent, int missing) {
  auto ranks = job(4, 30, 1, [](size_t, size_t) { return 99.0; });
  for (Rank& r : ranks) {
    r.finished = false;
    r.wait_status = -1;
    r.end += ms_of(silent);
    r.state = r.number == missing ? RankState::kStopped : RankState::kInCollective;
  }
  return ranks;
}

TEST(Ranks, AMissingOneIsNamedWithinTenSteps) {
  for (const double silent : {810.0, 1000.0, 60'000.0}) {
    const Diagnosis d = diagnose_ranks(hung(silent, 2));
    ASSERT_EQ(d.verdict, "stall.hang") << silent;
    EXPECT_EQ(d.findings[0].title, "Rank 2 is missing: the others wait in a collective");
    EXPECT_TRUE(d.findings[0].ended_the_job);
  }
  EXPECT_EQ(diagnose_ranks(hung(700, 2)).verdict, "healthy");
}

TEST(Ranks, OthersMayWaitForOneThatWorks) {
  auto ranks = hung(60'000, 0);
  ranks[0].state = RankState::kWorking;  // it validates, or saves
  EXPECT_EQ(diagnose_ranks(std::move(ranks)).verdict, "healthy");
}

TEST(Ranks, AKilledOneIsWhatEndedTheJob) {
  auto ranks = hung(2000, 1);
  ranks[1].state = RankState::kUnknown;
  ranks[1].finished = true;
  ranks[1].wait_status = SIGKILL;
  ranks[1].end -= ms_of(2000);
  ranks[1].findings.push_back(ending("crash.signal"));
  ranks[0].findings.push_back(ending("crash.exception"));
  const Diagnosis d = diagnose_ranks(std::move(ranks));
  ASSERT_EQ(d.findings.size(), 2u);
  EXPECT_EQ(d.verdict, "crash.signal");
  EXPECT_EQ(d.findings[0].title, "Rank 1: Title of crash.signal");
  EXPECT_EQ(d.findings[1].id, "stall.hang");
  EXPECT_EQ(d.findings[1].evidence[0].text, "rank 1 was killed by SIGKILL");
}

TEST(Ranks, AnExceptionOfOneThatWaitedInVainIsNoCause) {
  auto ranks = hung(3000, 3);
  ranks[3].state = RankState::kBlocked;
  ranks[3].at = model::Where{"/home/u/train.py", 77, "main"};
  for (Rank& r : ranks) r.finished = true;
  ranks[0].findings.push_back(ending("crash.exception"));
  const Diagnosis d = diagnose_ranks(std::move(ranks));
  EXPECT_EQ(d.verdict, "stall.hang");
  ASSERT_TRUE(d.findings[0].where);
  EXPECT_EQ(d.findings[0].where->line, 77);
}

TEST(Ranks, ThoseWithoutARecordingAreCounted) {
  auto ranks = job(4, 30, 1, [](size_t, size_t) { return 50.0; });
  ranks.erase(ranks.begin() + 1);
  EXPECT_EQ(diagnose_ranks(std::move(ranks)).ranks->absent, std::vector<int32_t>{1});
}

TEST(Ranks, NumbersReadAsPeopleListThem) {
  EXPECT_EQ(numbers_text({}), "");
  EXPECT_EQ(numbers_text({7}), "7");
  EXPECT_EQ(numbers_text({1, 3}), "1 and 3");
  EXPECT_EQ(numbers_text({0, 1, 2, 3, 4}), "0, 1, 2, 3 and 4");
  EXPECT_EQ(numbers_text({0, 1, 2, 3, 4, 5, 6}), "0, 1, 2, 3 and 3 more");
}

// ---- one rank's Run in short ----

const Doing kCompute{ThreadState::kOnCpuNative, {kMain}};
const Doing kMeet{
    ThreadState::kLock,
    {kMain, {"all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py", 2800}}};

model::Run trained(const Doing& last, double silent) {
  RunBuilder b;
  for (int i = 0; i < 40; ++i) {
    const TimePoint begin = b.now();
    b.step({{Part::kForward, 30, kCompute}, {Part::kOther, 20, kMeet}}, i < 3);
    b.slice(b.trainer(), SliceKind::kCommunication, begin + ms_of(30), b.now());
    model::Step& step = b.run().steps.steps.back();
    std::swap(step.part(Part::kOther), step.part(Part::kCommunication));
  }
  b.run().steps.summary.median = b.run().steps.summary.mean = ms_of(50);
  b.run().info = {{"host.name", "n1"}};
  b.doing(b.trainer(), b.now(), b.now() + ms_of(silent), last);
  b.pass(silent);
  return b.build(false);
}

TEST(RankSummary, SaysHowLongItWorkedAndWaited) {
  const Rank r = summarize_rank(trained(kCompute, 0));
  EXPECT_EQ(r.host, "n1");
  ASSERT_EQ(r.judged.size(), 37u);
  EXPECT_EQ(r.judged[0].length, ms_of(50));
  EXPECT_EQ(r.judged[0].own(), ms_of(30));
  EXPECT_EQ(r.judged[0].index, 3);
  ASSERT_EQ(r.lines.size(), 1u);
  EXPECT_NEAR(r.lines[0].seconds, 0.030, 0.001);
}

TEST(RankSummary, SaysWhereItIsBetweenStepsThatAreNotJudged) {
  const Line validate{"validate", "/home/u/train.py", 68};
  RunBuilder b;
  for (int i = 0; i < 40; ++i) {
    if (i % 10 == 9) {
      const TimePoint begin = b.now();
      b.pass(200);
      b.doing(b.trainer(), begin, b.now(), {ThreadState::kOnCpuNative, {kMain, validate}});
    }
    b.step({{Part::kForward, 50, kCompute}}, i < 3);
    b.run().steps.steps.back().validation = i % 10 == 9;
  }
  const Rank r = summarize_rank(b.build());
  ASSERT_EQ(r.aside.size(), 4u);
  EXPECT_EQ(r.aside[0].index, 9);
  ASSERT_TRUE(r.aside_at);
  EXPECT_EQ(r.aside_at->line, 68);
}

TEST(RankSummary, TellsWhereItStands) {
  const Doing stopped{ThreadState::kStopped, {kMain}};
  const Doing sleeps{ThreadState::kSleep, {{"main", "/home/u/train.py", 77}}};
  EXPECT_EQ(summarize_rank(trained(kMeet, 1000)).state, RankState::kInCollective);
  EXPECT_EQ(summarize_rank(trained(kCompute, 1000)).state, RankState::kWorking);
  EXPECT_EQ(summarize_rank(trained(stopped, 1000)).state, RankState::kStopped);
  const Rank r = summarize_rank(trained(sleeps, 1000));
  EXPECT_EQ(r.state, RankState::kBlocked);
  ASSERT_TRUE(r.at);
  EXPECT_EQ(r.at->line, 77);
}

TEST(RankSummary, HowLongAWarmUpStepTookIsNoMeasureOfASilence) {
  model::Run run = trained(kMeet, 1000);
  model::Step& first = run.steps.steps.front();
  first.begin -= ms_of(5000);
  EXPECT_EQ(summarize_rank(run).longest_step, ms_of(50));
}

TEST(RankSummary, WhoPollsInMpiIsInACollective) {
  // Native code under Python is seen in one reading out of five.
  for (const char* function : {"MPI_Allreduce", "at::native::gemm"}) {
    model::Run run = trained(kCompute, 1000);
    model::Frame frame;
    frame.kind = model::FrameKind::kUnderPython;
    frame.function = static_cast<model::StringId>(run.strings.size());
    run.strings.push_back(function);
    run.frames.push_back(frame);
    const TimePoint silent = run.steps.steps.back().end;
    size_t late = 0;
    for (model::StackReading& r : run.readings) {
      if (r.at < silent || ++late % 5 != 0) continue;
      run.stacks.push_back({r.stack, static_cast<model::FrameId>(run.frames.size() - 1)});
      r.stack = static_cast<model::StackId>(run.stacks.size() - 1);
    }
    const bool mpi = std::string_view(function).starts_with("MPI_");
    EXPECT_EQ(summarize_rank(run).state, mpi ? RankState::kInCollective : RankState::kWorking);
  }
}

TEST(RankSummary, WhoWaitedInVainIsNotWorkingForWhatItDoesAtItsEnd) {
  model::Run run = trained(kMeet, 1000);
  const TimePoint end = run.end;
  model::StackReading ending = run.readings.back();
  ending.state = ThreadState::kOnCpuNative;
  ending.stack = 0;
  for (int i = 0; i < 5000; ++i) {
    ending.at = end + ms_of(i);
    run.readings.push_back(ending);
  }
  run.end = ending.at;
  EXPECT_EQ(summarize_rank(run).state, RankState::kWorking) << "it may have come out of it";
  run.finished = true;
  run.wait_status = 256;
  EXPECT_EQ(summarize_rank(run).state, RankState::kInCollective);
}

TEST(Ranks, RunsOneAfterTheOtherOrOfTwoProgramsAreNoJob) {
  Rank a, b;
  a.folder = "good";
  b.folder = "slow";
  a.program = b.program = "/home/u/train.py";
  a.host = b.host = "box";
  a.pid = 100;
  b.pid = 101;
  a.finished = b.finished = true;
  a.begin_unix_ns = 1'000'000'000'000;
  a.recorded = b.recorded = std::chrono::seconds(30);
  const auto why = [&](int64_t seconds_later) {
    b.begin_unix_ns = a.begin_unix_ns + seconds_later * 1'000'000'000;
    const Rank both[] = {a, b}, turned[] = {b, a};
    EXPECT_EQ(not_one_job(both), not_one_job(turned));
    return not_one_job(both);
  };
  EXPECT_EQ(why(2), "") << "started by hand, at about the same time";
  EXPECT_EQ(why(31), "good had ended when slow began");
  EXPECT_EQ(why(3600), "good had ended when slow began");
  b.host = "other";
  EXPECT_EQ(why(31), "") << "clocks of machines differ";
  EXPECT_NE(why(3600), "");
  b.host = a.host;
  a.world = b.world = 2;
  EXPECT_EQ(why(3600), "") << "the launcher says so: one was started again";
  a.world = b.world = 0;
  b.program = "/home/u/slow.py";
  b.begin_unix_ns = a.begin_unix_ns;
  const Rank copied[] = {a, a};
  EXPECT_EQ(not_one_job(copied), "good and good are one recording");
  const Rank both[] = {a, b};
  EXPECT_EQ(not_one_job(both), "good ran /home/u/train.py, slow ran /home/u/slow.py");
}

}  // namespace
}  // namespace flatout::diagnose
