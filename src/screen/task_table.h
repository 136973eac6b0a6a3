// All processes of the machine, and on demand their threads, from
// /proc/PID/{stat,status,cmdline,io}.
//
// A process costs one file a look, its stat; what changes rarely is read when the process is first
// seen, after an exec, and now and then, each process at another look. Its storage traffic is read
// whenever it used the CPU or waits for a disk, else now and then.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/fs.h"
#include "screen/snapshot.h"

namespace flatout::screen {

class TaskTable {
 public:
  using Clock = TimePoint (*)();
  /// `clock`: each process's times are taken as of the moment it is read.
  explicit TaskTable(fs::Root root, Clock clock = &MonotonicClock::now);

  /// Fills in task_list and the counts of tasks. Rates are 0 (traffic: not known) for what was not
  /// there at the look before.
  void look(bool threads, Snapshot& out);

 private:
  struct Usage {  // at the look before
    uint64_t start_ticks = 0, cpu_ticks = 0;
    TimePoint at{};
  };
  struct Known {
    Usage usage;
    uint64_t look = 0;  // the last one in which it was there
    uint32_t uid = 0;
    std::array<char, 16> comm{};
    std::shared_ptr<const std::string> command;
    bool io_denied = false;
    uint64_t read_bytes = 0, write_bytes = 0;
    TimePoint io_at{};
    float read_rate = -1, write_rate = -1;
    std::unordered_map<int32_t, Usage> threads;
  };

  bool read_stat(const std::string& path, Task& task);
  void read_process(int32_t pid, bool threads, Snapshot& out);
  void read_threads(Known& known, const Task& process, Snapshot& out);
  void read_identity(Known& known, const Task& process);
  void read_io(Known& known, const Task& process);
  float cores_since(Usage& usage, const Task& task) const;

  fs::Root root_;
  Clock clock_;
  uint64_t looks_ = 0;
  std::unordered_map<int32_t, Known> known_;
  std::string buffer_, path_;
};

/// The user's name, from the root's etc/passwd, else as the system knows it; the number where
/// nobody does. Remembers what it found.
class UserNames {
 public:
  explicit UserNames(fs::Root root) : root_(std::move(root)) {}
  const std::string& name(uint32_t uid);

 private:
  fs::Root root_;
  bool read_ = false;
  std::unordered_map<uint32_t, std::string> names_;
};

}  // namespace flatout::screen
