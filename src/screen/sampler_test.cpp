#include "screen/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "screen/testing/fake_machine.h"

namespace flatout::screen {
namespace {

const Task* find(const Snapshot& s, int32_t tid) {
  const auto it = std::find_if(s.task_list.begin(), s.task_list.end(),
                               [&](const Task& t) { return t.tid == tid; });
  return it == s.task_list.end() ? nullptr : &*it;
}

std::shared_ptr<const Snapshot> second_look(FakeMachine& machine, const Wanted& wanted = {}) {
  Sampler sampler(machine.options());
  const auto first = sampler.look(wanted);
  EXPECT_EQ(first->interval_s, 0) << "nothing is known of the time before";
  EXPECT_EQ(first->all.busy(), 0);
  machine.between_looks();
  return sampler.look(wanted);
}

TEST(Sampler, SharesOfCoresAreThoseOfTheTimeBetween) {
  FakeMachine machine;
  const auto s = second_look(machine);
  ASSERT_EQ(s->cores.size(), 8u);
  EXPECT_DOUBLE_EQ(s->interval_s, 1);
  EXPECT_NEAR(s->cores[7].busy(), 1.0, 1e-9);
  EXPECT_NEAR(s->cores[7].system, 0.25, 1e-9);
  EXPECT_NEAR(s->cores[3].busy(), 0.5, 1e-9);
  EXPECT_NEAR(s->all.busy(), 448.0 / 800, 1e-9) << "ticks of all cores: 12 + 25 + 37 + ... + 100";
  EXPECT_EQ(s->runnable, 11u);
  EXPECT_EQ(s->blocked, 2u);
  EXPECT_NEAR(s->cpu_waiting.some.value(), 0.234, 1e-9);
  EXPECT_NEAR(s->io_waiting.full.value(), 0.12, 1e-9);
}

TEST(Sampler, MemoryIsAsFreeShowsIt) {
  FakeMachine machine;
  const auto s = second_look(machine);
  const uint64_t kib = 1024;
  EXPECT_EQ(s->memory.total, 65536000 * kib);
  EXPECT_EQ(s->memory.cache(), (512000 + 30720000 + 1024000 - 2048000) * kib);
  EXPECT_EQ(s->memory.used(), s->memory.total - 8192000 * kib - s->memory.cache());
  EXPECT_EQ(s->memory.dirty, 30720 * kib);
  EXPECT_EQ(s->memory.huge_free, 12u);
}

TEST(Sampler, DisksWithoutTheirPartitions) {
  FakeMachine machine;
  const auto s = second_look(machine);
  ASSERT_EQ(s->disks.size(), 2u);
  const Disk& disk = s->disks[0];
  EXPECT_EQ(disk.name, "nvme0n1");
  EXPECT_NEAR(disk.busy, 0.9, 1e-9);
  EXPECT_NEAR(disk.read_bytes_per_s, 204800.0 * 512, 1);
  EXPECT_NEAR(disk.write_bytes_per_s, 2048.0 * 512, 1);
  EXPECT_NEAR(disk.latency_s.value(), 0.5 / 250, 1e-9) << "500 ms for 250 requests";
  EXPECT_EQ(disk.in_flight, 3u);
  EXPECT_FALSE(s->disks[1].latency_s) << "no request, no latency";
}

TEST(Sampler, TrafficGoesToTheOnlyDiskThatIsUsed) {
  FakeMachine machine;
  const auto s = second_look(machine);
  const Disk* disk = s->disk_of(*find(*s, FakeMachine::kReader));
  ASSERT_NE(disk, nullptr);
  EXPECT_EQ(disk->name, "nvme0n1");
  EXPECT_EQ(s->disk_of(*find(*s, FakeMachine::kJob)), nullptr) << "it reads nothing";
}

// Two disks at work; where each process's files lie, and which of them move.
class TwoDisks : public ::testing::Test {
 protected:
  static constexpr int32_t kReader = FakeMachine::kReader, kWorker = FakeMachine::kWorker;

