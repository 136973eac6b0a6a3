// The stack of this thread, read by itself: see unwind.cpp.
#pragma once

#include <cstdint>

namespace flatout::malloc {

/// Return addresses of the callers, innermost first, at most `most`. Never follows a pointer out of
/// the thread's stack, [here, stack_end).
unsigned unwind(uintptr_t* pc, unsigned most, uintptr_t stack_end);
/// Where this thread's stack ends; 0 if that cannot be told without asking the C library to
/// allocate.
uintptr_t find_stack_end();

}  // namespace flatout::malloc
