// The idle cache: when free memory goes back to the kernel. Decided by DemandWindow, done by a
// thread that starts when there is something to give back, and sleeps when there is not.
#pragma once

#include <cstdint>

namespace flatout::malloc {

/// After freeing pages: starts or wakes the thread where that is worth it. `parked` pages are free,
/// though the page heap does not know it yet. The caller holds no lock: this may allocate.
void idle_kick(uint32_t parked = 0);
/// One look: gives back what is idle. Returns the pages given back. For the thread, and for tests.
uint32_t idle_tick(uint64_t now_ns);
/// Without the thread memory goes back only by purge() and idle_tick().
void set_idle_thread(bool on);
void idle_mark_step(uint64_t now_ns);
uint64_t idle_window_ns();

void lock_idle();
void unlock_idle();
void reset_idle();  // in the child of a fork: there is no thread

}  // namespace flatout::malloc
