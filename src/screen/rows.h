// Which tasks the table shows, and in what order.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "screen/snapshot.h"
#include "screen/task_table.h"

namespace flatout::screen {

enum class Column : uint8_t {
  kPid,
  kUser,
  kPriority,
  kNice,
  kVirtual,
  kResident,
  kState,
  kCpu,
  kMemory,
  kTime,
  kRead,
  kWrite,
  kDisk,
  kGpuMemory,
  kCommand,
  kCount
};
std::string_view heading(Column column);  // "CPU%"

struct RowChoice {
  Column sort = Column::kCpu;
  bool reversed = false;  // numbers go down and text goes up, unless reversed
  bool tree = false;
  bool kernel = false;           // kernel threads, too
  std::string filter;            // words separated by '|', any of which a command line holds
  std::optional<uint32_t> user;  // of this one only
  int32_t root = 0;              // of this process and what descends from it only; 0: all
  std::set<int32_t> collapsed;   // in a tree, without what is below
};

struct Row {
  const Task* task = nullptr;
  int depth = 0;
  bool last = false;    // of its parent's children
  uint64_t lines = 0;   // bit d: the tree's line of depth d goes on below this row
  uint32_t hidden = 0;  // rows below it that are collapsed
};

/// The rows; they point into the snapshot.
std::vector<Row> choose_rows(const Snapshot& snapshot, const RowChoice& choice, UserNames& users);

/// Whether a task's name or command line holds `text`, in any case of letters.
bool mentions(const Task& task, std::string_view text);

}  // namespace flatout::screen
