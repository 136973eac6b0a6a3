#include "malloc/fork.h"

#include <pthread.h>

#include <atomic>

#include "malloc/cache.h"
#include "malloc/debug.h"
#include "malloc/idle.h"
#include "malloc/mappings.h"
#include "malloc/page_heap.h"
#include "malloc/profile.h"
#include "malloc/python.h"
#include "malloc/range.h"

namespace flatout::malloc {
namespace {

void before() {
#if FLATOUT_MALLOC_DEBUG
  debug::lock_debug();
#endif
  lock_idle();
  lock_caches();
  lock_range();
  g_page_heap.lock();
  lock_profile();
  lock_python();
  lock_mappings();
}

void in_parent() {
  unlock_mappings();
  unlock_python();
  unlock_profile();
  g_page_heap.unlock();
  unlock_range();
  unlock_caches();
  unlock_idle();
#if FLATOUT_MALLOC_DEBUG
  debug::unlock_debug();
#endif
}

void in_child() {
  reset_mappings_lock();
  reset_python_lock();
  reset_profile();
  g_page_heap.reset_lock();
  reset_range_lock();
  reset_cache_locks();
  reset_idle();
#if FLATOUT_MALLOC_DEBUG
  debug::reset_debug();
#endif
}

}  // namespace

void watch_forks() {
  static std::atomic<bool> watched{false};
  if (!watched.exchange(true, std::memory_order_relaxed)) {
    pthread_atfork(before, in_parent, in_child);
  }
}

}  // namespace flatout::malloc
