// Fork at any moment: all locks are taken before, in one order, and made new in the child.
#pragma once

namespace flatout::malloc {

/// Registers the handlers with the C library. Once.
void watch_forks();

}  // namespace flatout::malloc
