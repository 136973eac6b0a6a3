// The life of thread caches: made when a thread first allocates, left to the next thread when it
// ends. There are never more than there were threads at one time.
#include <pthread.h>

#include <algorithm>

#include "malloc/cache.h"
#include "malloc/demand.h"
#include "malloc/fork.h"
#include "malloc/idle.h"
#include "malloc/os.h"
#include "malloc/page_heap.h"
#include "malloc/profile.h"

namespace flatout::malloc {

constinit Cache g_no_cache{};
__thread Cache* t_cache __attribute__((tls_model("initial-exec"))) = &g_no_cache;

namespace {

// glibc calls destructors of thread-specific data at most four times; ours waits for the others.
constexpr uint8_t kLastRound = 3;
constexpr size_t kChunk = 64 << 10;  // caches are made from mappings of this size

constinit Lock g_caches_lock;  // before any cache's lock
std::atomic<Cache*> g_caches{nullptr};
Cache* g_dead = nullptr;
char* g_chunk = nullptr;
size_t g_chunk_left = 0;
pthread_key_t g_key;
bool g_has_key = false;
__thread bool t_ended __attribute__((tls_model("initial-exec"))) = false;

void on_thread_exit(void* value) {
  Cache* cache = static_cast<Cache*>(value);
  if (++cache->exit_rounds < kLastRound && pthread_setspecific(g_key, cache) == 0) return;
  t_ended = true;
  t_cache = &g_no_cache;
  retire_cache(cache);
}

Cache* new_cache() {  // under g_caches_lock
  if (g_chunk_left < sizeof(Cache)) {
    g_chunk = static_cast<char*>(os_map(kChunk));
    if (g_chunk == nullptr) {
      g_chunk_left = 0;
      return nullptr;
    }
    g_chunk_left = kChunk;
  }
  Cache* cache = reinterpret_cast<Cache*>(g_chunk);  // zero, which is an empty cache
  g_chunk += sizeof(Cache);
  g_chunk_left -= sizeof(Cache);
  cache->next = g_caches.load(std::memory_order_relaxed);
  g_caches.store(cache, std::memory_order_release);
  return cache;
}

// Puts what is in the fast list back into the span that it came from.
void return_list(Cache* cache, unsigned c) {
  Span* s = cache->current[c];
  Block* first = cache->list[c];
  cache->list[c] = nullptr;
  if (s == nullptr || first == nullptr) return;
  uint32_t n = 1;
  Block* last = first;
  for (; last->next != nullptr; last = last->next) ++n;
  last->next = s->local_free;
  s->local_free = first;
  s->countdown.store(s->countdown.load(std::memory_order_relaxed) - n, std::memory_order_release);
}

// Those of a cache whose thread has ended, before another has come.
void retire_spans(Cache* cache) {
  for (unsigned c = 0; c < kClasses; ++c) {
    return_list(cache, c);
    retire_current(cache, c);
  }
}

}  // namespace

Cache* first_cache() { return g_caches.load(std::memory_order_acquire); }

Cache* make_cache() {
  if (t_cache != &g_no_cache) return t_cache;
  if (t_ended) return nullptr;
  Cache* cache = nullptr;
  {
    const LockHolder hold(g_caches_lock);
    if (!g_has_key) g_has_key = pthread_key_create(&g_key, on_thread_exit) == 0;
    cache = g_dead;
    if (cache != nullptr) {
      g_dead = cache->next_dead;
      const LockHolder hold_cache(cache->lock);
      cache->dead = false;
    } else {
      cache = new_cache();
    }
  }
  if (cache == nullptr) return nullptr;
  cache->exit_rounds = 0;
  start_sampling(cache);
  t_cache = cache;
  // After t_cache: these may allocate.
  if (g_has_key) pthread_setspecific(g_key, cache);
  watch_forks();
  return cache;
}

void retire_cache(Cache* cache) {
  flush_slots(cache);
  if (Span* s = cache->parked.exchange(nullptr, std::memory_order_acquire))
    g_page_heap.free_large(s);
  {
    const LockHolder hold(g_caches_lock);
    const LockHolder hold_cache(cache->lock);
    drain_queue(cache);
    cache->dead = true;
    cache->next_dead = g_dead;
    g_dead = cache;
  }
  // Its spans stay as they are for the next thread; if none comes, they are given back.
  idle_kick(DemandWindow::kSlack + 1);
}

bool release_parked() {
  bool any = false;
  for (Cache* cache = first_cache(); cache != nullptr; cache = cache->next) {
    if (cache->parked.load(std::memory_order_relaxed) == nullptr) continue;
    Span* s = cache->parked.exchange(nullptr, std::memory_order_acquire);
    if (s == nullptr) continue;
    g_page_heap.free_large(s);
    any = true;
  }
  return any;
}

void trim_caches() {
  for (Cache* cache = first_cache(); cache != nullptr; cache = cache->next) {
    const LockHolder hold(cache->lock);
    if (cache->dead) retire_spans(cache);
    reap_queue(cache);
    release_empty(cache);
  }
}

void lock_caches() {
  g_caches_lock.lock();
  for (Cache* cache = first_cache(); cache != nullptr; cache = cache->next) cache->lock.lock();
}

void unlock_caches() {
  for (Cache* cache = first_cache(); cache != nullptr; cache = cache->next) cache->lock.unlock();
  g_caches_lock.unlock();
}

void reset_cache_locks() {
  for (Cache* cache = first_cache(); cache != nullptr; cache = cache->next) {
    cache->lock.reset();
    // The other threads are not in the child. What they had is left to new threads as it stands:
    // a thread stopped within an allocation or a free leaves at worst lost one block, or what it
    // was handing over to another's span (256 blocks at most), and that span until all of it is
    // free.
    if (cache == t_cache || cache->dead) continue;
    cache->dead = true;
    cache->next_dead = g_dead;
    g_dead = cache;
  }
  g_caches_lock.reset();
}

}  // namespace flatout::malloc
