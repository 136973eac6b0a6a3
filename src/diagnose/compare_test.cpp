#include "diagnose/compare.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <algorithm>
#include <iterator>

#include "diagnose/testing/run_builder.h"

namespace flatout::diagnose {
namespace {

using model::Change;
using model::Comparison;

const Doing kCompute{ThreadState::kOnCpuNative, {kMain}};

const Change* find(const Comparison& c, const std::string& what) {
  for (const Change& change : c.changes) {
    if (change.what == what) return &change;
  }
  return nullptr;
}

/// Steps of 10 ms, and so much waiting for cores that `others` use.
model::Run trained(double wait_ms, double others, double compute_ms = 10) {
  RunBuilder b;
  for (int i = 0; i < 80; ++i) {
    std::vector<RunBuilder::PartTime> parts = {
        {Part::kForward, compute_ms + 0.1 * (i % 5), kCompute}};
    if (wait_ms > 0) {
      parts.push_back({Part::kForward, wait_ms, {ThreadState::kRunQueue, {kMain}}});
    }
    b.step(parts, i < 3);
  }
  b.machine(2, 0.2, others).process_cpu(100, 0.6);
  b.run().info["kernel.release"] = "6.1";
  b.run().info["run.begin_unix_ns"] = wait_ms > 0 ? "2" : "1";
  return b.build();
}

TEST(Compare, EqualRunsDoNotDiffer) {
  const Comparison c = compare(trained(0, 0), trained(0, 0));
  EXPECT_EQ(c.verdict, "no_difference");
  EXPECT_NEAR(c.ratio, 1, 1e-9);
  EXPECT_TRUE(c.changes.empty()) << c.changes.front().what;
}

TEST(Compare, ANeighbourExplainsTheDifferenceByTheWaitsForCores) {
  const Comparison c = compare(trained(0, 0), trained(8, 0.9));
  EXPECT_EQ(c.verdict, "slower");
  EXPECT_NEAR(c.ratio, 1.8, 0.05);
  EXPECT_GT(c.ratio_interval.low, 1.7);
  const Change* others = find(c, "others.cpu_cores");
  ASSERT_NE(others, nullptr);
  ASSERT_TRUE(others->share_ms);
  EXPECT_NEAR(*others->share_ms, 8, 0.5);
  EXPECT_NEAR(c.unexplained_ms, 0, 0.5);
  ASSERT_EQ(c.appeared.size(), 1u);
  EXPECT_EQ(c.appeared.front().id, "cpu.noisy_neighbour");
  EXPECT_EQ(find(c, "run.begin_unix_ns"), nullptr);
}

TEST(Compare, AVariableThatIsThereToSlowJobsDownStandsBeforeWhatMerelyDiffers) {
  const std::string slows = "env.ATEN_CPU_CAPABILITY", other = "env.AAA";
  for (const bool came : {true, false}) {
    model::Run before = trained(0, 0), now = trained(8, 0.9);
    before.info["env.OMP_NUM_THREADS"] = now.info["env.OMP_NUM_THREADS"] = "2";
    (came ? now : before).info[slows] = "default";
    now.info[other] = "1";
    const Comparison c = compare(before, now);
    const auto& reasons = c.parts.front().reasons;
    const auto at = [&](std::string_view what) {
      return std::ranges::find(reasons, what, &model::Reason::what) - reasons.begin();
    };
    EXPECT_EQ(at("cpu.noisy_neighbour"), 0);
    EXPECT_LT(at("others.cpu_cores"), std::min(at(slows), at(other)));
    EXPECT_EQ(at(slows) < at(other), came) << c.headline;
  }
}

TEST(Compare, WhatExplainsLittleOfAPartIsNotNamedAsItsReason) {
  const Comparison all = compare(trained(0, 0), trained(8, 0.9));
  const Comparison little = compare(trained(0, 0), trained(8, 0.9, 50));
  for (const Comparison* c : {&all, &little}) {
    ASSERT_FALSE(c->parts.empty());
    ASSERT_FALSE(c->parts.front().reasons.empty());
    const double moved = c->parts.front().new_ms - c->parts.front().old_ms;
    EXPECT_EQ(*c->parts.front().reasons.front().share_ms > moved / 2, c == &all);
  }
  EXPECT_NE(all.headline.find(all.parts.front().reasons.front().text), std::string::npos);
  EXPECT_TRUE(little.headline.ends_with("all of it in forward.")) << little.headline;
}

TEST(Compare, FactsThatDifferAreToldWithoutAShare) {
  model::Run now = trained(0, 0);
  now.info["kernel.release"] = "6.5";
  now.info["torch.version"] = "2.13";
  const Comparison c = compare(trained(0, 0), now);
  ASSERT_NE(find(c, "kernel.release"), nullptr);
  EXPECT_EQ(find(c, "kernel.release")->before, "6.1");
  EXPECT_EQ(find(c, "kernel.release")->after, "6.5");
  EXPECT_FALSE(find(c, "kernel.release")->share_ms);
  EXPECT_EQ(find(c, "torch.version")->before, "");
}

/// Steps that compute for 10 ms and wait for input for so long.
model::Run fed(double wait_ms) {
  RunBuilder b;
  for (int i = 0; i < 80; ++i) {
    b.step({{Part::kInputWait, wait_ms + 0.2 * (i % 4), {ThreadState::kPoll, {kMain}}},
            {Part::kForward, 10 + 0.1 * (i % 5), kCompute}},
           i < 3);
  }
  return b.build();
}

TEST(Compare, ThePartThatGrewStandsFirstWithItsShareAndWhatBearsOnIt) {
  model::Run before = fed(1), now = fed(21);
  before.info["cwd.fs"] = "ext4";
  now.info["cwd.fs"] = "nfs4";
  before.info["dist.backend"] = "nccl";  // bears on no part that grew
  now.info["dist.backend"] = "gloo";
  const Comparison c = compare(before, now);
  ASSERT_FALSE(c.parts.empty());
  const model::PartChange& part = c.parts.front();
  EXPECT_EQ(part.part, Part::kInputWait);
  EXPECT_NEAR(part.new_ms - part.old_ms, 20, 0.5);
  EXPECT_NEAR(part.share, 1, 0.05);
  EXPECT_LT(part.moved_ms.low, 20.1);
  EXPECT_GT(part.moved_ms.high, 19.9);
  EXPECT_GT(part.moved_ms.low, 19);
  EXPECT_LT(part.moved_ms.high, 21);
  std::vector<std::string> reasons;
  for (const model::Reason& r : part.reasons) reasons.push_back(r.what);
  EXPECT_NE(std::find(reasons.begin(), reasons.end(), "cwd.fs"), reasons.end());
  EXPECT_EQ(std::find(reasons.begin(), reasons.end(), "dist.backend"), reasons.end());
  EXPECT_NE(find(c, "dist.backend"), nullptr);
  EXPECT_LT(c.difference.low, 20.1);
  EXPECT_GT(c.difference.high, 19.9);
  EXPECT_NE(c.headline.find("all of it in input wait"), std::string::npos) << c.headline;
}

TEST(Compare, AFindingOfBothRunsIsAReasonWhereItCostsMore) {
  const Comparison c = compare(trained(4, 0.9), trained(30, 0.9));
  EXPECT_TRUE(c.appeared.empty());
  ASSERT_FALSE(c.parts.empty() || c.parts.front().reasons.empty());
  const model::Reason& why = c.parts.front().reasons.front();
  EXPECT_TRUE(why.finding);
  EXPECT_EQ(why.what, "cpu.noisy_neighbour");
  ASSERT_EQ(c.findings.size(), 1u);
  const model::FindingChange& f = c.findings.front();
  ASSERT_TRUE(f.old_ms && f.new_ms);
  EXPECT_LE(f.new_interval.low, *f.new_ms);
  EXPECT_GE(f.new_interval.high, *f.new_ms);
  EXPECT_LT(f.old_interval.high, f.new_interval.low);
}

/// Steps of 10 ms at 1.98 GHz, as long as the GPU's clock makes them.
model::Run at_clock(double hz) {
  RunBuilder b;
  for (int i = 0; i < 80; ++i) {
    b.step({{Part::kForward, 10 * 1.98e9 / hz + 0.1 * (i % 5), kCompute}}, i < 3);
  }
  b.machine(2, 0.2, 0).process_cpu(100, 0.6);
  b.gauge(SignalId::kGpuClockSm, b.entity(model::EntityKind::kGpu, 0, "H100"), hz);
  return b.build();
}

TEST(Compare, AThrottledGpuClockIsTheReasonForLongerKernels) {
  const Comparison c = compare(at_clock(1.98e9), at_clock(0.99e9));
  const Change* clock = find(c, "gpu.clock_sm_hz");
  ASSERT_NE(clock, nullptr);
  EXPECT_EQ(clock->before, "1.98 GHz");
  EXPECT_EQ(clock->after, "0.99 GHz");
  ASSERT_TRUE(clock->share_ms);
  EXPECT_NEAR(*clock->share_ms, 10, 0.5);
  ASSERT_FALSE(c.parts.empty() || c.parts.front().reasons.empty());
  EXPECT_EQ(c.parts.front().part, Part::kForward);
  EXPECT_EQ(c.parts.front().reasons.front().what, "gpu.clock_sm_hz");
  EXPECT_NE(c.headline.find("GPU clock: 0.99 GHz instead of 1.98 GHz"), std::string::npos)
      << c.headline;
}

TEST(Compare, WhatDiffersBetweenAnyTwoRunsIsNoChange) {
  const char* const kAlways[] = {"job.autogroup",       "other.811.command",
                                 "other.811.parent",    "pid.300.torch.num_threads",
                                 "neighbours.at_start", "shm.bytes",
                                 "shm.files",           "data.file.0.moves",
                                 "data.file.0.path",    "growth.0",
                                 "host.boot_id",        "run.begin_unix_ns",
                                 "exit_code",           "gpu.0.uuid",
                                 "env.SLURM_JOB_ID",    "env.MASTER_PORT",
                                 "cgroup.cpu_path",     "flatout.version",
                                 "a.fact.of.next.year", "clock.cpu_hz"};
  model::Run before = trained(0, 0), now = trained(0, 0);
  for (const char* key : kAlways) {
    before.info[key] = "one";
    now.info[key] = "two";
  }
  const Comparison c = compare(before, now);
  for (const Change& change : c.changes) ADD_FAILURE() << change.what;
  EXPECT_GE(c.other.size(), std::size(kAlways));
}

/// Steps of so long, of which every tenth saves for so long.
model::Run saving(double save_ms, double step_ms = 10) {
  RunBuilder b;
  for (int i = 0; i < 100; ++i) {
    std::vector<RunBuilder::PartTime> parts = {{Part::kForward, step_ms + 0.1 * (i % 5), kCompute}};
    if (i % 10 == 9) {
      parts.push_back({Part::kCheckpoint, save_ms, {ThreadState::kDisk, {kMain}, SYS_write}});
    }
    b.step(parts, i < 3);
  }
  return b.build();
}

TEST(Compare, WhatHappensEveryTenthStepIsSeenThoughTheMedianIsTheSame) {
  const Comparison c = compare(saving(5), saving(105));
  EXPECT_EQ(c.verdict, "slower");
  EXPECT_TRUE(c.by_mean);
  EXPECT_NEAR(c.ratio, 1, 0.02);
  EXPECT_NEAR(c.difference_ms, 10, 0.5);
  ASSERT_FALSE(c.parts.empty());
  EXPECT_EQ(c.parts.front().part, Part::kCheckpoint);
  EXPECT_NEAR(c.parts.front().share, 1, 0.05);
  ASSERT_FALSE(c.parts.front().reasons.empty());
  EXPECT_EQ(c.parts.front().reasons.front().what, "stall.checkpoint");
  EXPECT_NE(c.headline.find("on average"), std::string::npos) << c.headline;
}

TEST(Compare, ShorterStepsBetweenLongerSavesAreNotFaster) {
  const Comparison c = compare(saving(5), saving(20, 9.3));
  EXPECT_LT(c.ratio_interval.high, 1);
  EXPECT_GT(c.mean_ratio, 1);
  EXPECT_EQ(c.verdict, "no_difference");
}

TEST(Compare, OneHiccupDoesNotHideASlowDown) {
  RunBuilder b;
  for (int i = 0; i < 80; ++i) {
    b.step({{Part::kForward, (i == 40 ? 1000.0 : 10.0) + 0.1 * (i % 5), kCompute}}, i < 3);
  }
  const Comparison c = compare(b.build(), trained(2, 0));
  EXPECT_LT(c.mean_ratio, 1);
  EXPECT_EQ(c.verdict, "slower");
  EXPECT_FALSE(c.by_mean);
}

TEST(Compare, OneHiccupIsNoSlowDown) {
  RunBuilder b;
  for (int i = 0; i < 80; ++i) {
    b.step({{Part::kForward, (i == 40 ? 1000.0 : 10.0) + 0.1 * (i % 5), kCompute}}, i < 3);
  }
  b.machine(2, 0.2, 0).process_cpu(100, 0.6);
  EXPECT_EQ(compare(trained(0, 0), b.build()).verdict, "no_difference");
}

TEST(Compare, OfCommandLinesOnlyWhatDiffersIsTold) {
  model::Run before = trained(0, 0), now = trained(0, 0);
  before.info["command"] = "python train.py --size 32 --fast";
  now.info["command"] = "python train.py --size 320";
  const Comparison c = compare(before, now);
  ASSERT_NE(find(c, "command"), nullptr);
  EXPECT_EQ(find(c, "command")->before, "... 32 --fast");
  EXPECT_EQ(find(c, "command")->after, "... 320");
}

TEST(Compare, WhatAnOldRecordingCouldNotTellIsNoChange) {
  model::Run before = trained(0, 0), now = trained(0, 0);
  now.info["package.numpy"] = "2.1";
  EXPECT_EQ(find(compare(before, now), "package.numpy"), nullptr);
  before.info["code.hash.a.py"] = now.info["code.hash.a.py"] = "12";
  now.info["code.hash.b.py"] = "34";
  EXPECT_EQ(find(compare(before, now), "code.hash.b.py"), nullptr);
  before.info["code.hash.b.py"] = "56";
  EXPECT_NE(find(compare(before, now), "code.hash.b.py"), nullptr);
  before.info["package.pillow"] = now.info["package.pillow"] = "11";
  EXPECT_NE(find(compare(before, now), "package.numpy"), nullptr);
}

TEST(Compare, TooFewStepsAreNotCompared) {
  EXPECT_EQ(compare(model::Run{}, trained(0, 0)).verdict, "unknown");
}

TEST(Compare, ARunWithoutStepsLeavesTheOtherOnesFiguresAsTheyAre) {
  const model::Run run = trained(0, 0), none;
  const Comparison whole = compare(run, run), c = compare(run, none), turned = compare(none, run);
  EXPECT_EQ(c.verdict, "unknown");
  EXPECT_EQ(c.headline, "Too few steps to compare: the new run has none; 5 are needed.");
  EXPECT_EQ(turned.headline, "Too few steps to compare: the old run has none; 5 are needed.");
  EXPECT_GT(c.old_median_ms, 0);
  EXPECT_EQ(c.old_median_ms, whole.old_median_ms);
  EXPECT_EQ(c.old_interval.high, whole.old_interval.high);
  EXPECT_EQ(turned.new_median_ms, whole.new_median_ms);
  EXPECT_EQ(c.new_median_ms, 0);
}

}  // namespace
}  // namespace flatout::diagnose
