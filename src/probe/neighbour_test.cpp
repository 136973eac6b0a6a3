#include <gtest/gtest.h>

#include "probe/job_tree.h"
#include "probe/leftover.h"
#include "probe/probes.h"
#include "probe/testing/fake_tree.h"
#include "probe/testing/record_sink.h"

namespace flatout::probe {
namespace {

using model::SignalId;

constexpr int kSelf = 50, kJob = 500;

TimePoint at_ms(int64_t ms) { return time_point_ns((1'000'000 + ms) * 1'000'000); }

struct Machine {
  Machine() : job(tree.root(), kJob, kSelf) {
    tree.task({.pid = 1, .ppid = 0, .name = "systemd", .start = 0, .exe = "/sbin/init"});
    tree.task({.pid = 2, .ppid = 0, .name = "kthreadd", .start = 0, .flags = 0x208040});
    tree.task({.pid = kSelf, .ppid = 1, .name = "flatout", .exe = "/usr/bin/flatout"});
    tree.task({.pid = kJob, .ppid = kSelf, .user = 10, .start = 5000});
    tree.newest_pid(kJob);
    tree.write("proc/meminfo", "MemTotal:  1048576 kB\n");
    tree.write("proc/uptime", "100.00 50.00\n");
    cores(1000);
    job.update(at_ms(0), sink);
    probe = make_neighbour_probe({.root = tree.root(), .self_pid = kSelf, .job = &job});
  }
  void cores(long user) {
    tree.write("proc/stat", "cpu  " + std::to_string(user) + " 0 0 0 0 0 0 0 0 0\n");
  }
  void read(int64_t ms) { probe->read(at_ms(ms), sink); }
  const model::Series* series(SignalId signal, int64_t pid) const {
    for (const model::Series& s : sink.run.series) {
      if (s.signal == signal && sink.run.entities[s.entity].key == pid) return &s;
    }
    return nullptr;
  }
  FakeTree tree;
  RecordSink sink;
  JobTree job;
  std::unique_ptr<Probe> probe;
  const double tick = 1e9 / static_cast<double>(sysconf(_SC_CLK_TCK));
};

TEST(NeighbourProbe, DeliversWhoTakesCpuAndLeavesTheIdleOut) {
  Machine m;
  m.tree.task({.pid = 200, .name = "burn) S (", .user = 100, .exe = "/bin/burn"});
  m.tree.task({.pid = 201, .name = "idle", .exe = "/bin/idle"});
  m.read(0);
  m.tree.task({.pid = 200, .name = "burn) S (", .user = 190, .exe = "/bin/burn"});
  m.read(1000);
  const model::Series* cpu = m.series(SignalId::kOtherCpu, 200);
  ASSERT_NE(cpu, nullptr);
  EXPECT_EQ(m.sink.run.entities[cpu->entity].name, "burn) S (");
  ASSERT_EQ(cpu->readings.size(), 2u) << "also the reading before it was worth mentioning";
  EXPECT_EQ(cpu->increase(at_ms(0), at_ms(1000)), 90 * m.tick);
  EXPECT_EQ(m.series(SignalId::kOtherCpu, 201), nullptr);
  EXPECT_EQ(m.series(SignalId::kOtherCpu, kJob), nullptr);
  EXPECT_EQ(m.sink.facts["other.200.command"], "burn) S (");
  EXPECT_TRUE(m.sink.facts["neighbours.at_start"].starts_with("burn) S ("));
}

TEST(NeighbourProbe, CountsTheOthersTimeEvenOfThoseThatItCannotSee) {
  Machine m;
  m.read(0);
  m.cores(1000 + 300);
  m.tree.task({.pid = kJob, .ppid = kSelf, .user = 10 + 100, .start = 5000});
  m.read(1000);
  const model::Series* others = m.sink.run.find(SignalId::kOthersCpu);
  ASSERT_NE(others, nullptr);
  EXPECT_EQ(others->increase(at_ms(0), at_ms(1000)), 200 * m.tick);
}

TEST(NeighbourProbe, WhatTheJobUsedLastIsNotTheOthersWhereNobodyCanReadIt) {
  Machine m;
  m.read(0);
  m.cores(1000 + 150);
  m.tree.remove("proc/" + std::to_string(kJob));  // it ran on all cores and has ended
  m.read(1000);
  m.cores(1000 + 150 + 40);
  m.read(2000);
  const model::Series* others = m.sink.run.find(SignalId::kOthersCpu);
  ASSERT_NE(others, nullptr);
  EXPECT_EQ(others->increase(at_ms(0), at_ms(1000)), 0);
  EXPECT_EQ(others->increase(at_ms(1000), at_ms(2000)), 40 * m.tick);
}

TEST(NeighbourProbe, OtherRanksOfTheJobAreNoNeighbours) {
  constexpr int32_t kLauncher = 40;
  Machine m;
  m.probe = make_neighbour_probe(
      {.root = m.tree.root(), .self_pid = kSelf, .job = &m.job, .launcher_pid = kLauncher});
  m.tree.task({.pid = 200, .ppid = kLauncher, .name = "flatout"});
  m.tree.task({.pid = 201, .ppid = 200, .name = "python", .user = 10});
  m.tree.task({.pid = 202, .ppid = 1, .name = "burn", .user = 10});
  m.read(0);
  m.tree.task({.pid = 201, .ppid = 200, .name = "python", .user = 110});
  m.tree.task({.pid = 202, .ppid = 1, .name = "burn", .user = 60});
  m.cores(1000 + 150);
  m.read(1000);
  EXPECT_EQ(m.series(SignalId::kOtherCpu, 201), nullptr);
  ASSERT_NE(m.series(SignalId::kOtherCpu, 202), nullptr);
  const model::Series* others = m.sink.run.find(SignalId::kOthersCpu);
  ASSERT_NE(others, nullptr);
  EXPECT_EQ(others->increase(at_ms(0), at_ms(1000)), 50 * m.tick);
}

TEST(NeighbourProbe, CountsZombiesThatStay) {
  Machine m;
  m.tree.task({.pid = 200, .name = "dead", .state = 'Z'});
  m.read(0);
  EXPECT_EQ(m.sink.last(SignalId::kHostZombies), 1);
  EXPECT_FALSE(m.sink.last(SignalId::kOtherZombie, 200));
  for (int round = 1; round < 6; ++round) m.read(round * int64_t{1000});
  EXPECT_EQ(m.sink.last(SignalId::kOtherZombie, 200), 1);
  EXPECT_FALSE(m.sink.last(SignalId::kOtherRss, 200));
}

TEST(NeighbourProbe, SaysThatOthersAreHidden) {
  Machine m;
  m.tree.remove("proc/2");
  m.read(0);
  EXPECT_TRUE(m.sink.missing_signals.contains("other"));
}

TEST(NeighbourProbe, SurvivesVanishingAndForbiddenProcesses) {
  Machine m;
  m.tree.task({.pid = 200, .name = "io", .user = 1});
  m.tree.forbid("proc/200/io");
  m.tree.task({.pid = 201, .name = "gone", .user = 1});
  m.tree.write("proc/202/stat", "202 (x");
  m.read(0);
  m.tree.task({.pid = 200, .name = "io", .user = 90});
  m.tree.remove("proc/201");
  m.read(1000);
  EXPECT_TRUE(m.sink.missing_signals.contains("other.read_bytes"));
  EXPECT_TRUE(m.sink.last(SignalId::kOtherCpu, 200));
  EXPECT_FALSE(m.sink.last(SignalId::kOtherReadBytes, 200)) << "not 0";
}

struct OrphanCase {
  const char* what;
  FakeTree::Task task;
  bool orphan;
};

TEST(Leftover, TellsOrphansFromServicesAndLiveJobs) {
  const OrphanCase cases[] = {
      {"a loader worker whose script has ended",
       {.pid = 200, .ppid = 1, .name = "pt_data_worker", .pgrp = 190, .session = 180},
       true},
      {"a script whose shell has ended", {.pid = 200, .ppid = 1, .session = 180}, true},
      {"a live job of another shell", {.pid = 200, .ppid = 300, .session = 300}, false},
      {"a service of init", {.pid = 200, .ppid = 1}, false},
      {"a daemon that is no training",
       {.pid = 200, .ppid = 1, .name = "cron", .pgrp = 190, .exe = "/usr/sbin/cron"},
       false},
  };
  for (const OrphanCase& c : cases) {
    Machine m;
    m.tree.task({.pid = 300, .ppid = 1, .name = "bash", .exe = "/bin/bash"});
    FakeTree::Task task = c.task;
    task.rss_pages = 20000;
    m.tree.task(task);
    m.tree.write("proc/200/cgroup", "0::/system.slice/x.service\n");
    m.read(0);
    m.read(1000);
    EXPECT_EQ(m.sink.last(SignalId::kOtherOrphan, 200).value_or(0), c.orphan ? 1 : 0) << c.what;
    if (c.orphan) {
      EXPECT_EQ(m.sink.last(SignalId::kOtherShm, 200), 512 * 1024);
      EXPECT_TRUE(m.sink.last(SignalId::kOtherAge, 200));
    }
  }
}

TEST(Leftover, IgnoresWhatIsYoungerThanTheJob) {
  Machine m;
  m.tree.task({.pid = 200, .ppid = 1, .pgrp = 190, .start = 6000, .rss_pages = 20000});
  m.read(0);
  m.read(1000);
  EXPECT_FALSE(m.sink.last(SignalId::kOtherOrphan, 200));
}

TEST(Leftover, SeesGpuAndSharedMemoryAmongOpenFiles) {
  FakeTree tree;
  tree.task({.pid = 200, .ppid = 1, .pgrp = 190});
  tree.link("proc/200/fd/3", "/dev/nvidia0");
  PidStat stat;
  stat.pid = 200;
  stat.ppid = 1;
  stat.pgrp = 190;
  stat.session = 200;
  const Leftover found = inspect_leftover(tree.root(), {.stat = stat, .name = "python3"});
  EXPECT_TRUE(found.orphan);
  EXPECT_TRUE(found.holds_gpu);
}

TEST(ProgramAndScript, KeepsNoArguments) {
  const auto shown = [](std::string_view text) {
    std::string cmdline(text);
    std::replace(cmdline.begin(), cmdline.end(), ' ', '\0');
    return program_and_script(cmdline);
  };
  EXPECT_EQ(shown("/usr/bin/python3 -u train.py --password x"), "/usr/bin/python3 train.py");
  EXPECT_EQ(shown("python -m torch.distributed.run x"), "python -m torch.distributed.run");
  EXPECT_EQ(shown("python -c print(1)"), "python -c");
  EXPECT_EQ(shown("mysql -psecret"), "mysql");
  EXPECT_EQ(shown("curl http://user:secret@host"), "curl");
  EXPECT_EQ(shown(""), "");
}

}  // namespace
}  // namespace flatout::probe
