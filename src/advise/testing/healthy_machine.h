// A machine with nothing to complain about, and a fake / that looks like one.
#pragma once

#include "advise/check.h"
#include "probe/testing/fake_tree.h"

namespace flatout::advise {

inline constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

inline Machine healthy() {
  Machine m;
  m.cores = m.allowed_cores = 16;
  m.memory_bytes = 64 * kGiB;
  m.available_bytes = 50 * kGiB;
  m.swap_bytes = m.free_swap_bytes = 8 * kGiB;
  m.free_huge_pages = 0;
  m.huge_page_bytes = 2 << 20;
  m.thp = "always [madvise] never";
  m.shm = Space{32 * kGiB, 31 * kGiB, 0, 0};
  m.open_files = {65536, 1048576};
  m.pids_limit = 10000;
  m.pids_in_group = 300;
  m.own_threads = 300;
  m.processes = {100000, 100000};
  m.work = Space{900 * kGiB, 300 * kGiB, 1000000, 900000};
  m.driver_version = m.kernel_module_version = "550.54";
  m.cuda_version = "12.4";
  m.frameworks = {{"PyTorch",
                   "2.4.0+cu124",
                   "torch",
                   "12.4",
                   {{"nvidia-cudnn-cu12", "9.1.0.70", "9.1.0.70"}},
                   {"sm_80", "sm_86", "sm_90"}}};
  Gpu gpu;
  gpu.facts = {"Test", "GPU-1", 8, 6};
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
  data.place = probe::FsPlace::kDisk;
  data.bytes = 20 * kGiB;
  data.files = 100;
  m.data.push_back(data);
  return m;
}

inline const model::Problem* find(const model::CheckUp& found, std::string_view id) {
  for (const model::Problem& p : found.problems) {
    if (p.id == id) return &p;
  }
  return nullptr;
}

/// Such a machine's files, as the kernel shows them.
struct MachineTree {
  MachineTree() {
    tree.write("sys/devices/system/cpu/online", "0-7\n");
    tree.write(
        "proc/self/status",
        "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t0\n");
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
               "Max cpu time              unlimited            unlimited            seconds\n"
               "Max file size             unlimited            unlimited            bytes\n"
               "Max locked memory         8388608              8388608              bytes\n");
    tree.newest_pid(100);
  }
  Machine read(MachineOptions options = {}) const {
    if (options.nvml.starts_with("libnvidia")) options.nvml = "libnot-there.so";
    options.watch_cpu = false;
    return read_machine(tree.root(), options);
  }
  probe::FakeTree tree;
};

}  // namespace flatout::advise
