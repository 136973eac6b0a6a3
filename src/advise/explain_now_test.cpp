#include "advise/explain_now.h"

#include <gtest/gtest.h>

#include "advise/explain.h"

namespace flatout::advise {
namespace {

using Lines = std::vector<std::string>;

constexpr uint64_t kGiB = 1 << 30;

model::Explanation explain_on(const Machine& machine, std::string_view log) {
  LogReader reader;
  reader.feed(log);
  return explain(reader.finish(), machine);
}

Task task(int32_t pid, std::string command, uint64_t rss, uint64_t shm = 0) {
  Task out;
  out.pid = pid;
  out.command = std::move(command);
  out.rss_bytes = rss;
  out.shm_bytes = shm;
  return out;
}

Gpu gpu(uint32_t index, uint64_t used, std::vector<probe::GpuProcess> processes) {
  Gpu out;
  out.reading.index = index;
  out.reading.mem_total_bytes = 8 * kGiB;
  out.reading.mem_used_bytes = used;
  out.reading.processes = std::move(processes);
  return out;
}

TEST(ExplainNow, SaysTheDriverOrWhyNoneCanBeSeen) {
  const std::string_view log =
      "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).\n";
  Machine machine;
  machine.driver_version = "535.54.03";
  machine.cuda_version = "12.2";
  machine.kernel_module_version = "535.54.03";
  EXPECT_EQ(explain_on(machine, log).now,
            (Lines{"The driver here is 535.54.03, which supports CUDA up to 12.2."}));
  machine.driver_version.clear();
  machine.gpu_error = "libnvidia-ml.so.1 is not there";
  EXPECT_EQ(explain_on(machine, log).now, (Lines{"Here now: libnvidia-ml.so.1 is not there.",
                                                 "The kernel module loaded is 535.54.03."}));
  EXPECT_EQ(explain_on({}, log).now, Lines());
}

TEST(ExplainNow, OfADividedGpuThePartsCount) {
  const std::string_view log = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED\n";
  Machine machine;
  machine.gpus = {gpu(0, 5 * kGiB, {{70, 4 * kGiB, 9, 0}})};
  machine.gpus[0].reading.instances = {{9, 0, "1g.5gb", 4 * kGiB, 5 * kGiB},
                                       {5, 0, "2g.10gb", kGiB, 10 * kGiB},
                                       {6, 0, "1g.5gb", {}, {}}};  // the driver does not tell
  const model::Explanation e = explain_on(machine, log);
  EXPECT_EQ(e.now, (Lines{"GPU 0's part 9.0 (1g.5gb) now has 1.00 GiB of 5.00 GiB free.",
                          "GPU 0's part 5.0 (2g.10gb) now has 9.00 GiB of 10.0 GiB free."}));
  ASSERT_EQ(e.holders.size(), 1u);
  EXPECT_EQ(e.holders[0].what, "pid 70 (of another container or user) on GPU 0");
  // Of a GPU that tells nothing it is not said to be free.
  machine.gpus = {gpu(0, 0, {})};
  machine.gpus[0].reading.mem_used_bytes.reset();
  EXPECT_EQ(explain_on(machine, log).now, Lines());
}

TEST(ExplainNow, SaysTheMemoryItsLimitAndWhoUsesIt) {
  const std::string_view log = "Killed\n";
  const double alone = explain_on({}, log).sure;
  Machine machine;
  machine.memory_limit = 16 * kGiB;
  machine.memory_in_group = 12 * kGiB;
  machine.memory_bytes = 64 * kGiB;
  machine.available_bytes = 40 * kGiB;
  machine.tasks = {task(11, "python train.py", 9 * kGiB), task(12, "python old.py", 2 * kGiB)};
  const model::Explanation calm = explain_on(machine, log);
  EXPECT_EQ(calm.now, (Lines{"The control group here may use 16.0 GiB, and uses 12.0 GiB.",
                             "40.0 GiB of this machine's 64.0 GiB are available now."}));
  EXPECT_EQ(calm.sure, alone);
  ASSERT_EQ(calm.holders.size(), 2u);
  EXPECT_EQ(calm.holders[0].what, "pid 11 python train.py");
  EXPECT_EQ(calm.holders[0].bytes, 9 * kGiB);
  // A kernel that has killed for memory makes it likely that it did so here.
  machine.group_oom_kills = 1;
  const model::Explanation killed = explain_on(machine, log);
  EXPECT_EQ(killed.now.back(), "The kernel has killed 1 process for memory here since it started.");
  EXPECT_GT(killed.sure, alone);
  machine.oom_kills = 3;
  EXPECT_EQ(explain_on(machine, log).now.back(),
            "The kernel has killed 3 processes for memory here since it started.");
}

TEST(ExplainNow, NamesAtMostFiveWhoHoldMemory) {
  Machine machine;
  for (int32_t pid = 1; pid <= 9; ++pid) machine.tasks.push_back(task(pid, "python", kGiB));
  EXPECT_EQ(explain_on(machine, "Killed\n").holders.size(), 5u);
}

TEST(ExplainNow, SaysTheRoomInShmAndWhatDeadProcessesLeftThere) {
  const std::string_view log =
      "RuntimeError: unable to write to file </torch_1_2_3>: No space left on device (28)\n";
  Machine machine;
  machine.shm = Space{.total_bytes = 64 << 20, .free_bytes = 1 << 20};
  machine.shm_dead_bytes = 40 << 20;
  machine.shm_dead_files = 3;
  machine.tasks = {task(11, "python train.py", kGiB, 512 << 20),
                   task(12, "python small.py", kGiB, 1 << 20)};
  const model::Explanation e = explain_on(machine, log);
  EXPECT_EQ(e.now, (Lines{"/dev/shm here has 64.0 MiB, 1.00 MiB of it free."}));
  ASSERT_EQ(e.holders.size(), 2u);
  EXPECT_EQ(e.holders[0].what, "3 files in /dev/shm of processes that are gone");
  EXPECT_EQ(e.holders[0].bytes, 40u << 20);
  EXPECT_EQ(e.holders[1].what, "pid 11 python train.py");
  EXPECT_EQ(e.holders[1].bytes, 512u << 20);
}

TEST(ExplainNow, SaysTheLimitsThatBearOnTheFailure) {
  Machine machine;
  machine.open_files = {.soft = 1024, .hard = 1048576};
  machine.locked_memory = {.soft = 65536, .hard = std::nullopt};
  EXPECT_EQ(explain_on(machine, "OSError: [Errno 24] Too many open files: '/d/1.jpg'\n").now,
            (Lines{"Allowed here: 1024 open files a process; up to 1048576 on request."}));
  EXPECT_EQ(explain_on(machine,
                       "a:1:2 [0] misc/ibvwrap.cc:1 NCCL WARN Call to ibv_reg_mr failed with error "
                       "Cannot allocate memory\n")
                .now,
            (Lines{"Allowed here: 65536 bytes of locked memory; up to unlimited on request."}));
  // Without a limit there is nothing to say.
  EXPECT_EQ(explain_on({}, "OSError: [Errno 24] Too many open files: '/d/1.jpg'\n").now, Lines());
}

TEST(ExplainNow, SaysHowManyProcessesMayBeAndWhoseZombiesCount) {
  const std::string_view log = "RuntimeError: can't start new thread\n";
  Machine machine;
  machine.pids_limit = 512;
  machine.pids_in_group = 511;
  machine.processes = {.soft = 4096, .hard = 4096};
  machine.zombies = 300;
  machine.zombies_of_parent = 299;
  machine.zombies_parent = "pid 7 python";
  EXPECT_EQ(explain_on(machine, log).now,
            (Lines{"The control group here may have 512 processes and threads, and has 511.",
                   "Allowed here: 4096 processes and threads of this user; up to 4096 on request.",
                   "300 zombies are here, 299 of them of pid 7 python."}));
  EXPECT_EQ(explain_on({}, log).now, Lines());
}

TEST(ExplainNow, SaysWhichInstructionsTheCpuLacks) {
  const std::string_view log = "Illegal instruction (core dumped)\n";
  Machine machine;
  machine.cpu_flags = {"sse4_2", "avx"};
  EXPECT_EQ(explain_on(machine, log).now, (Lines{"This machine's CPU lacks avx2, fma, avx512f."}));
  machine.cpu_flags = {"avx", "avx2", "fma", "avx512f"};
  EXPECT_EQ(explain_on(machine, log).now,
            (Lines{"This machine's CPU has AVX, AVX2, FMA and AVX-512."}));
  EXPECT_EQ(explain_on({}, log).now, Lines());
}

TEST(ExplainNow, AdviceNamesWhoHoldsMost) {
  const std::string_view log = "RuntimeError: CUDA error: out of memory\n";
  Machine machine;
  machine.gpus = {gpu(0, 2 * kGiB, {{4710, kGiB}}), gpu(1, 7 * kGiB, {{4711, 6 * kGiB}})};
  machine.tasks = {task(4711, "python old.py", kGiB)};
  const model::Explanation e = explain_on(machine, log);
  ASSERT_EQ(e.holders.size(), 2u);
  EXPECT_EQ(e.holders[0].what, "pid 4710 (of another container or user) on GPU 0");
  EXPECT_EQ(e.advice[0].id, "stop_holder");
  EXPECT_EQ(e.advice[0].text,
            "Stop pid 4711 python old.py on GPU 1, which holds 6.00 GiB, or take another device.");
  EXPECT_EQ(explain_on({}, log).now.size(), 1u) << "why no GPU can be seen";
  // Nobody is known to hold it: the advice stays what the rule says.
  EXPECT_EQ(explain_on({}, log).advice[0].text.find("pid"), std::string::npos);
}

TEST(ExplainNow, AProcessThatTheLogNamesIsNamed) {
  const model::Explanation e = explain_on(
      {},
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
      "total "
      "capacity of 23.69 GiB of which 1.05 GiB is free. Process 12345 has 19.80 GiB memory in use. "
      "Including non-PyTorch memory, this process has 2.60 GiB memory in use. Of the allocated "
      "memory "
      "2.10 GiB is allocated by PyTorch, and 11.12 MiB is reserved by PyTorch but unallocated.\n");
  EXPECT_EQ(e.finding, "gpu.memory_taken");
  EXPECT_EQ(e.advice[0].text,
            "Stop pid 12345 (as the log says), which holds 19.8 GiB, or take another device.");
}

}  // namespace
}  // namespace flatout::advise
