#include <gtest/gtest.h>

#include "probe/cgroup_files.h"
#include "probe/job_tree.h"
#include "probe/probes.h"
#include "probe/testing/fake_tree.h"
#include "probe/testing/record_sink.h"

namespace flatout::probe {
namespace {

using model::SignalId;

// The readings of the cgroup probe on one of the fake trees, for the process 100.
struct Read {
  explicit Read(const std::string& tree) {
    const fs::Root root(FLATOUT_TEST_DATA "/roots/" + tree);
    JobTree job(root, 100, 1);
    job.update(time_point_ns(1'000'000'000), sink);
    make_cgroup_probe({.root = root, .job = &job})->read(time_point_ns(1'000'000'000), sink);
  }
  // The first series of a signal must be the one with the tightest limit.
  std::optional<double> first(SignalId signal) const {
    const model::Series* series = sink.run.find(signal);
    return series == nullptr ? std::nullopt : series->last();
  }
  std::string first_group(SignalId signal) const {
    const model::Series* series = sink.run.find(signal);
    return series == nullptr ? "" : sink.run.entities[series->entity].name;
  }
  RecordSink sink;
};

TEST(CgroupProbe, ReadsV2AndFindsTheTighterAncestor) {
  const Read read("cgroup_v2");
  EXPECT_EQ(read.first(SignalId::kCgroupCpuLimit), 1.5);
  EXPECT_EQ(read.first_group(SignalId::kCgroupCpuLimit), "/user.slice");
  EXPECT_EQ(read.sink.last(SignalId::kCgroupThrottled, 1), 120);
  EXPECT_EQ(read.sink.last(SignalId::kCgroupThrottledTime, 1), 2.5e9);
  EXPECT_EQ(read.sink.last(SignalId::kCgroupCpuUsage, 0), 5e9);
  EXPECT_EQ(read.first(SignalId::kCgroupMemLimit), 1073741824.0);
  EXPECT_EQ(read.first(SignalId::kCgroupMemHigh), 805306368.0);
  EXPECT_EQ(read.first(SignalId::kCgroupMemUsage), 700000000.0);
  EXPECT_EQ(read.first(SignalId::kCgroupOomKills), 1);
  EXPECT_EQ(read.first(SignalId::kCgroupMemMaxEvents), 3);
  EXPECT_EQ(read.first(SignalId::kCgroupMemHighEvents), 17);
  EXPECT_EQ(read.first(SignalId::kCgroupRefaultFile), 77);
  EXPECT_EQ(read.first(SignalId::kCgroupDirectScan), 88);
  EXPECT_EQ(read.first(SignalId::kCgroupIoLimitRead), 1048576.0) << "the smallest of the devices";
  EXPECT_EQ(read.first(SignalId::kCgroupIoLimitReadOps), 120);
  EXPECT_FALSE(read.first(SignalId::kCgroupIoLimitWrite));
  EXPECT_EQ(read.first(SignalId::kCgroupIoReadBytes), 1459200.0 + 90430464);
  EXPECT_EQ(read.first(SignalId::kCgroupPidsMax), 100);
  EXPECT_EQ(read.first(SignalId::kCgroupPids), 60) << "of the group that sets the limit";
  EXPECT_EQ(read.first(SignalId::kCgroupPsiIoSome), 1500e3);
}

TEST(CgroupProbe, ReadsV1BeneathAContainersMounts) {
  const Read read("cgroup_v1");
  EXPECT_EQ(read.first(SignalId::kCgroupCpuLimit), 2);
  EXPECT_EQ(read.first(SignalId::kCgroupPeriods), 500);
  EXPECT_EQ(read.first(SignalId::kCgroupThrottled), 250);
  EXPECT_EQ(read.first(SignalId::kCgroupThrottledTime), 9e9);
  EXPECT_EQ(read.first(SignalId::kCgroupCpuUsage), 123456789.0);
  // The container's own limit is 512 MiB; a group outside the mount allows only 256 MiB.
  for (const model::Series* series : read.sink.run.all(SignalId::kCgroupMemLimit)) {
    EXPECT_EQ(series->last(), 268435456.0);
  }
  EXPECT_EQ(read.sink.last(SignalId::kCgroupMemUsage, 0), 1000000.0);
  EXPECT_EQ(read.sink.last(SignalId::kCgroupMemMaxEvents, 1), 8);
  EXPECT_EQ(read.sink.last(SignalId::kCgroupOomKills, 0), 2);
  EXPECT_EQ(read.sink.last(SignalId::kCgroupMemFile, 0), 600000.0);
  EXPECT_EQ(read.sink.last(SignalId::kCgroupRefaultFile, 0), 9);
  EXPECT_EQ(read.first(SignalId::kCgroupIoLimitRead), 1048576.0);
  EXPECT_EQ(read.first(SignalId::kCgroupIoReadBytes), 1000);
  EXPECT_FALSE(read.first(SignalId::kCgroupPidsMax));
  EXPECT_FALSE(read.first(SignalId::kCgroupPsiCpuSome)) << "v1 has none";
}

TEST(CgroupProbe, ReadsAHybridFromBothHierarchies) {
  const Read read("cgroup_hybrid");
  EXPECT_FALSE(read.first(SignalId::kCgroupCpuLimit)) << "a quota of -1 is none";
  EXPECT_EQ(read.first(SignalId::kCgroupMemLimit), 200000000.0) << "the parent's";
  EXPECT_EQ(read.sink.last(SignalId::kCgroupOomKills, 0), 0);
  EXPECT_FALSE(read.first(SignalId::kCgroupCpuUsage)) << "not the unified root's";
  EXPECT_EQ(read.first(SignalId::kCgroupPsiCpuSome), 900e3);
}

TEST(CgroupProbe, FallsBackToTheMountedRootInANamespace) {
  const Read read("cgroup_namespace");
  EXPECT_EQ(read.first(SignalId::kCgroupCpuLimit), 0.5);
  EXPECT_EQ(read.first(SignalId::kCgroupThrottled), 9);
  EXPECT_EQ(read.first(SignalId::kCgroupMemLimit), 134217728.0);
  EXPECT_FALSE(read.first(SignalId::kCgroupOomKills)) << "no file, no reading";
}

TEST(CgroupProbe, FollowsAJobThatEntersAGroupAfterItsStart) {
  FakeTree tree;
  FakeTree::Task task;
  task.pid = 100;
  tree.task(task);
  tree.write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  tree.write("proc/100/cgroup", "0::/\n");
  tree.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  tree.write("sys/fs/cgroup/limited/memory.max", "1000000\n");
  RecordSink sink;
  JobTree job(tree.root(), 100, 1);
  job.update(time_point_ns(0), sink);
  const auto probe = make_cgroup_probe({.root = tree.root(), .job = &job});
  for (int64_t ms = 1000; ms <= 4000; ms += 500) {
    if (ms == 2000) tree.write("proc/100/cgroup", "0::/limited\n");
    probe->read(time_point_ns(ms * 1'000'000), sink);
  }
  const model::Series* limit = sink.run.find(SignalId::kCgroupMemLimit);
  ASSERT_NE(limit, nullptr);
  EXPECT_EQ(limit->last(), 1000000.0);
}

TEST(CgroupProbe, SaysWhatIsMissing) {
  FakeTree tree;
  tree.newest_pid(100);
  tree.task({.pid = 100});
  tree.write("proc/100/cgroup", "0::/x\n");
  tree.write("proc/self/mountinfo", "27 1 254:0 / / rw - ext4 /dev/vda rw\n");
  RecordSink sink;
  JobTree job(tree.root(), 100, 1);
  job.update(time_point_ns(1), sink);
  make_cgroup_probe({.root = tree.root(), .job = &job})->read(time_point_ns(1), sink);
  EXPECT_TRUE(sink.missing_signals.contains("cgroup"));
}

TEST(CgroupFiles, ParseLimitsAndRefuseNonsense) {
  EXPECT_FALSE(parse_limit("max\n"));
  EXPECT_FALSE(parse_limit("9223372036854771712\n"));
  EXPECT_FALSE(parse_limit("-1"));
  EXPECT_EQ(parse_limit("4096\n"), 4096u);
  EXPECT_FALSE(parse_cpu_max("max 100000"));
  EXPECT_EQ(parse_cpu_max("250000 100000\n"), 2.5);
  EXPECT_FALSE(parse_cpu_max("1 0"));
  EXPECT_FALSE(parse_cpu_max(""));
}

TEST(CgroupFiles, KeepAPathWithBlanksAndColons) {
  const auto lines = parse_cgroup_lines("3:cpu,cpuacct:/a b:c\n0::/\nx\n:\n9:cpu:relative\n");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].path, "/a b:c");
  EXPECT_EQ(lines[0].controllers.size(), 2u);
  EXPECT_TRUE(lines[1].controllers.empty());
}

}  // namespace
}  // namespace flatout::probe
