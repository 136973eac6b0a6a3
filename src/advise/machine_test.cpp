// From the kernel's files to a problem.
#include "advise/machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "advise/testing/healthy_machine.h"

namespace flatout::advise {
namespace {

class CheckTree : public ::testing::Test, protected MachineTree {};

TEST_F(CheckTree, ReadsLimitsOfTheProcess) {
  const Machine m = read();
  EXPECT_EQ(m.cores, 8);
  EXPECT_EQ(m.allowed_cores, 8);
  EXPECT_EQ(m.open_files.soft, 1024u);
  EXPECT_EQ(m.open_files.hard, 1048576u);
  EXPECT_FALSE(m.address_space.soft);
  EXPECT_NE(find(check_up(m), "mem.fds"), nullptr);
}

TEST_F(CheckTree, ReadsTheTightestControlGroup) {
  tree.write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  tree.write("proc/self/cgroup", "0::/outer/inner\n");
  const std::string dir = "sys/fs/cgroup/outer/";
  tree.write("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
  tree.write(dir + "cpu.max", "150000 100000\n");
  tree.write(dir + "inner/cpu.max", "max 100000\n");
  tree.write(dir + "inner/memory.max", "1073741824\n");
  tree.write(dir + "inner/memory.current", "1060000000\n");
  tree.write(dir + "inner/memory.stat", "anon 1000000000\nfile 60000000\nshmem 50000000\n");
  tree.write(dir + "inner/memory.events", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n");
  tree.write(dir + "memory.max", "max\n");
  tree.write(dir + "pids.max", "600\n");
  tree.write(dir + "pids.current", "590\n");
  const Machine m = read();
  EXPECT_EQ(m.cpu_quota, 1.5);
  EXPECT_EQ(m.memory_limit, 1073741824u);
  EXPECT_EQ(m.group_oom_kills, 2u);
  EXPECT_EQ(m.pids_limit, 600u);
  const model::CheckUp found = check_up(m);
  EXPECT_NE(find(found, "cpu.throttled"), nullptr);
  EXPECT_NE(find(found, "limit.pids"), nullptr);
  EXPECT_EQ(m.cache_in_group, 10000000u);
  ASSERT_NE(find(found, "mem.limit"), nullptr);
  EXPECT_TRUE(find(found, "mem.limit")->fails);
  // Two thirds of it page cache: that goes when memory is wanted. The host's own says nothing.
  tree.write(dir + "inner/memory.stat", "anon 300000000\nfile 760000000\nshmem 0\n");
  EXPECT_EQ(find(check_up(read()), "mem.limit"), nullptr);
}

TEST_F(CheckTree, ReadsPageCacheOfAGroupOfVersionOne) {
  tree.write("proc/self/mountinfo",
             "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  tree.write("proc/self/cgroup", "4:memory:/job\n");
  const std::string dir = "sys/fs/cgroup/memory/job/";
  tree.write(dir + "memory.limit_in_bytes", "1000000000\n");
  tree.write(dir + "memory.usage_in_bytes", "990000000\n");
  tree.write(dir + "memory.stat",
             "cache 5\nshmem 5\ntotal_cache 600000000\ntotal_shmem 100000000\n");
  const Machine m = read();
  EXPECT_EQ(m.memory_limit, 1000000000u);
  EXPECT_EQ(m.cache_in_group, 500000000u);
  EXPECT_EQ(find(check_up(m), "mem.limit"), nullptr);
}

TEST_F(CheckTree, AGroupAboveThatIsFullCountsMoreThanALowerLimitWithRoom) {
  tree.write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  tree.write("proc/self/cgroup", "0::/team/user/job\n");
  const std::string team = "sys/fs/cgroup/team/";
  tree.write(team + "user/job/memory.max", "8000000000\n");
  tree.write(team + "user/job/memory.current", "1000000000\n");
  tree.write(team + "user/job/pids.max", "500\n");
  tree.write(team + "user/job/pids.current", "10\n");
  tree.write(team + "user/memory.max", "max\n");
  tree.write(team + "user/memory.current", "1000000000\n");
  tree.write(team + "memory.max", "20000000000\n");
  tree.write(team + "memory.current", "19900000000\n");
  tree.write(team + "memory.stat", "anon 19000000000\nfile 100000000\nshmem 0\n");
  tree.write(team + "pids.max", "4000\n");
  tree.write(team + "pids.current", "3990\n");
  const Machine m = read();
  EXPECT_EQ(m.memory_group, "/team");
  EXPECT_EQ(m.memory_limit, 20000000000u);
  EXPECT_EQ(m.pids_limit, 4000u);
  const model::CheckUp found = check_up(m);
  ASSERT_NE(find(found, "mem.limit"), nullptr);
  EXPECT_NE(find(found, "mem.limit")->text.find("control group /team may use"), std::string::npos);
  EXPECT_NE(find(found, "limit.pids"), nullptr);
  // Full of page cache it leaves room, and the job's own limit is the one that counts.
  tree.write(team + "memory.stat", "anon 4000000000\nfile 15900000000\nshmem 0\n");
  const Machine cached = read();
  EXPECT_EQ(cached.memory_group, "/team/user/job");
  EXPECT_EQ(cached.memory_limit, 8000000000u);
  EXPECT_EQ(find(check_up(cached), "mem.limit"), nullptr);
}

TEST_F(CheckTree, OfVersionOneTheLowestOfAllLevelsCountsEvenOneThatIsNotToBeSeen) {
  tree.write("proc/self/mountinfo",
             "30 20 0:26 /docker/a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  tree.write("proc/self/cgroup", "4:memory:/docker/a/job\n");
  const std::string dir = "sys/fs/cgroup/memory/";
  tree.write(dir + "memory.limit_in_bytes", "6000000000\n");
  tree.write(dir + "memory.usage_in_bytes", "2000000000\n");
  tree.write(dir + "job/memory.limit_in_bytes", "9223372036854771712\n");
  tree.write(dir + "job/memory.usage_in_bytes", "1000000000\n");
  tree.write(dir + "job/memory.stat", "hierarchical_memory_limit 6000000000\n");
  EXPECT_EQ(read().memory_limit, 6000000000u);
  EXPECT_EQ(find(check_up(read()), "mem.limit"), nullptr);
  // The host's limit for all containers together, above the mounted root.
  tree.write(dir + "job/memory.stat", "hierarchical_memory_limit 2100000000\n");
  const Machine m = read();
  EXPECT_EQ(m.memory_limit, 2100000000u);
  EXPECT_EQ(m.memory_in_group, 2000000000u) << "what is used in here, at least";
  EXPECT_NE(find(check_up(m), "mem.limit"), nullptr);
}

TEST_F(CheckTree, CountsTheThreadsOfThisUserOnly) {
  for (int pid = 200; pid < 204; ++pid) {
    tree.task({.pid = pid, .ppid = 1});  // three threads each, of root
  }
  tree.write("proc/203/status", "Name:\tx\nUid:\t1000\t1000\t1000\t1000\n");
  EXPECT_EQ(read().own_threads, 3u);
}

TEST_F(CheckTree, ReadsWhatEndsAJobByItself) {
  tree.write("proc/self/limits",
             "Limit                     Soft Limit           Hard Limit           Units\n"
             "Max cpu time              3600                 unlimited            seconds\n"
             "Max file size             1048576              unlimited            bytes\n");
  const Machine m = read();
  EXPECT_EQ(m.cpu_seconds.soft, 3600u);
  EXPECT_EQ(m.file_size.soft, 1048576u);
  const model::CheckUp found = check_up(m);
  ASSERT_NE(find(found, "limit.cpu_time"), nullptr);
  EXPECT_NE(find(found, "limit.cpu_time")->text.find("8 cores busy has used that after 8 minutes"),
            std::string::npos)
      << find(found, "limit.cpu_time")->text;
  EXPECT_NE(find(found, "limit.file_size"), nullptr);
}

TEST_F(CheckTree, ReadsTheGovernorAndItsDriver) {
  tree.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  tree.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
  EXPECT_NE(find(check_up(read()), "cpu.governor"), nullptr);
  tree.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "amd-pstate-epp\n");
  EXPECT_EQ(find(check_up(read()), "cpu.governor"), nullptr);
}

TEST_F(CheckTree, ReadsWhichCoresAreNearTheMemory) {
  tree.write("proc/self/status", "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t1\n");
  tree.write("sys/devices/system/node/node0/cpulist", "0-3\n");
  tree.write("sys/devices/system/node/node1/cpulist", "4-7\n");
  EXPECT_NE(find(check_up(read()), "cpu.numa"), nullptr);
  tree.write("proc/self/status", "Cpus_allowed_list:\t0-4\nMems_allowed_list:\t1\n");
  EXPECT_EQ(find(check_up(read()), "cpu.numa"), nullptr);
}

TEST_F(CheckTree, FindsSharedMemoryOfTheDead) {
  const std::string megabytes(3 << 20, 'x');
  tree.task({.pid = 50, .ppid = 1});
  tree.write("dev/shm/torch_50_1_0", megabytes);      // it lives
  tree.write("dev/shm/torch_51_1_0", megabytes);      // it does not
  tree.write("dev/shm/somebody_52_else", megabytes);  // not PyTorch's
  const Machine m = read();
  EXPECT_EQ(m.shm_dead_files, 1u);
  EXPECT_GE(m.shm_dead_bytes, 3 * kMiB);
  EXPECT_LT(m.shm_dead_bytes, 6 * kMiB);
  EXPECT_NE(find(check_up(m), "leftover.shm"), nullptr);
}

TEST_F(CheckTree, ReadsWhereTheDataLies) {
  tree.write("proc/self/mountinfo",
             "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
             "21 20 0:50 / /data rw - nfs4 server:/sets rw\n"
             "22 20 0:51 / /lent rw - virtiofs share rw\n");
  tree.link("sys/dev/block/8:1", "../../devices/pci/block/sda/sda1");
  tree.write("sys/block/sda/queue/rotational", "1\n");
  tree.write("sys/block/sda/queue/scheduler", "mq-deadline\n");
  for (const char* name : {"data/a", "data/sub/b", "lent/c", "home/d"}) tree.write(name, "12345");
  MachineOptions options;
  options.data = {"data", "lent", "home"};
  const Machine m = read(options);
  ASSERT_EQ(m.data.size(), 3u);
  EXPECT_EQ(m.data[0].files, 2u);
  EXPECT_EQ(m.data[0].bytes, 10u);
  EXPECT_EQ(m.data[2].disk, "sda");
  EXPECT_EQ(m.data[2].place, probe::FsPlace::kDisk);
  const model::CheckUp found = check_up(m);
  ASSERT_NE(find(found, "data.network"), nullptr);
  EXPECT_EQ(find(found, "data.network")->text,
            "/data is on a network file system (nfs4 from server:/sets).");
  ASSERT_NE(find(found, "data.shared_folder"), nullptr);
  EXPECT_TRUE(find(found, "data.shared_folder")->text.starts_with("/lent "));
}

TEST_F(CheckTree, SeesInfiniBand) {
  EXPECT_FALSE(read().infiniband);
  tree.write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
  EXPECT_TRUE(read().infiniband);
}

TEST_F(CheckTree, CountsZombiesAndNamesTheirParent) {
  tree.task({.pid = 50, .ppid = 1, .name = "python3"});
  for (int pid = 200; pid < 320; ++pid) {
    tree.write("proc/" + std::to_string(pid) + "/stat",
               probe::FakeTree::stat_line({.pid = pid, .ppid = 50, .name = "w", .state = 'Z'}));
  }
  const Machine m = read();
  EXPECT_EQ(m.zombies, 120u);
  EXPECT_EQ(m.zombies_of_parent, 120u);
  EXPECT_EQ(m.zombies_parent, "pid 50 python3 train.py");
  EXPECT_NE(find(check_up(m), "leftover.zombies"), nullptr);
}

TEST_F(CheckTree, ReadsDisksAndTheInstalledFramework) {
  tree.write("sys/block/sda/queue/scheduler", "[none] mq-deadline\n");
  tree.write("sys/block/sda/queue/rotational", "1\n");
  tree.write("sys/block/sda/queue/read_ahead_kb", "128\n");
  tree.write("sys/block/loop0/queue/rotational", "1\n");
  for (const char* name : {"vda", "xvdb"}) {  // a virtual machine's say so whatever they are
    tree.write(std::string("sys/block/") + name + "/queue/rotational", "1\n");
    tree.write(std::string("sys/block/") + name + "/queue/scheduler", "[none]\n");
  }
  tree.write("opt/venv/lib/python3.11/site-packages/torch/version.py",
             "from typing import Optional\n__version__ = '2.4.0+cu121'\ndebug = False\n"
             "cuda: Optional[str] = '12.1'\ngit_version = 'abc'\nhip: Optional[str] = None\n");
  MachineOptions options;
  options.pythons = {{12, {"nowhere"}}, {11, {"opt/venv/lib/python3.11/site-packages"}}};
  const Machine m = read(options);
  EXPECT_EQ(m.python_minor, 12);  // that would be started
  ASSERT_EQ(m.disks.size(), 3u);
  EXPECT_EQ(m.disks[0].scheduler, "none");
  EXPECT_TRUE(m.disks[0].rotational);
  EXPECT_FALSE(m.disks[1].rotational || m.disks[2].rotational);
  ASSERT_EQ(m.frameworks.size(), 1u);
  EXPECT_EQ(m.frameworks[0].version, "2.4.0+cu121");
  EXPECT_EQ(m.frameworks[0].cuda, "12.1");
  const model::CheckUp found = check_up(m);
  ASSERT_NE(find(found, "disk.scheduler"), nullptr);
  EXPECT_EQ(find(found, "disk.scheduler")->text,
            "The hard disk sda has no I/O scheduler: it seeks for each request.");
  EXPECT_EQ(std::count_if(found.problems.begin(), found.problems.end(),
                          [](const model::Problem& p) { return p.id == "disk.scheduler"; }),
            1);
}

TEST_F(CheckTree, ReadsGpusByNvml) {
  tree.write("script",
             "devices 1\ndriver 470.10\ncuda 11040\n0 name Test\n0 mem_total 1000\n0 mem_used 900\n"
             "0 capability 8.6\n0 process_0 50 800\n");
  tree.task({.pid = 50, .ppid = 1, .name = "python3"});
  ::setenv("NVML_STAND_IN", tree.root().full("script").c_str(), 1);
  const Machine m = read({.nvml = FLATOUT_BUILD_DIR "/nvml_stand_in/libnvidia-ml.so.1"});
  ::unsetenv("NVML_STAND_IN");
  ASSERT_EQ(m.gpus.size(), 1u) << m.gpu_error;
  EXPECT_EQ(m.cuda_version, "11.4");
  EXPECT_EQ(m.gpus[0].facts.compute_major, 8);
  EXPECT_EQ(m.gpus[0].facts.compute_minor, 6);
  ASSERT_EQ(m.tasks.size(), 1u);
  EXPECT_EQ(m.tasks[0].gpu_bytes, 800u);
  const model::CheckUp found = check_up(m);
  const model::Problem* taken = find(found, "gpu.memory_taken");
  ASSERT_NE(taken, nullptr);
  EXPECT_NE(taken->text.find("pid 50 python3 train.py"), std::string::npos) << taken->text;
}

TEST_F(CheckTree, FindsALeftOverAndWhatItHolds) {
  // Its session's leader is gone, and so is its parent: init has it.
  tree.task({.pid = 1, .ppid = 0, .name = "systemd"});
  tree.task(
      {.pid = 77, .ppid = 1, .name = "python3", .pgrp = 60, .session = 60, .rss_pages = 700000});
  tree.link("proc/77/fd/5", "/dev/nvidia0");
  const Machine m = read();
  const model::CheckUp found = check_up(m);
  const model::Problem* left = find(found, "leftover.process");
  ASSERT_NE(left, nullptr);
  EXPECT_TRUE(left->fails);
  EXPECT_NE(left->text.find("pid 77"), std::string::npos);
}

TEST_F(CheckTree, AJobWhoseParentLivesIsNoLeftOver) {
  tree.task({.pid = 60, .ppid = 1, .name = "bash", .exe = "/usr/bin/bash"});
  tree.task(
      {.pid = 77, .ppid = 60, .name = "python3", .pgrp = 60, .session = 60, .rss_pages = 700000});
  tree.link("proc/77/fd/5", "/dev/nvidia0");
  EXPECT_EQ(find(check_up(read()), "leftover.process"), nullptr);
}

}  // namespace
}  // namespace flatout::advise
