// Which functions the C library's names stand for: the allocator's own, or those of its debug
// build.
#pragma once

#include "malloc/allocator.h"
#include "malloc/debug.h"

#if FLATOUT_MALLOC_DEBUG
namespace front = flatout::malloc::debug;
#else
namespace front = flatout::malloc;
#endif
