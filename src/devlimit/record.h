// What this process takes of its cards, written as it happens to the file that
// FLATOUT_DEVLIMIT_RECORD names: the JSON lines that `flatout devmem replay` reads. A file for each
// process and device.
#pragma once

#include <cstdint>

namespace flatout::devlimit {

/// `id`: no two that are held at a time have the same. All under Books' lock.
void record_taken(int row, uint64_t id, uint64_t bytes);
void record_freed(int row, uint64_t id);
/// A request that gets CUDA_ERROR_OUT_OF_MEMORY, from the limit or the driver.
void record_refused(int row, uint64_t bytes);
/// In a forked process, which holds nothing: it begins files of its own.
void forget_records();

}  // namespace flatout::devlimit
