// What is shown of the chosen process alone: command line, environment, limits, open files, Python
// and native functions.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "probe/mount_table.h"
#include "screen/functions.h"
#include "screen/native_functions.h"
#include "screen/snapshot.h"
#include "screen/task_table.h"

namespace flatout::screen {

/// What of "NAME=value" entries may be shown, and how: environments hold secrets.
using Redactor = std::function<std::vector<std::pair<std::string, std::string>>(
    const std::vector<std::string>& environment)>;

class DetailsReader {
 public:
  DetailsReader(fs::Root root, Redactor redact, TaskTable::Clock clock);
  /// nullptr for pid 0 or where it has ended. Python functions are watched while the same pid is
  /// asked for, native ones while they are wanted.
  std::shared_ptr<const Details> look(int32_t pid, bool native, const Snapshot& snapshot);

 private:
  struct Position {
    std::string path;
    int64_t position = 0;
    TimePoint at{};
  };
  void read_files(Details& out);

  fs::Root root_;
  Redactor redact_;
  TaskTable::Clock clock_;
  uint64_t start_ticks_ = 0;
  std::unique_ptr<FunctionWatch> watch_;
  std::unique_ptr<NativeWatch> native_;
  std::map<int32_t, Position> positions_;  // of the chosen process, by descriptor
  probe::MountsById mounts_;
};

}  // namespace flatout::screen
