#include "advise/check.h"

#include <gtest/gtest.h>

#include <functional>

#include "probe/testing/fake_tree.h"

namespace flatout::advise {
namespace {

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

// A machine with nothing to complain about.
Machine healthy() {
  Machine m;
  m.cores = m.allowed_cores = 16;
  m.memory_bytes = 64 * kGiB;
  m.available_bytes = 50 * kGiB;
  m.page_cache_bytes = 30 * kGiB;
  m.swap_bytes = m.free_swap_bytes = 8 * kGiB;
  m.huge_pages = m.free_huge_pages = 0;
  m.huge_page_bytes = 2 << 20;
  m.thp = "always [madvise] never";
  m.shm = Space{32 * kGiB, 31 * kGiB, 0, 0};
  m.open_files = {65536, 1048576};
  m.pids_limit = 10000;
  m.pids_in_group = 300;
  m.threads = 300;
  m.processes = {100000, 100000};
  m.work = Space{900 * kGiB, 300 * kGiB, 1000000, 900000};
  m.driver_version = m.kernel_module_version = "550.54";
  m.cuda_version = "12.4";
  m.frameworks = {{"PyTorch", "2.4.0+cu124", "torch", "12.4"}};
  Gpu gpu;
  gpu.reading.mem_total_bytes = 24 * kGiB;
  gpu.reading.mem_used_bytes = 300 * kMiB;
  gpu.reading.throttle_reasons = 1;  // idle
  gpu.reading.ecc_errors = 0;
  m.gpus.push_back(gpu);
  m.disks.push_back({"nvme0n1", "none", false, 128 << 10});
  m.disks.push_back({"sda", "mq-deadline", true, 128 << 10});
  DataPlace data;
  data.path = "/data";
  data.fs_type = "ext4";
  data.disk = "nvme0n1";
  data.bytes = 20 * kGiB;
  data.files = 100;
  m.data.push_back(data);
  return m;
}

struct Rule {
  const char* id;
  bool fails;
  std::function<void(Machine&)> cause;  // the healthy machine gets the problem
  std::function<void(Machine&)> near;   // and what only looks like it
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      {"cpu.throttled", false, [](Machine& m) { m.cpu_quota = 2; },
       [](Machine& m) { m.cpu_quota = 16; }},
      {"cpu.affinity", false, [](Machine& m) { m.allowed_cores = 4; },
       [](Machine& m) { m.allowed_cores = 0; }},  // not known
      {"cpu.governor", false,
       [](Machine& m) { m.governor = "powersave", m.frequency_driver = "acpi-cpufreq"; },
       [](Machine& m) { m.governor = "powersave", m.frequency_driver = "intel_pstate"; }},
      {"cpu.numa", false, [](Machine& m) { m.memory_near_cores = false; },
       [](Machine& m) { m.numa_nodes = "0-1"; }},
      {"mem.limit", true,
       [](Machine& m) {
         m.memory_limit = 8 * kGiB, m.memory_in_group = 7900 * kMiB, m.page_cache_bytes = kGiB;
       },
       // Full of page cache, which goes when it must.
       [](Machine& m) { m.memory_limit = 8 * kGiB, m.memory_in_group = 7900 * kMiB; }},
      {"mem.pressure", true, [](Machine& m) { m.available_bytes = kGiB; },
       [](Machine& m) { m.available_bytes = 5 * kGiB; }},
      {"mem.swap", false, [](Machine& m) { m.free_swap_bytes = 5 * kGiB; },
       [](Machine& m) { m.free_swap_bytes = *m.swap_bytes - (500 * kMiB); }},
      {"mem.huge_pages", false, [](Machine& m) { m.thp = "always madvise [never]"; },
       [](Machine& m) { m.thp = "[always] madvise never"; }},
      {"mem.huge_pages_reserved", false, [](Machine& m) { m.free_huge_pages = 8192; },
       [](Machine& m) { m.huge_pages = 8192, m.free_huge_pages = 10; }},
      {"leftover.process", true,
       [](Machine& m) {
         m.tasks.push_back({7, 1, "python", "python old.py", 2 * kGiB, 9000, true, true, 0});
       },
       [](Machine& m) {
         m.tasks.push_back({7, 6, "python", "python now.py", 2 * kGiB, 9000, false, true, 0});
       }},
      {"leftover.zombies", false,
       [](Machine& m) { m.zombies = 500, m.zombies_of_parent = 500, m.zombies_parent = "pid 1"; },
       [](Machine& m) { m.zombies = 3; }},
      {"leftover.shm", false, [](Machine& m) { m.shm_dead_bytes = 3 * kGiB, m.shm_dead_files = 9; },
       [](Machine& m) { m.shm_dead_bytes = 4096, m.shm_dead_files = 1; }},
      {"mem.shm", true,
       [](Machine& m) {
         m.shm = Space{64 << 20, 64 << 20, 0, 0};
       },
       [](Machine& m) {
         m.shm = Space{2 * kGiB, kGiB, 0, 0};
       }},
      {"mem.fds", false,
       [](Machine& m) {
         m.open_files = {1024, 1048576};
       },
       [](Machine& m) { m.open_files = {}; }},  // unlimited
      {"limit.pids", true, [](Machine& m) { m.pids_limit = 500; },
       [](Machine& m) { m.pids_limit = 1000; }},
      {"limit.processes", true, [](Machine& m) { m.processes.soft = 600; },
       [](Machine& m) { m.processes.soft = 600, m.root = true; }},  // root has no such limit
      {"limit.locked_memory", true,
       [](Machine& m) { m.infiniband = true, m.locked_memory.soft = 65536; },
       [](Machine& m) { m.locked_memory.soft = 65536; }},
      {"limit.address_space", true, [](Machine& m) { m.address_space.soft = 32 * kGiB; },
       [](Machine& m) {
         m.address_space.soft = 32 * kGiB, m.gpus.clear(), m.kernel_module_version.clear();
       }},
      {"gpu.driver_mismatch", true, [](Machine& m) { m.kernel_module_version = "535.161"; },
       [](Machine& m) { m.kernel_module_version.clear(); }},
      {"gpu.unusable", true,
       [](Machine& m) { m.gpus.clear(), m.driver_version.clear(), m.gpu_error = "no NVML"; },
       [](Machine& m) {
         m.gpus.clear(), m.driver_version.clear(), m.kernel_module_version.clear();
         m.gpu_error = "no NVML";
       }},
      {"gpu.lost", true, [](Machine& m) { m.gpus[0].reading.error = "GPU is lost"; },
       [](Machine& m) { m.gpus[0].reading.temperature_c.reset(); }},
      {"gpu.memory_taken", true, [](Machine& m) { m.gpus[0].reading.mem_used_bytes = 20 * kGiB; },
       [](Machine& m) { m.gpus[0].reading.mem_used_bytes = 2 * kGiB; }},
      {"gpu.throttled", false, [](Machine& m) { m.gpus[0].reading.throttle_reasons = 0x40; },
       [](Machine& m) { m.gpus[0].reading.throttle_reasons = 0x4; }},  // the power cap at work
      {"gpu.context", true,
       [](Machine& m) {
         m.contexts = {{0, 2, "CUDA_ERROR_OUT_OF_MEMORY", "", 0, 0}};
       },
       [](Machine& m) {
         m.contexts = {{0, 0, "", "", 23 * kGiB, 24 * kGiB}};
       }},
      {"gpu.context", true,
       [](Machine& m) {
         m.context_failure = Error{Code::kTimeout, "CUDA did not answer", ""};
       },
       [](Machine& m) { m.contexts.clear(); }},
      {"gpu.memory_errors", false, [](Machine& m) { m.gpus[0].reading.ecc_errors = 2; },
       [](Machine& m) { m.gpus[0].reading.ecc_errors.reset(); }},
      {"gpu.cpu_only_build", true, [](Machine& m) { m.frameworks[0].cuda.clear(); },
       [](Machine& m) {
         m.frameworks.push_back({"JAX", "0.4.30", "jax", ""});
       }},  // beside one with
      {"gpu.driver_too_old", true, [](Machine& m) { m.cuda_version = "11.4"; },
       [](Machine& m) { m.cuda_version = "12.1"; }},  // any minor version of its major one runs
      {"disk.full", true, [](Machine& m) { m.work->free_bytes = 100 << 20; },
       [](Machine& m) { m.work->free_bytes = 6 * kGiB; }},
      {"disk.inodes", true, [](Machine& m) { m.work->free_inodes = 3; },
       [](Machine& m) { m.work->total_inodes = m.work->free_inodes = 0; }},
      {"disk.scheduler", false, [](Machine& m) { m.disks[1].scheduler = "none"; },
       [](Machine& m) { m.disks[1].scheduler = "bfq"; }},
      {"disk.read_ahead", false, [](Machine& m) { m.disks[0].read_ahead_bytes = 0; },
       [](Machine& m) { m.disks[0].read_ahead_bytes.reset(); }},
      {"data.network", false,
       [](Machine& m) { m.data[0].local = false, m.data[0].fs_type = "nfs4"; },
       [](Machine& m) { m.data[0].fs_type = "overlay"; }},
      {"data.small_files", false,
       [](Machine& m) { m.data[0].disk = "sda", m.data[0].files = 200'000; },
       [](Machine& m) { m.data[0].files = 200'000; }},  // on the SSD
      {"data.cache", false, [](Machine& m) { m.data[0].bytes = 200 * kGiB; },
       [](Machine& m) { m.data[0].bytes = 45 * kGiB; }},
  };
  return all;
}

const model::Problem* find(const model::CheckUp& found, std::string_view id) {
  for (const model::Problem& p : found.problems) {
    if (p.id == id) return &p;
  }
  return nullptr;
}

TEST(Check, AHealthyMachineHasNoProblem) {
  const model::CheckUp found = check_up(healthy());
  EXPECT_TRUE(found.ok());
  for (const model::Problem& p : found.problems) ADD_FAILURE() << p.id << ": " << p.text;
}

TEST(Check, EachRuleFindsItsCauseAndNotTheNearMiss) {
  for (const Rule& rule : rules()) {
    Machine m = healthy();
    rule.cause(m);
    const model::CheckUp found = check_up(m);
    const model::Problem* problem = find(found, rule.id);
    ASSERT_NE(problem, nullptr) << rule.id;
    EXPECT_EQ(problem->fails, rule.fails) << rule.id;
    EXPECT_FALSE(problem->text.empty() || problem->hint.empty()) << rule.id;
    EXPECT_EQ(found.ok(), !rule.fails) << rule.id;

    Machine like = healthy();
    rule.near(like);
    const model::CheckUp quiet = check_up(like);
    const model::Problem* false_alarm = find(quiet, rule.id);
    if (false_alarm != nullptr) ADD_FAILURE() << rule.id << ": " << false_alarm->text;
    EXPECT_TRUE(quiet.ok()) << rule.id;
  }
}

// The same from files, as the kernel shows them.
class CheckTree : public ::testing::Test {
 protected:
  void SetUp() override {
    tree.write("sys/devices/system/cpu/online", "0-7\n");
    tree.write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t0\n");
    tree.write("proc/self/stat", probe::FakeTree::stat_line({.pid = 100, .ppid = 1}));
    tree.write("proc/uptime", "100000.00 1.00\n");
    tree.write(
        "proc/meminfo",
        "MemTotal:       65536000 kB\nMemFree:        1000000 kB\nMemAvailable:   60000000 kB\n"
        "Cached:         3000000 kB\nSwapTotal:      0 kB\nSwapFree:       0 kB\n"
        "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n");
    tree.write("proc/self/limits",
               "Limit                     Soft Limit           Hard Limit           Units\n"
               "Max address space         unlimited            unlimited            bytes\n"
               "Max processes             255000               255000               processes\n"
               "Max open files            1024                 1048576              files\n"
               "Max locked memory         8388608              8388608              bytes\n");
    tree.newest_pid(100);
  }
  Machine read() {
    return read_machine(tree.root(), {.nvml = "libnot-there.so", .watch_cpu = false});
  }
  probe::FakeTree tree;
};

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
  tree.write("proc/100/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  tree.write("proc/100/cgroup", "0::/outer/inner\n");
  const std::string dir = "sys/fs/cgroup/outer/";
  tree.write("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
  tree.write(dir + "cpu.max", "150000 100000\n");
  tree.write(dir + "inner/cpu.max", "max 100000\n");
  tree.write(dir + "inner/memory.max", "1073741824\n");
  tree.write(dir + "inner/memory.current", "1060000000\n");
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
  tree.write("opt/venv/lib/python3.11/site-packages/torch/version.py",
             "from typing import Optional\n__version__ = '2.4.0+cu121'\ndebug = False\n"
             "cuda: Optional[str] = '12.1'\ngit_version = 'abc'\nhip: Optional[str] = None\n");
  MachineOptions options{.nvml = "libnot-there.so", .watch_cpu = false};
  options.python_prefixes = {"nowhere", "opt/venv"};
  const Machine m = read_machine(tree.root(), options);
  ASSERT_EQ(m.disks.size(), 1u);
  EXPECT_EQ(m.disks[0].scheduler, "none");
  EXPECT_TRUE(m.disks[0].rotational);
  ASSERT_EQ(m.frameworks.size(), 1u);
  EXPECT_EQ(m.frameworks[0].version, "2.4.0+cu121");
  EXPECT_EQ(m.frameworks[0].cuda, "12.1");
  EXPECT_NE(find(check_up(m), "disk.scheduler"), nullptr);
}

TEST_F(CheckTree, ReadsWhatCudaEachFrameworkWasBuiltFor) {
  const std::string packages = "opt/venv/lib/python3.11/site-packages/";
  tree.write(packages + "tensorflow/python/platform/build_info.py",
             "import collections\nbuild_info = collections.OrderedDict([('cpu_compiler', "
             "'/usr/lib/llvm-17/bin/clang'), ('cuda_version', '12.5.1'), ('cudnn_version', '9'), "
             "('is_cuda_build', True), ('is_rocm_build', False)])\n");
  tree.write(packages + "tensorflow-2.18.0.dist-info/METADATA", "");
  tree.write(packages + "tensorflow_io-0.37.dist-info/METADATA", "");
  tree.write(packages + "jaxlib/version.py", "");
  tree.write(packages + "jaxlib-0.7.1.dist-info/METADATA", "");
  tree.write(packages + "jax_cuda13_plugin/__init__.py", "");
  MachineOptions options{.nvml = "libnot-there.so", .watch_cpu = false};
  options.python_prefixes = {"opt/venv"};
  Machine m = read_machine(tree.root(), options);
  ASSERT_EQ(m.frameworks.size(), 2u);
  EXPECT_EQ(m.frameworks[0].name + " " + m.frameworks[0].version, "TensorFlow 2.18.0");
  EXPECT_EQ(m.frameworks[0].cuda, "12.5.1");
  EXPECT_EQ(m.frameworks[1].name + " " + m.frameworks[1].version, "JAX 0.7.1");
  EXPECT_EQ(m.frameworks[1].cuda, "13");
  // A driver for CUDA 12 runs one of them.
  m.gpus = healthy().gpus;
  m.cuda_version = "12.8";
  const model::CheckUp found = check_up(m);
  const model::Problem* old = find(found, "gpu.driver_too_old");
  ASSERT_NE(old, nullptr);
  EXPECT_TRUE(old->text.starts_with("JAX 0.7.1")) << old->text;
  EXPECT_EQ(find(found, "gpu.cpu_only_build"), nullptr);
}

TEST_F(CheckTree, ABuildWithoutCudaSaysSo) {
  const std::string packages = "opt/venv/lib/python3.11/site-packages/";
  tree.write(packages + "tensorflow/python/platform/build_info.py",
             "build_info = collections.OrderedDict([('is_cuda_build', False)])\n");
  tree.write(packages + "tensorflow_cpu-2.18.0.dist-info/METADATA", "");
  MachineOptions options{.nvml = "libnot-there.so", .watch_cpu = false};
  options.python_prefixes = {"opt/venv"};
  const Machine m = read_machine(tree.root(), options);
  ASSERT_EQ(m.frameworks.size(), 1u);
  EXPECT_EQ(m.frameworks[0].version, "2.18.0");
  EXPECT_EQ(m.frameworks[0].cuda, "");
}

TEST_F(CheckTree, ReadsGpusByNvml) {
  tree.write("script",
             "devices 1\ndriver 470.10\ncuda 11040\n0 name Test\n0 mem_total 1000\n0 mem_used 900\n"
             "0 process_0 50 800\n");
  tree.task({.pid = 50, .ppid = 1, .name = "python3"});
  ::setenv("NVML_STAND_IN", tree.root().full("script").c_str(), 1);
  const Machine m = read_machine(
      tree.root(),
      {.nvml = FLATOUT_BUILD_DIR "/nvml_stand_in/libnvidia-ml.so.1", .watch_cpu = false});
  ::unsetenv("NVML_STAND_IN");
  ASSERT_EQ(m.gpus.size(), 1u) << m.gpu_error;
  EXPECT_EQ(m.cuda_version, "11.4");
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

TEST(CheckSelf, SaysWhatTheRestWouldTake) {
  Machine m = healthy();
  m.pressure = m.root = m.control_groups = true;
  EXPECT_TRUE(check_self(m).problems.empty());
  m.gpus.clear();
  m.pressure = m.root = false;
  m.ptrace_scope = 2;
  const model::CheckUp found = check_self(m);
  for (const char* id : {"self.gpu", "self.pressure", "self.ptrace", "self.other_users"}) {
    ASSERT_NE(find(found, id), nullptr) << id;
    EXPECT_FALSE(find(found, id)->hint.empty());
  }
  EXPECT_TRUE(found.ok());
}

}  // namespace
}  // namespace flatout::advise
