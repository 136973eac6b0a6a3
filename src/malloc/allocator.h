// The allocator as functions of our own names; malloc_symbols.cpp gives them the C library's.
// A failed allocation returns nullptr and sets errno to ENOMEM; nothing here aborts or throws.
// Freeing keeps errno. Pointers of other allocators are handed to foreign.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "malloc/cache.h"

namespace flatout::malloc {

// allocate() and deallocate() are in cache.h.
void* allocate_zeroed(size_t count, size_t bytes);
void* allocate_aligned(size_t alignment, size_t bytes);  // alignment: a power of two
void* reallocate(void* p, size_t bytes);                 // bytes 0 frees, as glibc's does
size_t usable_size(const void* p);

/// Counted over the life of the process: frees of what was no block in use. They do nothing else.
uint64_t invalid_frees();

struct Totals {
  size_t in_use_bytes;    // in spans and large blocks handed out, with what is cached in them
  size_t cached_bytes;    // free, with memory behind it
  size_t reserved_bytes;  // address space that is readable and writable
  size_t released_bytes;  // given back to the kernel, ever
  unsigned caches;
};
Totals totals();

/// Gives back everything that is free. Returns the bytes.
size_t purge();

}  // namespace flatout::malloc
