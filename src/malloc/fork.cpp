#include "malloc/fork.h"

#include <pthread.h>

#include "malloc/cache.h"
#include "malloc/idle.h"
#include "malloc/page_heap.h"
#include "malloc/profile.h"
#include "malloc/python.h"

namespace flatout::malloc {
namespace {

void before() {
  lock_idle();
  lock_caches();
  g_page_heap.lock();
  lock_profile();
  lock_python();
}

void in_parent() {
  unlock_python();
  unlock_profile();
  g_page_heap.unlock();
  unlock_caches();
  unlock_idle();
}

void in_child() {
  reset_python_lock();
  reset_profile_lock();
  g_page_heap.reset_lock();
  reset_cache_locks();
  reset_idle();
}

}  // namespace

void watch_forks() { pthread_atfork(before, in_parent, in_child); }

}  // namespace flatout::malloc
