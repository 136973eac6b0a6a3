// A fake / in a temporary directory, for tests in which files change between two readings.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/fs.h"

namespace flatout::probe {

class FakeTree {
 public:
  FakeTree() {
    // In memory where possible: a tree has hundreds of files.
    std::string name = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    name += "/flatout-root-XXXXXX";
    dir_ = ::mkdtemp(name.data());
  }
  ~FakeTree() {
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
  }
  FakeTree(const FakeTree&) = delete;
  FakeTree& operator=(const FakeTree&) = delete;

  fs::Root root() const { return fs::Root(dir_); }
  void write(const std::string& path, std::string_view text) const {
    const std::filesystem::path full = dir_ + "/" + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full, std::ios::binary) << text;
  }
  void link(const std::string& path, const std::string& target) const {
    const std::filesystem::path full = dir_ + "/" + path;
    std::filesystem::create_directories(full.parent_path());
    std::filesystem::remove(full);
    std::filesystem::create_symlink(target, full);
  }
  void remove(const std::string& path) const { std::filesystem::remove_all(dir_ + "/" + path); }
  /// In place of a file that may not be read: any read of it fails, also for root.
  void forbid(const std::string& path) const {
    remove(path);
    std::filesystem::create_directories(dir_ + "/" + path);
  }

  struct Task {
    int pid = 0, ppid = 1;
    std::string name = "python3";
    char state = 'S';
    int pgrp = 0, session = 0;  // 0: the pid
    long user = 0, system = 0, children = 0, start = 1000, rss_pages = 0;
    unsigned long flags = 0x400000;
    int exit_status = 0;
    std::string exe = "/usr/bin/python3.11";
    long minor = 0, major = 0;
  };
  static std::string stat_line(const Task& t) {
    const auto n = [](long value) { return " " + std::to_string(value); };
    return std::to_string(t.pid) + " (" + t.name + ") " + t.state + n(t.ppid) +
           n(t.pgrp ? t.pgrp : t.pid) + n(t.session ? t.session : t.pid) + " 0 -1" +
           n(static_cast<long>(t.flags)) + n(t.minor) + " 0" + n(t.major) + " 0" + n(t.user) +
           n(t.system) + n(t.children) + " 0 20 0 3 0" + n(t.start) + " 1000000" + n(t.rss_pages) +
           " 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0" + " 0 0 0 0 0 0 0" +
           n(t.exit_status) + "\n";
  }
  /// proc/PID with stat, status, cmdline, exe and the main thread.
  void task(const Task& t) const {
    const std::string dir = "proc/" + std::to_string(t.pid) + "/";
    write(dir + "stat", stat_line(t));
    write(dir + "status", "Name:\tx\nTgid:\t" + std::to_string(t.pid) +
                              "\nUid:\t0\t0\t0\t0\nVmRSS:\t    2048 kB\nRssAnon:\t    1024 kB\n"
                              "RssShmem:\t     512 kB\nVmSwap:\t       4 kB\n"
                              "Cpus_allowed_list:\t0-2,5\nvoluntary_ctxt_switches:\t11\n"
                              "nonvoluntary_ctxt_switches:\t7\n");
    write(dir + "cmdline", t.name + std::string("\0train.py\0--lr\0", 15));
    link(dir + "exe", t.exe);
    const std::string main = dir + "task/" + std::to_string(t.pid) + "/";
    write(main + "stat", stat_line(t));
    write(main + "status", "voluntary_ctxt_switches:\t11\nCpus_allowed_list:\t0-2,5\n");
    write(main + "schedstat", "5000000 700000 12\n");
  }
  /// The newest pid, as /proc/loadavg names it.
  void newest_pid(int pid) const {
    write("proc/loadavg", "0.10 0.20 0.30 2/80 " + std::to_string(pid) + "\n");
  }

 private:
  std::string dir_;
};

}  // namespace flatout::probe
