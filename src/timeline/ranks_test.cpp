#include "timeline/ranks.h"

#include <gtest/gtest.h>

#include <string>

namespace flatout::timeline {
namespace {

using namespace model;  // NOLINT: the nouns of the whole room

constexpr int64_t kMs = 1'000'000;

/// A launcher (pid 10) with two ranks (20, 30); rank 1 has a loader's worker (31).
Run two_ranks() {
  Run run;
  const auto process = [&](int32_t pid, int32_t ppid) {
    Process p;
    p.pid = pid;
    p.ppid = ppid;
    p.in_job = true;
    p.start = time_point_ns(pid);
    run.processes.push_back(p);
    run.threads.push_back({static_cast<ProcessId>(run.processes.size() - 1), pid, "", true});
  };
  process(10, 1);
  process(20, 10);
  process(30, 10);
  process(31, 30);
  run.processes[0].main = true;
  run.begin = time_point_ns(0);
  for (int64_t step = 1; step <= 20; ++step) {
    for (const ThreadId thread : {ThreadId{1}, ThreadId{2}}) {
      const TimePoint end = time_point_ns(step * 50 * kMs);
      run.slices.push_back(
          {end - Nanos(40 * kMs), end - Nanos(20 * kMs), SliceKind::kBackward, thread, 0, 0, 0});
      run.slices.push_back({end - Nanos(2 * kMs), end, SliceKind::kOptimizer, thread, 0, 1, step});
      run.readings.push_back({end, thread, 0, 50'000, ThreadState::kOnCpuNative, 0, -1});
    }
    run.slices.push_back({time_point_ns((step * 50 - 45) * kMs),
                          time_point_ns((step * 50 - 5) * kMs), SliceKind::kFetch, 3, 0, 16, step});
  }
  run.end = time_point_ns(1100 * kMs);
  std::stable_sort(run.slices.begin(), run.slices.end(),
                   [](const Slice& a, const Slice& b) { return a.end < b.end; });
  run.training_process = 1;
  run.training_facts = {"dist.rank", "exception.type"};
  run.info = {
      {"dist.rank", "0"},        {"exception.type", "RuntimeError"}, {"host.name", "n1"},
      {"pid.30.dist.rank", "1"}, {"pid.30.torch.num_threads", "2"},  {"pid.31.dist.rank", "1"}};
  run.entities = {{EntityKind::kProcess, 20, kNoEntity, ""},
                  {EntityKind::kProcess, 31, kNoEntity, ""},
                  {EntityKind::kHost, 0, kNoEntity, ""}};
  for (EntityId e = 0; e < 3; ++e) run.series.push_back({SignalId::kProcCpuUser, e, {}});
  run.series.push_back({SignalId::kJobCpu, 2, {}});
  return run;
}

TEST(RanksOfARun, AreTheProcessesThatTrainAndToldTheirNumber) {
  const auto ranks = find_ranks(two_ranks());
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].process, 1u);
  EXPECT_EQ(ranks[1].number, 1);
  EXPECT_EQ(ranks[1].process, 2u) << "not its loader's worker";
  EXPECT_EQ(ranks[1].restarts, 0);
}

TEST(RanksOfARun, OfOneThatWasStartedAgainTheLastProcessCounts) {
  model::Run run = two_ranks();
  Process again = run.processes[2];
  again.pid = 40;
  again.start = time_point_ns(40);
  run.processes.push_back(again);
  run.threads.push_back({4, 40, "", true});
  run.slices.push_back({run.end, run.end, SliceKind::kOptimizer, 4, 0, 1, 1});
  run.info["pid.40.dist.rank"] = "1";
  const auto ranks = find_ranks(run);
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[1].process, 4u);
  EXPECT_EQ(ranks[1].restarts, 1);
}

TEST(RanksOfARun, OneAloneIsNoJobOfSeveral) {
  model::Run run = two_ranks();
  run.info.erase("pid.30.dist.rank");
  EXPECT_TRUE(find_ranks(run).empty());
  run.info["pid.30.dist.rank"] = "-1";
  EXPECT_TRUE(find_ranks(run).empty());
}

TEST(RanksOfARun, EachGetsWhatIsItsOwn) {
  const model::Run run = two_ranks();
  const auto ranks = find_ranks(run);
  const model::Run one = run_of_rank(run, ranks[1]);
  EXPECT_EQ(one.fact("dist.rank"), "1");
  EXPECT_EQ(one.fact("torch.num_threads"), "2");
  EXPECT_EQ(one.fact("exception.type"), "") << "of the other rank";
  EXPECT_EQ(one.fact("host.name"), "n1");
  ASSERT_NE(one.main_process(), nullptr);
  EXPECT_EQ(one.main_process()->pid, 30);
  EXPECT_EQ(one.steps.thread, 2u);
  EXPECT_EQ(one.steps.steps.size(), 20u);
  for (const Slice& s : one.slices) EXPECT_TRUE(s.thread == 2 || s.thread == 3);
  for (const StackReading& r : one.readings) EXPECT_EQ(r.thread, 2u);
  ASSERT_EQ(one.series.size(), 2u) << "its worker's and the host's, not the whole job's";
  EXPECT_EQ(one.series[0].entity, 1u);
  EXPECT_TRUE(one.processes[3].in_job);
  EXPECT_FALSE(one.processes[1].in_job);

  const model::Run first = run_of_rank(run, ranks[0]);
  EXPECT_EQ(first.fact("exception.type"), "RuntimeError");
}

TEST(RanksOfARun, NumbersAreTheJobsOrElseTheLaunchers) {
  model::Run run;
  Rank rank;
  tell_number(run, rank);
  EXPECT_EQ(rank.number, -1);
  run.info = {{"rank", "3"}, {"rank.world_size", "8"}};
  tell_number(run, rank);
  EXPECT_EQ(rank.number, 3);
  EXPECT_EQ(rank.world, 8);
  run.info["dist.rank"] = "5";
  run.info["dist.world_size"] = "16";
  tell_number(run, rank);
  EXPECT_EQ(rank.number, 5);
  EXPECT_EQ(rank.world, 16);
}

Rank at(const std::string& host, int64_t shift_ms) {
  Rank rank;
  rank.host = host;
  for (int64_t step = 0; step < 50; ++step) {
    // The network is not always equally fast.
    const int64_t jitter = step % 5 == 0 ? 3 : 0;
    rank.judged.push_back({step, time_point_ns((1000 + step * 50 + shift_ms + jitter) * kMs),
                           Nanos(50 * kMs), Nanos(kMs)});
  }
  return rank;
}

TEST(Clocks, OfHostsAreAlignedByTheCollectivesThatTheyLeaveTogether) {
  std::vector<Rank> ranks{at("n1", 0), at("n1", 2), at("n2", -700'000), at("n3", 5)};
  for (size_t i = 0; i < 50; i += 10) ranks[0].judged[i].met += Nanos(40 * kMs);
  align_clocks(ranks);
  EXPECT_EQ(ranks[0].clock, Nanos(0));
  EXPECT_EQ(ranks[1].clock, Nanos(0)) << "one host has one clock";
  EXPECT_EQ(ranks[2].clock, Nanos(700'000 * kMs));
  EXPECT_EQ(ranks[3].clock, Nanos(-5 * kMs));
}

TEST(Clocks, WithoutCommonStepsStayAsTheyAre) {
  std::vector<Rank> ranks{at("n1", 0), at("n2", 100)};
  for (RankStep& s : ranks[1].judged) s.index += 1000;
  align_clocks(ranks);
  EXPECT_EQ(ranks[1].clock, Nanos(0));
}

}  // namespace
}  // namespace flatout::timeline
