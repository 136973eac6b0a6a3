// The debug build, libflatout_malloc_debug.so: the same allocator with a header before each block
// and a red zone round it, patterns in fresh and freed memory, a guard page behind large blocks,
// and a quarantine that freed blocks wait in. It names what it finds, with the stacks of who
// allocated and freed the block, and aborts. `flatout heap --full` uses it to count every
// allocation, `--record` to write down the large ones.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flatout::malloc::debug {

// As those of allocator.h.
void* allocate(size_t bytes);
void deallocate(void* p);
void* allocate_zeroed(size_t count, size_t bytes);
void* allocate_aligned(size_t alignment, size_t bytes);
void* reallocate(void* p, size_t bytes);
size_t usable_size(const void* p);
size_t purge();  // the quarantine stays

struct Settings {
  bool check = true;                         // false: no patterns, guards, quarantine
  bool abort = true;                         // on what is found
  uint64_t quarantine = uint64_t{64} << 20;  // bytes of freed blocks
};
/// When the library is loaded.
void start(const Settings& settings);
/// When the process ends: looks at what is still in quarantine.
void finish();
/// From now on each allocation of `least` bytes or more is in the heap profile; SIZE_MAX: none.
void note_from(size_t least);

// For a fork: see fork.h.
void lock_debug();
void unlock_debug();
void reset_debug();

}  // namespace flatout::malloc::debug
