// A fake machine for tests: a training job with workers among other processes, two disks, pressure.
// between_looks() moves its counters on by one second; the clock is the test's own.
#pragma once

#include <string>

#include "probe/testing/fake_tree.h"
#include "screen/sampler.h"

namespace flatout::screen {

class FakeMachine {
 public:
  static constexpr int32_t kJob = 4100, kWorker = 4101, kHostile = 6666, kReader = 900;

  explicit FakeMachine(int cores = 8) : cores_(cores) {
    now_ = time_point_ns(1'000'000'000'000);
    tree.write("proc/sys/kernel/hostname", "trainbox\n");
    tree.write("proc/uptime", "93784.50 100000.00\n");
    tree.write("proc/loadavg", "3.10 2.20 1.30 5/812 6700\n");
    tree.write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n");
    tree.write(
        "proc/meminfo",
        "MemTotal: 65536000 kB\nMemFree: 8192000 kB\nMemAvailable: 40960000 kB\n"
        "Buffers: 512000 kB\nCached: 30720000 kB\nShmem: 2048000 kB\nSReclaimable: 1024000 kB\n"
        "Dirty: 30720 kB\nWriteback: 0 kB\nSwapTotal: 8192000 kB\nSwapFree: 8000000 kB\n"
        "AnonHugePages: 2048000 kB\nHugePages_Total: 16\nHugePages_Free: 12\n"
        "Hugepagesize: 2048 kB\n");
    tree.write("sys/block/nvme0n1/size", "1\n");
    tree.write("sys/block/sda/size", "1\n");
    processes(0);
    counters(0);
  }

  SamplerOptions options() const {
    SamplerOptions out;
    out.root = tree.root();
    out.nvml = "";
    out.clock = [] { return now_; };
    return out;
  }

  void between_looks() {
    now_ += std::chrono::seconds(1);
    ++seconds_;
    counters(seconds_);
    processes(seconds_);
  }

  probe::FakeTree tree;

 private:
  // Cores are busier the higher their number: core i for i of `cores` hundredths, a quarter of it
  // in the kernel.
  void counters(long t) const {
    std::string stat;
    long all_user = 0, all_system = 0, all_idle = 0;
    for (int i = 0; i < cores_; ++i) {
      const long busy = t * 100 * (i + 1) / cores_, system = busy / 4;
      const long user = busy - system, idle = t * 100 - busy;
      all_user += user;
      all_system += system;
      all_idle += idle;
      stat += "cpu" + std::to_string(i) + " " + std::to_string(1000 + user) + " 0 " +
              std::to_string(500 + system) + " " + std::to_string(9000 + idle) + " 0 0 0 0 0 0\n";
    }
    tree.write("proc/stat", "cpu  " + std::to_string(1000L * cores_ + all_user) + " 0 " +
                                std::to_string(500L * cores_ + all_system) + " " +
                                std::to_string(9000L * cores_ + all_idle) + " 0 0 0 0 0 0\n" +
                                stat + "ctxt 1\nprocesses 1\nprocs_running 11\nprocs_blocked 2\n");
    const auto pressure = [&](const char* kind, long some_us, long full_us) {
      tree.write(std::string("proc/pressure/") + kind,
                 "some avg10=0.00 avg60=0.00 avg300=0.00 total=" + std::to_string(t * some_us) +
                     "\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=" +
                     std::to_string(t * full_us) + "\n");
    };
    pressure("cpu", 234'000, 0);
    pressure("io", 451'000, 120'000);
    pressure("memory", 0, 0);
    // nvme0n1: 200 reads of 0.5 MiB that took 2 ms each and kept it busy for 900 ms; a partition of
    // it; sda: nothing.
    tree.write("proc/diskstats",
               " 259 0 nvme0n1 " + std::to_string(10 + t * 200) + " 0 " +
                   std::to_string(t * 204'800) + " " + std::to_string(t * 400) + " " +
                   std::to_string(t * 50) + " 0 " + std::to_string(t * 2048) + " " +
                   std::to_string(t * 100) + " 3 " + std::to_string(t * 900) + " 0\n" +
                   " 259 1 nvme0n1p1 " + std::to_string(10 + t * 200) + " 0 0 0 0 0 0 0 0 0 0\n" +
                   " 8 0 sda 5 0 40 1 0 0 0 0 0 1 1\n");
  }

  struct One {
    int pid, ppid, uid;
    std::string name, command;
    char state;
    long cpu;  // ticks in the second
    long rss_mb;
    long read_mb;  // in the second
  };

  void processes(long t) const {
    const One all[] = {
        {1, 0, 0, "systemd", "/sbin/init", 'S', 0, 12, 0},
        {2, 0, 0, "kthreadd", "", 'S', 0, 0, 0},
        {kReader, 1, 0, "updatedb", "/usr/bin/updatedb --all", 'D', 6, 20, 40},
        {4000, 1, 1000, "bash", "-bash", 'S', 0, 5, 0},
        {kJob, 4000, 1000, "python3", "/usr/bin/python3 train.py --epochs 3", 'R', 97, 3000, 0},
        {kWorker, kJob, 1000, "pt_data_worker", "/usr/bin/python3 train.py --epochs 3", 'R', 88,
         900, 60},
        {kWorker + 1, kJob, 1000, "pt_data_worker", "/usr/bin/python3 train.py --epochs 3", 'S', 71,
         900, 0},
        {5000, 4000, 1000, "defunct", "", 'Z', 0, 0, 0},
        {kHostile, 1, 1000, "\x1b]0;x\x07\xff",
         "/tmp/\x1b[31m\xe2\x80\xae"
         "evil\r\n --x",
         'S', 1, 7, 0},
    };
    for (const One& p : all) {
      probe::FakeTree::Task task;
      task.pid = p.pid;
      task.ppid = p.ppid;
      task.name = p.name;
      task.state = p.state;
      task.user = 100 + t * p.cpu;
      task.start = 1000 + p.pid;
      task.rss_pages = p.rss_mb * (1 << 20) / 4096;
      if (p.pid == 2) task.flags = 0x200000;
      tree.task(task);
      const std::string dir = "proc/" + std::to_string(p.pid) + "/";
      std::string words = p.command;
      for (char& c : words) {
        if (c == ' ') c = '\0';
      }
      tree.write(dir + "cmdline", words);
      tree.write(dir + "status", "Uid:\t" + std::to_string(p.uid) + "\t" + std::to_string(p.uid) +
                                     "\t0\t0\nCpus_allowed_list:\t0-7\n");
      tree.write(dir + "io", "rchar: 0\nwchar: 0\nsyscr: 0\nsyscw: 0\nread_bytes: " +
                                 std::to_string(t * p.read_mb << 20) +
                                 "\nwrite_bytes: 0\ncancelled_write_bytes: 0\n");
    }
    // Two more threads of the job, one of which computes.
    for (int i = 1; i <= 2; ++i) {
      probe::FakeTree::Task thread;
      thread.pid = kJob + 50 + i;
      thread.name = i == 1 ? "OMP" : "pin_memory";
      thread.state = i == 1 ? 'R' : 'S';
      thread.user = i == 1 ? t * 40 : 0;
      tree.write("proc/4100/task/" + std::to_string(thread.pid) + "/stat",
                 probe::FakeTree::stat_line(thread));
    }
    tree.write("proc/4100/maps",
               "7f0000000000-7f0000001000 r-xp 00000000 08:01 5 /opt/lib/libtorch_cpu.so\n");
  }

  int cores_;
  long seconds_ = 0;
  static inline TimePoint now_{};
};

}  // namespace flatout::screen
