// Every large request of the job as it happens, in the JSON lines that `flatout devmem replay`
// reads (docs/devmem.md). Of the debug build alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flatout::malloc {

struct Stack;

/// Requests of `least` bytes or more go to `path`, or, where that is there already (another process
/// of the job was first, or an older recording), to `path`.PID, `path`.PID.2 and so on; the file is
/// made at the first of them. "" ends it.
void start_recording(const char* path, size_t least);
/// Whether a request of this size is recorded.
bool is_recorded(size_t bytes);

/// The number of the block in the recording, from 1; 0: it is not in it. `stack`: nullptr if there
/// is none.
uint64_t record_allocated(size_t bytes, const Stack* stack);
/// Before its memory can be handed out again. 0: nothing.
void record_freed(uint64_t id);
void record_refused(size_t bytes, const Stack* stack);
/// A step begins.
void record_step();

void lock_recording();
void unlock_recording();
/// In the child of a fork: it has a file of its own, and its parent's blocks are not in it.
void reset_recording();

}  // namespace flatout::malloc
