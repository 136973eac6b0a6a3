#include <gtest/gtest.h>

#include "probe/job_cpu.h"
#include "probe/job_tree.h"
#include "probe/probes.h"
#include "probe/testing/fake_tree.h"
#include "probe/testing/record_sink.h"

namespace flatout::probe {
namespace {

using model::SignalId;

constexpr int kSelf = 50, kJob = 100;

TimePoint at_ms(int64_t ms) { return time_point_ns((1'000'000 + ms) * 1'000'000); }

struct Machine {
  Machine() : job(tree.root(), kJob, kSelf) {
    tree.task({.pid = kJob, .ppid = kSelf, .user = 250, .system = 50, .children = 7});
    tree.newest_pid(kJob);
    tree.write("proc/100/io",
               "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\n");
    tree.write("proc/100/limits", "Max open files            1024     4096    files\n");
    tree.write("proc/100/fd/0", "");
    tree.write("proc/100/fd/1", "");
    tree.write("proc/100/fd/7", "");
    tree.write("proc/100/maps", "a\nb\nc\n");
    tree.write("proc/100/smaps_rollup", "Rss:    9 kB\nPss:    3 kB\n");
    tree.write("proc/sys/vm/max_map_count", "65530\n");
    tree.write("proc/sys/kernel/osrelease", "6.1.0-9-amd64\n");
    tree.write("proc/sys/kernel/task_delayacct", "0\n");
  }
  void update(int64_t ms) { job.update(at_ms(ms), sink); }
  Scope scope() { return {.root = tree.root(), .self_pid = kSelf, .job = &job}; }
  FakeTree tree;
  RecordSink sink;
  JobTree job;
  const double tick = 1e9 / static_cast<double>(sysconf(_SC_CLK_TCK));
};

TEST(ProcessProbe, DeliversEveryCounterAndGauge) {
  Machine m;
  m.update(0);
  const auto probe = make_process_probe(m.scope());
  probe->read(at_ms(0), m.sink);
  EXPECT_EQ(m.sink.last(SignalId::kProcCpuUser, kJob), 250 * m.tick);
  EXPECT_EQ(m.sink.last(SignalId::kProcCpuSystem, kJob), 50 * m.tick);
  EXPECT_EQ(m.sink.last(SignalId::kProcChildrenCpu, kJob), 7 * m.tick);
  EXPECT_EQ(m.sink.last(SignalId::kProcThreads, kJob), 3);
  EXPECT_EQ(m.sink.last(SignalId::kProcRss, kJob), 2048 * 1024);
  EXPECT_EQ(m.sink.last(SignalId::kProcRssAnon, kJob), 1024 * 1024);
  EXPECT_EQ(m.sink.last(SignalId::kProcRssShmem, kJob), 512 * 1024);
  EXPECT_EQ(m.sink.last(SignalId::kProcSwap, kJob), 4096);
  EXPECT_EQ(m.sink.last(SignalId::kProcAllowedCores, kJob), 4);
  EXPECT_EQ(m.sink.last(SignalId::kProcReadBytes, kJob), 5);
  EXPECT_EQ(m.sink.last(SignalId::kProcWriteCalls, kJob), 4);
  EXPECT_EQ(m.sink.last(SignalId::kProcFds, kJob), 3);
  EXPECT_EQ(m.sink.last(SignalId::kProcFdLimit, kJob), 1024);
  EXPECT_EQ(m.sink.last(SignalId::kProcMapsLimit, kJob), 65530);
  EXPECT_FALSE(m.sink.last(SignalId::kProcBlockIoDelay, kJob));
  EXPECT_TRUE(m.sink.missing_signals.contains("proc.block_io_delay_ns"));
}

TEST(ProcessMapsProbe, ReadsTheDearFilesALittleLater) {
  Machine m;
  m.update(0);
  const auto probe = make_process_maps_probe(m.scope());
  probe->read(at_ms(0), m.sink);
  EXPECT_FALSE(m.sink.last(SignalId::kProcMaps, kJob));
  probe->read(at_ms(5000), m.sink);
  EXPECT_EQ(m.sink.last(SignalId::kProcMaps, kJob), 3);
  EXPECT_EQ(m.sink.last(SignalId::kProcPss, kJob), 3 * 1024);
}

TEST(ProcessProbe, TurnsWhatMayNotBeReadIntoMissing) {
  Machine m;
  for (const char* file : {"io", "smaps_rollup", "fd"}) {
    m.tree.forbid(std::string("proc/100/") + file);
  }
  m.tree.remove("proc/100/fd");
  m.tree.write("proc/100/fd", "");  // listing it fails
  m.update(0);
  for (const auto& probe : {make_process_probe(m.scope()), make_process_maps_probe(m.scope())}) {
    probe->read(at_ms(0), m.sink);
    probe->read(at_ms(5000), m.sink);
  }
  EXPECT_FALSE(m.sink.last(SignalId::kProcReadBytes, kJob));
  EXPECT_FALSE(m.sink.last(SignalId::kProcPss, kJob));
  EXPECT_TRUE(m.sink.missing_signals.contains("proc.read_bytes"));
  EXPECT_TRUE(m.sink.missing_signals.contains("proc.pss_bytes"));
  EXPECT_EQ(m.sink.last(SignalId::kProcCpuUser, kJob), 250 * m.tick) << "the rest goes on";
}

TEST(ProcessProbe, TreatsBlockIoDelayByKernelVersion) {
  struct Case {
    const char* release;
    const char* accounting;  // nullptr: no such file
    bool delivered;
  };
  for (const Case& c : {Case{"5.10.0", nullptr, true}, Case{"6.1.0", nullptr, false},
                        Case{"6.1.0", "1\n", true}, Case{"6.1.0", "0\n", false},
                        Case{"5.14.0-70", nullptr, false}, Case{"nonsense", nullptr, false}}) {
    Machine m;
    m.tree.write("proc/sys/kernel/osrelease", c.release);
    m.tree.remove("proc/sys/kernel/task_delayacct");
    if (c.accounting != nullptr) m.tree.write("proc/sys/kernel/task_delayacct", c.accounting);
    m.update(0);
    make_process_probe(m.scope())->read(at_ms(0), m.sink);
    EXPECT_EQ(m.sink.last(SignalId::kProcBlockIoDelay, kJob).has_value(), c.delivered) << c.release;
  }
}

TEST(ProcessProbe, DoesNotMixUpProcessesOfOnePid) {
  Machine m;
  m.update(0);
  // The pid was given out again since the tree was updated.
  m.tree.task({.pid = kJob, .ppid = 1, .user = 1, .start = 9999});
  make_process_probe(m.scope())->read(at_ms(0), m.sink);
  EXPECT_FALSE(m.sink.last(SignalId::kProcCpuUser, kJob));
}

PidStat stat_of(int32_t pid, int32_t ppid, uint64_t user, uint64_t children) {
  PidStat stat;
  stat.pid = pid;
  stat.ppid = ppid;
  stat.start_ticks = 1;
  stat.user_ticks = user;
  stat.children_user_ticks = children;
  return stat;
}

TEST(JobCpu, CountsAReapedChildOnce) {
  const double tick = tick_ns();
  JobCpu cpu;
  cpu.note(stat_of(1, 0, 100, 0));
  cpu.note(stat_of(2, 1, 50, 0));
  cpu.end_round();
  EXPECT_EQ(cpu.total_ns(), 150 * tick);
  cpu.note(stat_of(1, 0, 110, 0));  // 2 has ended, 1 has not reaped it yet
  cpu.end_round();
  EXPECT_EQ(cpu.total_ns(), 160 * tick) << "it does not fall";
  cpu.note(stat_of(1, 0, 110, 58));  // reaped; it had run on for 8 ticks
  cpu.end_round();
  EXPECT_EQ(cpu.total_ns(), 168 * tick);
  cpu.note(stat_of(1, 0, 110, 61));  // another child, too short-lived to be seen
  cpu.end_round();
  EXPECT_EQ(cpu.total_ns(), 171 * tick);
  cpu.end_round();  // the last process has ended
  EXPECT_EQ(cpu.total_ns(), 171 * tick);
}

TEST(JobCpu, AChildThatEndsWithItsParentIsReapedByTheNextAbove) {
  const double tick = tick_ns();
  JobCpu cpu;
  cpu.note(stat_of(1, 0, 100, 0));
  cpu.note(stat_of(2, 1, 50, 0));
  cpu.note(stat_of(3, 2, 30, 0));
  EXPECT_TRUE(cpu.end_round());
  cpu.note(stat_of(1, 0, 100, 85));  // both ended; five ticks more than were seen
  EXPECT_TRUE(cpu.end_round());
  EXPECT_EQ(cpu.total_ns(), 185 * tick);
  EXPECT_FALSE(cpu.end_round()) << "whoever reaps the first is not of the job";
}

TEST(JobCpu, CountsAChildOnceThatIsReapedBeforeItIsMissed) {
  const double tick = tick_ns();
  JobCpu cpu;
  cpu.note(stat_of(1, 0, 100, 0));
  cpu.note(stat_of(2, 1, 50, 0));
  cpu.end_round();
  cpu.note(stat_of(1, 0, 100, 53));  // 2 ended and was reaped since
  cpu.end_round();
  EXPECT_EQ(cpu.total_ns(), 153 * tick);
}

TEST(ThreadProbe, DeliversTheMainThread) {
  Machine m;
  m.update(0);
  make_thread_probe(m.scope())->read(at_ms(0), m.sink);
  EXPECT_EQ(m.sink.last(SignalId::kThreadOnCpu, kJob), 5000000);
  EXPECT_EQ(m.sink.last(SignalId::kThreadRunDelay, kJob), 700000);
  EXPECT_EQ(m.sink.last(SignalId::kThreadCpuUser, kJob), 250 * m.tick);
  EXPECT_EQ(m.sink.last(SignalId::kThreadVoluntary, kJob), 11);
  EXPECT_EQ(m.sink.last(SignalId::kThreadAllowedCores, kJob), 4);
  EXPECT_EQ(m.sink.last(SignalId::kThreadCpu, kJob), 1);
  for (const model::Entity& entity : m.sink.run.entities) {
    if (entity.kind != model::EntityKind::kThread) continue;
    EXPECT_EQ(m.sink.run.entities[entity.parent].key, kJob);
  }
}

TEST(ThreadProbe, StaysBoundedWithManyThreadsAndKeepsBusyOnes) {
  Machine m;
  const auto write_thread = [&](int tid, long on_cpu_ns) {
    const std::string dir = "proc/100/task/" + std::to_string(tid) + "/";
    m.tree.write(dir + "schedstat", std::to_string(on_cpu_ns) + " 0 1\n");
    m.tree.write(dir + "stat", FakeTree::stat_line({.pid = tid}));
  };
  constexpr int kThreads = 200;
  for (int i = 0; i < kThreads; ++i) write_thread(2000 + i, 1000);
  m.update(0);
  const auto probe = make_thread_probe(m.scope());
  uint64_t most = 0;
  constexpr int kBusy = 2000 + 150;
  // Enough rounds for each thread to have been read twice.
  for (int round = 0; round < 16; ++round) {
    write_thread(kBusy, 400'000'000L * round);
    const uint64_t before = m.sink.delivered;
    probe->read(at_ms(round * int64_t{500}), m.sink);
    most = std::max(most, m.sink.delivered - before);
  }
  EXPECT_LE(most, 110u * 10) << "at most 97 threads a round, ten readings each";
  std::set<int64_t> seen;
  for (const model::Entity& entity : m.sink.run.entities) {
    if (entity.kind == model::EntityKind::kThread) seen.insert(entity.key);
  }
  EXPECT_EQ(seen.size(), kThreads + 1u) << "every thread is read in time";
  const uint64_t before = m.sink.delivered;
  write_thread(kBusy, 400'000'000L * 16);
  probe->read(at_ms(8'000), m.sink);
  EXPECT_GT(m.sink.delivered, before);
  EXPECT_EQ(m.sink.last(SignalId::kThreadOnCpu, kBusy), 400e6 * 16) << "busy: read in each round";
}

TEST(ThreadProbe, SaysThatRunDelayIsMissing) {
  Machine m;
  m.tree.remove("proc/100/task/100/schedstat");
  m.update(0);
  make_thread_probe(m.scope())->read(at_ms(0), m.sink);
  EXPECT_FALSE(m.sink.last(SignalId::kThreadRunDelay, kJob));
  EXPECT_TRUE(m.sink.missing_signals.contains("thread.run_delay_ns"));
  EXPECT_EQ(m.sink.last(SignalId::kThreadCpuUser, kJob), 250 * m.tick);
}

TEST(ThreadProbe, SurvivesThreadsThatVanish) {
  Machine m;
  m.update(0);
  const auto probe = make_thread_probe(m.scope());
  probe->read(at_ms(0), m.sink);
  m.tree.remove("proc/100/task");
  probe->read(at_ms(500), m.sink);
  m.tree.remove("proc/100");
  probe->read(at_ms(1000), m.sink);
  EXPECT_FALSE(m.sink.missing_signals.contains("thread.run_delay_ns")) << "an end is no defect";
}

}  // namespace
}  // namespace flatout::probe
