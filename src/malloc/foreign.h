// Pointers that are not ours: of the C library's allocator from before we were loaded or past us
// (dlopen, RTLD_DEEPBIND, JNI), of another allocator behind us, or of none at all. They go to where
// they came from; what no allocator knows is left alone.
#pragma once

#include <cstddef>

namespace flatout::malloc {

void free_foreign(void* p);
/// Moves the block to one that `allocate` gives. A pointer that no allocator knows: nullptr and
/// EINVAL.
void* reallocate_foreign(void* p, size_t bytes, void* (*allocate)(size_t));
size_t usable_size_foreign(const void* p);

}  // namespace flatout::malloc