  TwoDisks() {
    machine.tree.link("sys/dev/block/259:1", "../../devices/pci/nvme0/nvme0n1/nvme0n1p1");
    machine.tree.link("sys/dev/block/8:0", "../../devices/pci/ata1/block/sda");
    for (const int32_t pid : {kReader, kWorker}) {
      machine.tree.write("proc/" + std::to_string(pid) + "/mountinfo",
                         "30 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n"
                         "31 30 8:0 / /data rw - xfs /dev/sda rw\n"
                         "32 30 0:5 / /dev/shm rw - tmpfs tmpfs rw\n");
    }
  }
  void file(int32_t pid, int fd, int mount, long position) {
    const std::string dir = "proc/" + std::to_string(pid);
    machine.tree.link(dir + "/fd/" + std::to_string(fd), "/some/file");
    machine.tree.write(dir + "/fdinfo/" + std::to_string(fd), "pos:\t" + std::to_string(position) +
                                                                  "\nflags:\t0100000\nmnt_id:\t" +
                                                                  std::to_string(mount) + "\n");
  }
  // Both disks were used between the two looks.
  std::shared_ptr<const Snapshot> look(Sampler& sampler) {
    machine.between_looks();
    std::string text = machine.tree.root().read("proc/diskstats").value_or("");
    text.replace(text.find("sda 5"), 5, "sda " + std::to_string(9 + looks_++));
    machine.tree.write("proc/diskstats", text);
    return sampler.look({});
  }
  static std::string disk_of(const Snapshot& s, int32_t pid) {
    const Disk* disk = s.disk_of(*find(s, pid));
    return disk == nullptr ? "" : disk->name;
  }

