// The mounts that a process sees (/proc/PID/mountinfo).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fs.h"

namespace flatout::probe {

struct Mount {
  int64_t id = -1;
  std::string device;  // "254:0"
  std::string root;    // the part of the file system that is mounted
  std::string point, type, source, options, super_options;
};
std::vector<Mount> parse_mountinfo(std::string_view text);

/// The mount that holds `path`: the last one with the longest matching point; nullptr if none.
const Mount* mount_of(const std::vector<Mount>& mounts, std::string_view path);

/// Where a file system has its data.
enum class FsPlace : uint8_t {
  kDisk,     // of this machine
  kMemory,   // tmpfs
  kLayers,   // a container's: overlay
  kHost,     // a folder of the host, lent to this virtual machine or sandbox: virtiofs, 9p
  kProgram,  // each call goes to a program (FUSE), wherever that has it from
  kNetwork,
  kUnknown
};
FsPlace place_of_fs(std::string_view type);
/// The same; a type that is not known is on a disk where its device is one.
FsPlace place_of(const Mount& mount);

/// True for file systems whose files can be opened without waiting for a program or a machine.
bool is_local_fs(std::string_view type);

/// The disk, as sys/block names it, that holds a mount's file system or a part of it: "sda" for one
/// on sda1. "" where no single disk is known.
std::string disk_of(const fs::Root& root, const Mount& mount);

/// Mounts by id, read again after 30 s.
class MountsById {
 public:
  /// nullptr: not known, or not yet. Valid until the next call.
  const Mount* find(const fs::Root& root, int32_t pid, int64_t mount_id, TimePoint now);
  /// "" where it is not known.
  std::string type_of(const fs::Root& root, int32_t pid, int64_t mount_id, TimePoint now);

 private:
  std::map<int64_t, Mount> mounts_;
  TimePoint next_read_{};
};

}  // namespace flatout::probe
