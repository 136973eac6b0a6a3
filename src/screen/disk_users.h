// Which disk a process's traffic goes to. The kernel counts a process's traffic over all disks
// together, so this is told from the disks on which its open files lie, and only where it can be
// one alone.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>

#include "base/fs.h"
#include "probe/mount_table.h"
#include "screen/snapshot.h"

namespace flatout::screen {

class DiskUsers {
 public:
  explicit DiskUsers(fs::Root root) : root_(std::move(root)) {}

  /// Fills in Task::disk of those processes that read or write most. Needs the snapshot's disks and
  /// tasks.
  void look(Snapshot& out);

 private:
  struct OpenFile {
    std::string disk;
    int64_t position = 0;
  };
  struct Process {
    uint64_t look = 0;
    std::map<int32_t, OpenFile> files;  // on a disk, by descriptor
  };
  std::string disk_of_file(int32_t pid, int64_t mount_id, TimePoint now);
  int16_t disk_of_process(int32_t pid, const Snapshot& out);

  fs::Root root_;
  probe::MountsById mounts_;
  std::map<std::string, std::string> disks_;  // by the mount's device and source
  std::set<std::string> active_;              // disks that were used since the first look
  std::unordered_map<int32_t, Process> known_;
  uint64_t looks_ = 0;
};

}  // namespace flatout::screen