  FakeMachine machine;
  int looks_ = 0;
};

TEST_F(TwoDisks, AProcessUsesTheDiskOnWhichItsFilesLie) {
  file(kWorker, 3, 31, 0);   // read by pread: it does not move
  file(kWorker, 4, 32, 10);  // in memory
  Sampler sampler(machine.options());
  sampler.look({});
  const auto s = look(sampler);
  EXPECT_EQ(disk_of(*s, kWorker), "sda");
  EXPECT_EQ(disk_of(*s, kReader), "") << "its files cannot be seen";
}

TEST_F(TwoDisks, OfSeveralTheOneWhoseFilesMove) {
  file(kWorker, 1, 30, 500);  // its log
  file(kWorker, 3, 31, 0);
  Sampler sampler(machine.options());
  sampler.look({});
  EXPECT_EQ(disk_of(*look(sampler), kWorker), "") << "one of two, nothing tells which";
  file(kWorker, 3, 31, 1 << 20);
  const auto s = look(sampler);
  EXPECT_EQ(disk_of(*s, kWorker), "sda");
  file(kWorker, 1, 30, 600);
  file(kWorker, 3, 31, 2 << 20);
  EXPECT_EQ(disk_of(*look(sampler), kWorker), "") << "both move";
}

TEST(Sampler, ProcessesWithWhatTheyUsed) {
  FakeMachine machine;
  const auto s = second_look(machine);
  EXPECT_EQ(s->tasks, 9u);
  EXPECT_EQ(s->zombies, 1u);
  const Task* job = find(*s, FakeMachine::kJob);
  ASSERT_NE(job, nullptr);
  EXPECT_NEAR(job->cores, 0.97, 1e-6);
  EXPECT_EQ(job->rss_bytes, uint64_t{3000} << 20);
  EXPECT_EQ(job->uid, 1000u);
  EXPECT_EQ(*job->command, "/usr/bin/python3 train.py --epochs 3");
  EXPECT_EQ(job->threads, 3u);
  EXPECT_NEAR(find(*s, FakeMachine::kReader)->read_bytes_per_s, 40 << 20, 1);
  EXPECT_EQ(job->read_bytes_per_s, 0);
  EXPECT_TRUE(find(*s, 2)->kernel);
  EXPECT_EQ(find(*s, 4151), nullptr) << "threads were not asked for";
}

TEST(Sampler, ThreadsWhereTheyAreAskedFor) {
  FakeMachine machine;
  const auto s = second_look(machine, {.threads = true});
  const Task* thread = find(*s, 4151);
  ASSERT_NE(thread, nullptr);
  EXPECT_EQ(thread->pid, FakeMachine::kJob);
  EXPECT_NEAR(thread->cores, 0.4, 1e-6);
  EXPECT_EQ(std::string(thread->comm.data()), "OMP");
}

TEST(Sampler, ABurstAfterIdleLooksIsOfTheLastIntervalAlone) {
  FakeMachine machine;
  const int32_t pid = 4000;  // uses no CPU, so its traffic is not read at each look
  Sampler sampler(machine.options());
  for (int i = 0; i < 6; ++i) {
    EXPECT_LE(find(*sampler.look({}), pid)->read_bytes_per_s, 0);
    machine.between_looks();
  }
  machine.tree.task({.pid = pid, .name = "bash", .user = 200, .start = 1000 + pid});
  machine.tree.write(
      "proc/4000/io",
      "rchar: 0\nwchar: 0\nsyscr: 0\nsyscw: 0\nread_bytes: 104857600\nwrite_bytes: 0\n");
  EXPECT_NEAR(find(*sampler.look({}), pid)->read_bytes_per_s, 100 << 20, 1);
}

TEST(Sampler, TrafficThatMayNotBeReadIsNotZero) {
  FakeMachine machine;
  machine.tree.forbid("proc/900/io");
  Sampler sampler(machine.options());
  sampler.look({});
  const auto s = sampler.look({});
  EXPECT_LT(find(*s, FakeMachine::kReader)->read_bytes_per_s, 0);
}

TEST(Sampler, APidThatIsAnothersNowBeginsAnew) {
  FakeMachine machine;
  Sampler sampler(machine.options());
  sampler.look({});
  machine.between_looks();
  machine.tree.task({.pid = FakeMachine::kJob, .name = "other", .user = 5000, .start = 999999});
  const auto s = sampler.look({});
  EXPECT_EQ(find(*s, FakeMachine::kJob)->cores, 0);
  EXPECT_EQ(std::string(find(*s, FakeMachine::kJob)->comm.data()), "other");
}

TEST(Sampler, FindsTheJobByItsLibrariesAndCountsWhatDescendsFromIt) {
  FakeMachine machine;
  const auto s = second_look(machine);
  ASSERT_EQ(s->jobs.size(), 1u);
  const Job& job = s->jobs[0];
  EXPECT_EQ(job.pid, FakeMachine::kJob);
  EXPECT_EQ(job.framework, "PyTorch");
  EXPECT_EQ(job.name, "/usr/bin/python3 train.py");
  EXPECT_EQ(job.processes, 3u);
  EXPECT_EQ(job.threads, 9u);
  EXPECT_NEAR(job.cores, 0.97 + 0.88 + 0.71, 1e-6);
  EXPECT_NEAR(job.read_bytes_per_s.value(), 60 << 20, 1);
  EXPECT_FALSE(job.steps_per_s);
}

TEST(Sampler, AFrameworkThatIsStillBeingImportedIsNotTakenForCudaForEver) {
  FakeMachine machine;
  Sampler sampler(machine.options());
  machine.tree.write("proc/4100/maps", "7f0-7f1 r-xp 0 08:01 1 /usr/lib/libcudart.so.12\n");
  EXPECT_EQ(sampler.look({})->jobs.at(0).framework, "CUDA");
  machine.between_looks();
  machine.tree.write("proc/4100/maps",
                     "7f0-7f1 r-xp 0 08:01 1 /usr/lib/libcudart.so.12\n"
                     "7f2-7f3 r-xp 0 08:01 2 /x/torch/lib/libtorch_cpu.so\n");
  EXPECT_EQ(sampler.look({})->jobs.at(0).framework, "PyTorch");
}

// A control group of version 2 for a process, and one above it.
void give_group(FakeMachine& machine, int32_t pid) {
  machine.tree.write("proc/self/mountinfo",
                     "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  machine.tree.write("proc/" + std::to_string(pid) + "/cgroup", "0::/team/job\n");
  machine.tree.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  machine.tree.write("sys/fs/cgroup/team/memory.max", "8589934592\n");
  machine.tree.write("sys/fs/cgroup/team/memory.current", "8500000000\n");
  machine.tree.write("sys/fs/cgroup/team/memory.stat", "anon 8400000000\nfile 100000000\n");
  machine.tree.write("sys/fs/cgroup/team/job/memory.max", "max\n");
  machine.tree.write("sys/fs/cgroup/team/job/memory.current", "3221225472\n");
}

TEST(Sampler, MemoryOfTheControlGroupOfTheProcessThatIsAskedFor) {
  FakeMachine machine;
  give_group(machine, FakeMachine::kJob);
  Sampler sampler(machine.options());
  EXPECT_FALSE(sampler.look({})->memory.group_used);
  auto s = sampler.look({.group_pid = FakeMachine::kJob});
  EXPECT_EQ(s->memory.group_pid, FakeMachine::kJob);
  EXPECT_EQ(s->memory.group_limit, uint64_t{8} << 30) << "the level above has the limit";
  EXPECT_EQ(s->memory.group_used, 8500000000u);
  EXPECT_EQ(s->memory.group_cache, 100000000u);
  machine.tree.write("sys/fs/cgroup/team/memory.max", "max\n");
  s = sampler.look({.group_pid = FakeMachine::kJob});
  EXPECT_FALSE(s->memory.group_limit);
  EXPECT_EQ(s->memory.group_used, uint64_t{3} << 30) << "without a limit its own";
  s = sampler.look({.group_pid = FakeMachine::kReader});
  EXPECT_FALSE(s->memory.group_used) << "nobody's figures but its own";
}

TEST(Sampler, FilesAreReadAtTheRateByWhichTheirPositionsMove) {
  FakeMachine machine;
  const std::string dir = "proc/" + std::to_string(FakeMachine::kWorker);
  const auto file = [&](int fd, const std::string& flags, long position) {
    machine.tree.link(dir + "/fd/" + std::to_string(fd), "/data/" + std::to_string(fd));
    machine.tree.write(dir + "/fdinfo/" + std::to_string(fd),
                       "pos:\t" + std::to_string(position) + "\nflags:\t" + flags + "\n");
  };
  file(3, "0100000", 1000);
  file(4, "02102001", 50);
  file(5, "0100002", 9000);
  Sampler sampler(machine.options());
  const Wanted wanted{.details_pid = FakeMachine::kWorker};
  const auto first = sampler.look(wanted);
  ASSERT_NE(first->details, nullptr);
  ASSERT_EQ(first->details->files.size(), 3u);
  EXPECT_FALSE(first->details->files[0].bytes_per_s) << "not known after one look";
  machine.between_looks();
  file(3, "0100000", 1000 + (7 << 20));
  file(4, "02102001", 150);
  file(5, "0100002", 10);  // back to the begin
  const auto second = sampler.look(wanted)->details;
  ASSERT_EQ(second->files.size(), 3u);
  const OpenFile& fastest = second->files[0];
  EXPECT_EQ(fastest.fd, 3);
  EXPECT_DOUBLE_EQ(fastest.bytes_per_s.value(), 7 << 20);
  EXPECT_TRUE(fastest.reads && !fastest.writes);
  EXPECT_DOUBLE_EQ(second->files[1].bytes_per_s.value(), 100);
  EXPECT_TRUE(second->files[1].writes && !second->files[1].reads) << "a log is not read";
  EXPECT_EQ(second->files[2].bytes_per_s, 0);
  EXPECT_TRUE(second->files[2].writes && second->files[2].reads);
}

TEST(Sampler, AGpuThatDoesNotAnswerIsNotShownAsItWas) {
  FakeMachine machine;
  machine.tree.write(
      "script", "devices 1\ndriver 570.10\ncuda 12080\n0 name Card\n0 util 87\n0 mem_util 5\n");
  ::setenv("NVML_STAND_IN", machine.tree.root().full("script").c_str(), 1);
  SamplerOptions options = machine.options();
  options.nvml = FLATOUT_BUILD_DIR "/nvml_stand_in/libnvidia-ml.so.1";
  Sampler sampler(options);
  std::shared_ptr<const Snapshot> s = sampler.look({});
  while (s->gpus.empty()) s = sampler.look({});  // from NVML's own thread
  EXPECT_EQ(s->gpus[0].now.util_ratio, 0.87);
  // The machine's clock goes on, and NVML's thread hardly.
  while (s->gpus[0].now.error.empty()) {
    for (int i = 0; i < 11; ++i) machine.between_looks();
    s = sampler.look({});
  }
  EXPECT_TRUE(s->gpus[0].now.error.starts_with("no answer from the driver for "));
  EXPECT_FALSE(s->gpus[0].now.util_ratio);
  EXPECT_EQ(s->gpus[0].name, "Card");
  ::unsetenv("NVML_STAND_IN");
}

TEST(Sampler, NothingThereIsNothingSeen) {
  const probe::FakeTree empty;
  SamplerOptions options;
  options.root = empty.root();
  options.nvml = "";
  Sampler sampler(options);
  const auto s = sampler.look({.threads = true, .details_pid = 12});
  EXPECT_TRUE(s->task_list.empty());
  EXPECT_TRUE(s->cores.empty());
  EXPECT_FALSE(s->cpu_waiting.some);
  EXPECT_EQ(s->details, nullptr);
}

TEST(Frameworks, AreKnownByTheirLibraries) {
  EXPECT_EQ(framework_of("r-xp /x/libcuda.so.1\nr-xp /x/torch/lib/libtorch_cpu.so\n"), "PyTorch");
  EXPECT_EQ(framework_of("r-xp /x/tensorflow/libtensorflow_framework.so.2\n"), "TensorFlow");
  EXPECT_EQ(framework_of("r-xp /x/jaxlib/xla_extension.so\n"), "JAX");
  EXPECT_EQ(framework_of("r-xp /usr/lib/libcudart.so.12\n"), "CUDA");
  EXPECT_EQ(framework_of("r-xp /usr/lib/libc.so.6\nr-xp /home/libtorchless/x.so\n"), "");
}

}  // namespace
}  // namespace flatout::screen
