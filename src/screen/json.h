// A snapshot as JSON: what `flatout top --json` prints.
#pragma once

#include <string>

#include "screen/snapshot.h"
#include "screen/task_table.h"

namespace flatout::screen {

/// Names that are not UTF-8 are mended. What was not measured is null. `only_pid`: of the processes
/// this one and what descends from it; 0: all.
std::string snapshot_json(const Snapshot& snapshot, UserNames& users, int32_t only_pid = 0);

}  // namespace flatout::screen
