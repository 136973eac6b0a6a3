#include "advise/check.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "advise/testing/healthy_machine.h"

namespace flatout::advise {
namespace {

struct Rule {
  const char* id;
  bool fails;
  std::function<void(Machine&)> cause;  // the healthy machine gets the problem
  std::function<void(Machine&)> near;   // and what only looks like it
};

// The GPU in two parts of 10 and 20 GiB, with so much taken of each.
void divide(Machine& m, uint64_t first, uint64_t second) {
  m.gpus[0].reading.mem_used_bytes = first + second;
  m.gpus[0].reading.instances = {{9, 0, "1g.10gb", first, 10 * kGiB},
                                 {5, 0, "2g.20gb", second, 20 * kGiB}};
}

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
         m.memory_limit = 8 * kGiB, m.memory_in_group = 7900 * kMiB, m.cache_in_group = 300 * kMiB;
       },
       // Full of page cache, which goes when it must.
       [](Machine& m) {
         m.memory_limit = 8 * kGiB, m.memory_in_group = 7900 * kMiB, m.cache_in_group = 2 * kGiB;
       }},
      // Empty, and yet nothing finds room in it.
      {"mem.limit", true, [](Machine& m) { m.memory_limit = 64 * kMiB, m.memory_in_group = 0; },
       [](Machine& m) { m.memory_limit = kGiB, m.memory_in_group = 0, m.data.clear(); }},
      {"mem.pressure", true, [](Machine& m) { m.available_bytes = kGiB; },
       [](Machine& m) { m.available_bytes = 5 * kGiB; }},
      {"mem.swap", false, [](Machine& m) { m.free_swap_bytes = 5 * kGiB; },
       [](Machine& m) { m.free_swap_bytes = *m.swap_bytes - (500 * kMiB); }},
      {"mem.huge_pages", false, [](Machine& m) { m.thp = "always madvise [never]"; },
       [](Machine& m) { m.thp = "[always] madvise never"; }},
      {"mem.huge_pages_reserved", false, [](Machine& m) { m.free_huge_pages = 8192; },
       [](Machine& m) { m.free_huge_pages = 10; }},
      {"leftover.process", true,
       [](Machine& m) {
         m.tasks.push_back({7, 1, "python", "python old.py", 2 * kGiB, 9000, true, true, 0});
       },
       [](Machine& m) {
         m.tasks.push_back({7, 6, "python", "python now.py", 2 * kGiB, 9000, false, true, 0});
       }},
      {"leftover.process", false,
       [](Machine& m) {
         m.tasks.push_back({7, 1, "python", "python old.py", 2 * kGiB, 9000, true, false, 0});
       },
       [](Machine& m) {
         m.tasks.push_back({7, 6, "python", "python now.py", 2 * kGiB, 9000, false, false, 0});
       }},
      {"leftover.zombies", true, [](Machine& m) { m.zombies = 5000; },  // half of pids.max
       [](Machine& m) { m.zombies = 99; }},
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
      {"mem.shm", true,
       [](Machine& m) {
         m.shm = Space{32 * kGiB, 3 * kGiB, 0, 0};
       },
       [](Machine& m) {
         m.shm = Space{32 * kGiB, 4 * kGiB, 0, 0};
       }},
      {"mem.shm", true, [](Machine& m) { m.shm.reset(), m.shm_folder = ShmFolder::kMissing; },
       [](Machine& m) { m.shm.reset(); }},  // not known
      {"mem.shm", true, [](Machine& m) { m.shm.reset(), m.shm_folder = ShmFolder::kDenied; },
       [](Machine&) {}},
      {"mem.shm", false, [](Machine& m) { m.shm.reset(), m.shm_folder = ShmFolder::kNotMounted; },
       [](Machine&) {}},
      {"check.proc", true, [](Machine& m) { m.proc_missing = true; }, [](Machine&) {}},
      {"mem.fds", false,
       [](Machine& m) {
         m.open_files = {1024, 1048576};
       },
       [](Machine& m) { m.open_files = {}; }},  // unlimited
      {"limit.pids", true, [](Machine& m) { m.pids_limit = 500; },
       [](Machine& m) { m.pids_limit = 1000; }},
      {"limit.processes", true, [](Machine& m) { m.processes.soft = 600; },
       [](Machine& m) { m.processes.soft = 600, m.root = true; }},  // root has no such limit
      {"limit.cpu_time", true, [](Machine& m) { m.cpu_seconds.soft = 16 * 3600; },
       [](Machine& m) { m.cpu_seconds.soft = 16 * 24 * 3600; }},  // a day of each of 16 cores
      {"limit.file_size", true, [](Machine& m) { m.file_size.soft = 100 * kMiB; },
       [](Machine& m) { m.file_size.soft = 5 * kGiB; }},
      {"limit.file_size", false, [](Machine& m) { m.file_size.soft = kGiB; },
       [](Machine& m) { m.file_size = {}; }},  // unlimited
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
      {"gpu.memory_taken", false, [](Machine& m) { m.gpus[0].reading.mem_used_bytes = 3 * kGiB; },
       [](Machine& m) { m.gpus[0].reading.mem_total_bytes.reset(); }},  // not known
      {"gpu.memory_taken", true, [](Machine& m) { divide(m, 9 * kGiB, 19 * kGiB); },
       [](Machine& m) { divide(m, 9 * kGiB, kGiB); }},  // one part is free
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
      {"gpu.library_mismatch", true,
       [](Machine& m) { m.frameworks[0].libraries[0].installed = "8.9.7"; },
       [](Machine& m) { m.frameworks[0].libraries[0].installed = "9.10.2.21"; }},
      {"gpu.library_mismatch", true,  // cuDNN is not to be older in its second number either
       [](Machine& m) { m.frameworks[0].libraries[0].wanted = "9.2.0"; },
       [](Machine& m) { m.frameworks[0].libraries[0].wanted = "9.1.1"; }},
      {"gpu.library_mismatch", false,
       [](Machine& m) {
         m.frameworks[0].libraries = {{"nvidia-nccl-cu12", "2.21.5", "2.19.3"}};
       },
       [](Machine& m) {
         m.frameworks[0].libraries = {{"nvidia-nccl-cu12", "2.21.5", "2.27.3"}};
       }},
      {"gpu.not_in_build", true, [](Machine& m) { m.gpus[0].facts.compute_major = 12; },
       [](Machine& m) { m.gpus[0].facts.compute_minor = 9; }},  // runs what was built for 8.6
      {"gpu.not_in_build", true,
       [](Machine& m) {
         m.frameworks[0].targets = {"sm_90a", "compute_90"};  // newer, and not of this kind
       },
       [](Machine& m) { m.frameworks[0].targets = {"compute_70"}; }},
      {"gpu.not_in_build", true,
       [](Machine& m) {
         m.gpus[0].facts = {"Test", "GPU-1", 9, 0};
         m.frameworks[0].targets = {"sm_80"};  // code of another major version
       },
       [](Machine& m) { m.frameworks[0].targets.clear(); }},  // not known
      {"disk.full", false, [](Machine& m) { m.work->free_bytes = 3 * kGiB; },
       [](Machine& m) { m.work.reset(); }},
      {"disk.full", true, [](Machine& m) { m.work->free_bytes = 100 << 20; },
       [](Machine& m) { m.work->free_bytes = 6 * kGiB; }},
      {"disk.not_writable", false, [](Machine& m) { m.work_folder = WorkFolder::kReadOnly; },
       [](Machine&) {}},
      {"disk.not_writable", false, [](Machine& m) { m.work_folder = WorkFolder::kDenied; },
       [](Machine&) {}},
      {"disk.not_writable", true,
       [](Machine& m) { m.work.reset(), m.work_folder = WorkFolder::kGone; },
       [](Machine& m) { m.work.reset(); }},
      {"disk.inodes", true, [](Machine& m) { m.work->free_inodes = 3; },
       [](Machine& m) { m.work->total_inodes = m.work->free_inodes = 0; }},
      {"disk.scheduler", false, [](Machine& m) { m.disks[1].scheduler = "none"; },
       [](Machine& m) { m.disks[1].scheduler = "bfq"; }},
      {"disk.scheduler", false, [](Machine& m) { m.disks[0].scheduler = "bfq"; },
       [](Machine& m) { m.disks[0].scheduler = "mq-deadline"; }},
      {"disk.read_ahead", false, [](Machine& m) { m.disks[0].read_ahead_bytes = 0; },
       [](Machine& m) { m.disks[0].read_ahead_bytes.reset(); }},
      {"data.network", false, [](Machine& m) { m.data[0].place = probe::FsPlace::kNetwork; },
       [](Machine& m) { m.data[0].place = probe::FsPlace::kUnknown; }},
      {"data.shared_folder", false, [](Machine& m) { m.data[0].place = probe::FsPlace::kHost; },
       [](Machine& m) { m.data[0].place = probe::FsPlace::kLayers; }},
      {"data.fuse", false, [](Machine& m) { m.data[0].place = probe::FsPlace::kProgram; },
       [](Machine& m) { m.data[0].place = probe::FsPlace::kMemory; }},
      {"data.small_files", false,
       [](Machine& m) {
         m.data[0].disk = "sda", m.data[0].files = 10'000, m.data[0].bytes = 9 * kGiB;
       },
       [](Machine& m) { m.data[0].files = 200'000; }},  // on the SSD
      {"data.small_files", false,
       [](Machine& m) { m.data[0].disk = "sda", m.data[0].files = 200'000; },
       [](Machine& m) { m.data[0].disk = "sda", m.data[0].files = 9'999; }},
      {"data.cache", false, [](Machine& m) { m.data[0].bytes = 200 * kGiB; },
       [](Machine& m) { m.data[0].bytes = 45 * kGiB; }},
  };
  return all;
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

TEST(Check, NamesWhoHoldsTheMemory) {
  Machine m = healthy();
  m.available_bytes = kGiB;
  m.tasks.push_back({7, 1, "python", "python big.py", 40 * kGiB, 9000, false, false, 0});
  m.tasks.push_back({8, 1, "python", "python less.py", 9 * kGiB, 9000, false, false, 0});
  const model::CheckUp found = check_up(m);
  ASSERT_NE(find(found, "mem.pressure"), nullptr);
  EXPECT_EQ(find(found, "mem.pressure")->text,
            "Only 1.00 GiB of 64.0 GiB of memory are available. Most is held by pid 7 python "
            "big.py (40.0 GiB), pid 8 python less.py (9.00 GiB).");
}

TEST(Check, SaysHowMuchOfAGpuIsFreeAndWhoHasTheRest) {
  Machine m = healthy();
  m.gpus[0].reading.mem_used_bytes = 2 * kGiB;  // less than is told as a problem
  m.gpus[0].reading.processes = {{50, kGiB}, {60, std::nullopt}};
  m.tasks.push_back({50, 1, "python", "python now.py", kGiB, 60, false, true, 0, kGiB});
  m.contexts = {{0, 0, "", "GPU-1", 21 * kGiB, 24 * kGiB}, {1, 0, "", "GPU-2", kGiB, 24 * kGiB}};
  const model::CheckUp found = check_up(m);
  EXPECT_EQ(find(found, "gpu.memory_taken"), nullptr);
  std::map<std::string, std::string> facts(found.machine.begin(), found.machine.end());
  EXPECT_EQ(facts["gpu0"], "Test of 24.0 GiB, 22.0 GiB are free, 21.0 GiB within a CUDA context");
  EXPECT_EQ(facts["gpu0_held_by"], "pid 50 python now.py 1.00 GiB, pid 60");
  EXPECT_EQ(facts["torch"], "2.4.0+cu124, CUDA 12.4, cuDNN 9.1.0.70");
}

TEST(Check, SaysHowMuchOfAGpuALeftOverHolds) {
  Machine m = healthy();
  m.tasks.push_back({7, 1, "python", "python old.py", 2 * kGiB, 9000, true, true, 0, 5 * kGiB});
  const model::CheckUp found = check_up(m);
  ASSERT_NE(find(found, "leftover.process"), nullptr);
  EXPECT_EQ(find(found, "leftover.process")->text,
            "pid 7 python old.py runs on without the one that started it, and may be left over "
            "from a run that ended: started 2 hours ago, it holds 2.00 GiB of memory, 5.00 GiB of "
            "GPU memory.");
}

TEST(Check, CountsInPlainWords) {
  Machine m = healthy();
  m.allowed_cores = 2;
  m.cpu_seconds.soft = 3600;
  m.numa_nodes = "0";
  const model::CheckUp found = check_up(m);
  ASSERT_NE(find(found, "limit.cpu_time"), nullptr);
  EXPECT_EQ(find(found, "limit.cpu_time")->text,
            "A process is ended after 1 hour of CPU time (ulimit -t); one that keeps 2 cores busy "
            "has used that after 30 minutes.");
  std::map<std::string, std::string> facts(found.machine.begin(), found.machine.end());
  EXPECT_EQ(facts["numa_nodes"], "1 (0)");
  m.numa_nodes = "0-1,3";
  const model::CheckUp more = check_up(m);
  facts = {more.machine.begin(), more.machine.end()};
  EXPECT_EQ(facts["numa_nodes"], "3 (0-1,3)");
}

}  // namespace
}  // namespace flatout::advise
