#include "probe/host_facts.h"

#include <gtest/gtest.h>

#include "probe/testing/fake_tree.h"
#include "probe/testing/record_sink.h"

namespace flatout::probe {
namespace {

TEST(HostFacts, TellWhereTheJobRuns) {
  FakeTree tree;
  tree.task({.pid = 100, .ppid = 1});
  tree.write("proc/100/status", "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0\n");
  tree.write("proc/100/autogroup", "/autogroup-17 nice 5\n");
  tree.write("proc/100/cgroup", "0::/docker/abc\n");
  tree.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  tree.write("sys/fs/cgroup/docker/abc/cpu.max", "150000 100000\n");
  tree.write("sys/fs/cgroup/docker/memory.max", "1000000\n");
  tree.write("proc/100/mountinfo",
             "1 0 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
             "2 1 0:5 / /data rw - nfs4 server:/x rw,soft\n"
             "3 1 0:6 / /dev/shm rw - tmpfs shm rw,size=65536k\n");
  tree.link("proc/100/cwd", "/data/run");
  tree.link("sys/dev/block/8:1", "../../devices/pci/block/sda/sda1");
  tree.write("sys/block/sda/queue/scheduler", "[none] mq-deadline\n");
  tree.write("sys/block/sda/queue/read_ahead_kb", "128\n");
  tree.write("dev/shm/torch_999_1_2", "dead");
  tree.write("dev/shm/torch_100_1_2", "alive");
  RecordSink sink;
  tell_host_facts(tree.root(), 100, sink);
  auto& facts = sink.facts;
  EXPECT_EQ(facts["job.cpus_allowed"], "0-3");
  EXPECT_EQ(facts["job.autogroup"], "/autogroup-17 nice 5");
  EXPECT_EQ(facts["job.nice"], "0");
  EXPECT_EQ(facts["container.kind"], "docker");
  EXPECT_EQ(facts["cgroup.version"], "v2");
  EXPECT_EQ(facts["cgroup.cpu_limit_cores"], "1.50");
  EXPECT_EQ(facts["cgroup.memory_limit_bytes"], "1000000");
  EXPECT_EQ(facts["cwd.fs"], "nfs4");
  EXPECT_EQ(facts["cwd.local"], "no");
  EXPECT_EQ(facts["tmp.disk"], "sda");
  EXPECT_EQ(facts["shm.options"], "rw,rw,size=65536k");
  EXPECT_EQ(facts["disk.sda.read_ahead_kb"], "128");
  EXPECT_EQ(facts["shm.files"], "2");
  EXPECT_GT(std::stoull(facts["shm.bytes_of_dead"]), 0u);
  EXPECT_LT(std::stoull(facts["shm.bytes_of_dead"]), std::stoull(facts["shm.bytes"]));
}

TEST(HostFacts, LeaveOutWhatCannotBeRead) {
  FakeTree tree;
  RecordSink sink;
  tell_host_facts(tree.root(), 100, sink);
  EXPECT_EQ(sink.facts.count("memory.total_bytes"), 0u);
  EXPECT_EQ(sink.facts["container.kind"], "none");
}

}  // namespace
}  // namespace flatout::probe
