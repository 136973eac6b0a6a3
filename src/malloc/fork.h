// Fork at any moment: all locks are taken before, in one order, and made new in the child.
#pragma once

namespace flatout::malloc {

/// Registers the handlers with the C library, at the first call: at the first allocation, or before
/// any other handler is registered. What is to run before a fork runs in the reverse order, so the
/// handlers of all libraries may still allocate.
void watch_forks();

}  // namespace flatout::malloc
