#include "probe/job_tree.h"

#include <gtest/gtest.h>

#include "probe/testing/fake_tree.h"
#include "probe/testing/record_sink.h"

namespace flatout::probe {
namespace {

constexpr int kSelf = 50, kJob = 100;

TimePoint at_ms(int64_t ms) { return time_point_ns((1'000'000 + ms) * 1'000'000); }

// flatout is 50 and has started the job, 100; 60 is a stranger.
struct Machine {
  Machine() {
    tree.task({.pid = 1, .ppid = 0, .name = "init", .exe = "/sbin/init"});
    tree.task({.pid = kSelf, .ppid = 1, .name = "flatout", .exe = "/usr/bin/flatout"});
    tree.task({.pid = 60, .ppid = 1, .name = "stranger", .start = 5, .exe = "/bin/stranger"});
    tree.task({.pid = kJob, .ppid = kSelf});
    tree.newest_pid(kJob);
  }
  std::vector<int32_t> pids(const JobTree& job) const {
    std::vector<int32_t> out;
    for (const JobProcess* process : job.processes()) out.push_back(process->pid);
    return out;
  }
  FakeTree tree;
  RecordSink sink;
};
using Pids = std::vector<int32_t>;

TEST(JobTree, FindsTheCommandAndItsDescendants) {
  Machine m;
  m.tree.task({.pid = 101, .ppid = kJob});
  m.tree.task({.pid = 102, .ppid = 101, .name = "sh", .exe = "/bin/dash"});
  m.tree.task({.pid = 90, .ppid = 102, .name = "gcc", .exe = "/usr/bin/gcc"});  // pids wrapped
  m.tree.newest_pid(102);
  JobTree job(m.tree.root(), kJob, kSelf);
  job.update(at_ms(0), m.sink);
  EXPECT_EQ(m.pids(job), (Pids{90, 100, 101, 102}));
  ASSERT_NE(m.sink.find_process(kJob), nullptr);
  EXPECT_TRUE(m.sink.find_process(kJob)->main);
  EXPECT_TRUE(m.sink.find_process(kJob)->python);
  EXPECT_EQ(m.sink.find_process(kJob)->command, "python3 train.py --lr");
  EXPECT_FALSE(m.sink.find_process(102)->python);
  EXPECT_FALSE(m.sink.find_process(60));
}

TEST(JobTree, FindsNewProcessesByTheNewestPidAlone) {
  Machine m;
  JobTree job(m.tree.root(), kJob, kSelf);
  job.update(at_ms(0), m.sink);
  m.tree.task({.pid = 103, .ppid = kJob});
  m.tree.newest_pid(104);
  job.update(at_ms(100), m.sink);
  EXPECT_EQ(m.pids(job), (Pids{100, 103}));
}

TEST(JobTree, TakesInWhatWasHandedToTheSubreaper) {
  Machine m;
  JobTree job(m.tree.root(), kJob, kSelf);
  job.update(at_ms(0), m.sink);
  m.tree.task({.pid = 105, .ppid = kSelf, .name = "daemon", .pgrp = 104, .session = 104});
  m.tree.newest_pid(105);
  job.update(at_ms(100), m.sink);
  EXPECT_TRUE(job.contains(105));
}

TEST(JobTree, LeavesOutFlatoutsOwnHelpers) {
  Machine m;
  JobTree job(m.tree.root(), kJob, kSelf);
  job.update(at_ms(0), m.sink);
  m.tree.task({.pid = 106, .ppid = kSelf, .name = "flatout", .exe = "/usr/bin/flatout"});
  m.tree.newest_pid(106);
  job.update(at_ms(100), m.sink);
  EXPECT_FALSE(job.contains(106));
}

TEST(JobTree, KeepsAProcessThatDaemonisedWhenAttached) {
  Machine m;
  m.tree.task({.pid = kJob, .ppid = 40});  // not flatout's child
  m.tree.task({.pid = 101, .ppid = kJob});
  m.tree.newest_pid(101);
  JobTree job(m.tree.root(), kJob, kSelf);
  job.update(at_ms(0), m.sink);
  m.tree.task({.pid = 101, .ppid = 1});  // its parent ended
  m.tree.task({.pid = kSelf + 1, .ppid = kSelf, .name = "pager", .exe = "/bin/less"});
  // Never seen before its parent ended, but in the process group of a process of the job.
  m.tree.task({.pid = 109, .ppid = 1, .pgrp = 101, .start = 2000});
  m.tree.task({.pid = 110, .ppid = 1, .start = 2000});
  m.tree.newest_pid(110);
  job.update(at_ms(5000), m.sink);
  EXPECT_EQ(m.pids(job), (Pids{100, 101, 109})) << "attached, flatout's children are not the job's";
}

TEST(JobTree, ReportsEndsWithTheStatusOfAZombie) {
  Machine m;
  m.tree.task({.pid = 101, .ppid = kJob});
  m.tree.task({.pid = 102, .ppid = kJob});
  m.tree.newest_pid(102);
  JobTree job(m.tree.root(), kJob, kSelf);
  job.update(at_ms(0), m.sink);
  m.tree.task({.pid = 101, .ppid = kJob, .state = 'Z', .exit_status = 9});
  m.tree.remove("proc/102");
  job.update(at_ms(500), m.sink);
  EXPECT_EQ(m.pids(job), (Pids{100}));
  EXPECT_EQ(m.sink.ends, (std::vector<std::pair<int32_t, int>>{{101, 9}, {102, -1}}));
  job.update(at_ms(1000), m.sink);
  EXPECT_EQ(m.sink.ends.size(), 2u) << "said once";
}

TEST(JobTree, TellsAnExecAndAReusedPid) {
  Machine m;
  m.tree.task({.pid = 101, .ppid = kJob});
  m.tree.newest_pid(101);
  JobTree job(m.tree.root(), kJob, kSelf);
  job.update(at_ms(0), m.sink);
  EXPECT_TRUE(m.sink.find_process(101)->python) << "forked from an interpreter";
  m.tree.task({.pid = 101, .ppid = kJob, .name = "ffmpeg", .exe = "/usr/bin/ffmpeg"});
  job.update(at_ms(500), m.sink);
  EXPECT_EQ(m.sink.find_process(101)->name, "ffmpeg");
  EXPECT_FALSE(m.sink.find_process(101)->python);
  m.tree.task({.pid = 101, .ppid = 60, .name = "other", .start = 9000, .exe = "/bin/other"});
  job.update(at_ms(1000), m.sink);
  EXPECT_FALSE(job.contains(101)) << "another process has the pid now";
  EXPECT_EQ(m.sink.ends.size(), 1u);
}

TEST(JobTree, DoesNotTakeAThreadForAProcess) {
  Machine m;
  JobTree job(m.tree.root(), kJob, kSelf);
  job.update(at_ms(0), m.sink);
  m.tree.task({.pid = 103, .ppid = kSelf});
  m.tree.write("proc/103/status", "Tgid:\t100\nPid:\t103\n");
  m.tree.newest_pid(103);
  job.update(at_ms(100), m.sink);
  EXPECT_FALSE(job.contains(103));
}

TEST(JobTree, ListsWhereTheNewestPidStandsStill) {  // as in gVisor
  Machine m;
  m.tree.newest_pid(0);
  JobTree job(m.tree.root(), kJob, kSelf);
  job.update(at_ms(0), m.sink);
  m.tree.task({.pid = 103, .ppid = kJob});
  job.update(at_ms(3000), m.sink);
  EXPECT_TRUE(job.contains(103));
  m.tree.task({.pid = 104, .ppid = kJob});
  job.update(at_ms(3100), m.sink);
  EXPECT_TRUE(job.contains(104)) << "the counter is not trusted any more";
}

TEST(JobTree, BoundsWhatItReportsOfShortLivedProcesses) {
  Machine m;
  JobTree job(m.tree.root(), kJob, kSelf);
  job.update(at_ms(0), m.sink);
  for (int pid = 1000; pid < 1530; ++pid) {
    m.tree.write("proc/" + std::to_string(pid) + "/stat",
                 FakeTree::stat_line({.pid = pid, .ppid = kJob, .name = "true"}));
  }
  m.tree.newest_pid(1530);
  job.update(at_ms(100), m.sink);
  EXPECT_EQ(job.processes().size(), 531u);
  EXPECT_LE(m.sink.run.processes.size(), 502u);
  job.update(at_ms(1200), m.sink);
  EXPECT_EQ(m.sink.run.processes.size(), 531u) << "those that last are reported";
}

TEST(JobTree, SurvivesMalformedFiles) {
  Machine m;
  m.tree.task({.pid = 101, .ppid = kJob});
  m.tree.write("proc/102/stat", "102 (");
  m.tree.write("proc/103/stat", "");
  m.tree.write("proc/99999999999999/stat", "x");
  m.tree.newest_pid(110);
  JobTree job(m.tree.root(), kJob, kSelf);
  job.update(at_ms(0), m.sink);
  EXPECT_EQ(m.pids(job), (Pids{100, 101}));
  m.tree.write("proc/101/stat", "garbage");
  job.update(at_ms(500), m.sink);
  EXPECT_TRUE(job.contains(101)) << "a malformed file is no end";
  m.tree.forbid("proc/101/stat");
  job.update(at_ms(1000), m.sink);
  EXPECT_TRUE(job.contains(101)) << "neither is one that may not be read";
}

TEST(JobTree, KnowsAProgramThatEmbedsPython) {
  Machine m;
  m.tree.task({.pid = 101, .ppid = kJob, .name = "blender", .exe = "/opt/blender"});
  m.tree.write("proc/101/maps", "7f00-7f01 r-xp 0 8:1 5 /usr/lib/libpython3.11.so.1.0\n");
  m.tree.newest_pid(101);
  JobTree job(m.tree.root(), kJob, kSelf);
  job.update(at_ms(0), m.sink);
  EXPECT_TRUE(job.find(101)->python);
}

}  // namespace
}  // namespace flatout::probe
