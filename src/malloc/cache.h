// The thread cache: for each size class a list of free blocks and the span they come from.
//
// Blocks that the owner frees go to their span's list, not to the fast list: allocating and freeing
// then wait for different words, blocks of a span stay together, and a span whose last block comes
// back is known at once. The fast list is filled from one span at a time (refill.cpp). Blocks freed
// by other threads are collected per span there and handed to the span in one piece (remote.cpp).
//
// A cache has a lock, which its owner takes only off the fast path. Under it, and only there, spans
// change their place, and others may look at `in_use`: it falls by the owner's frees alone, so a
// value that is seen is never too small. A thread that ends leaves its cache to the next one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "malloc/lock.h"
#include "malloc/range.h"

namespace flatout::malloc {

struct RemoteSlot {  // blocks of one span of another cache
  Span* span;
  Block *head, *tail;
  uint32_t count;
};

struct alignas(128) Cache {
  static constexpr unsigned kSlots = 32;

  Block* list[kClasses];
  Span* current[kClasses];
  // Off the fast path.
  SpanList partial[kClasses];
  std::atomic<Span*> parked;  // a large block just freed; anyone may take it out
  Lock lock;
  bool dead;                 // its thread has ended: whoever holds the lock may act for it
  uint8_t exit_rounds;       // destructors of thread-specific data may still allocate
  int64_t sample_left;       // bytes until the next sample
  uint64_t sample_interval;  // mean bytes between samples of this thread
  uint64_t sampled_ns;       // when the last sample was
  uint64_t random;           // state of the sampler
  Span* queue;               // spans with remote frees
  SpanList empty;            // spans kept though nothing of them is in use
  uint32_t empty_pages;
  Cache* next;  // of all caches, never removed
  Cache* next_dead;
  RemoteSlot slots[kSlots];
};

/// Stands in where a thread has no cache: its lists are empty, so every fast path fails there.
extern constinit Cache g_no_cache;
extern constinit __thread Cache* t_cache __attribute__((tls_model("initial-exec")));

// ---- slow paths ----
void* allocate_slow(size_t bytes);   // at most kMaxSmall
void* allocate_large(size_t bytes);  // more
/// Where the fast list is empty, or there is none. Mostly what the owner has freed in the current
/// span becomes the list, without a call; else as the two above.
void* allocate_refilled(size_t bytes);
void deallocate_slow(void* p);
void span_event(Cache* cache, Span* s);  // countdown has come to 0

// refill.cpp
/// A block of the class; refills the fast list. nullptr without memory. With `sampled` not 0, the
/// block that is wanted is one to sample, every so many bytes in the mean, and nothing was taken.
void* refill(Cache* cache, unsigned size_class, uint64_t* sampled);
/// Gives a block back; the next one of its span is to be a sample.
void sample_after(Cache* cache, Span* s, Block* block);
/// Under cache->lock: the owner (or whoever acts for a dead one) takes in what others have freed.
void drain_queue(Cache* cache);
void release_span(Span* s);
/// Under cache->lock, by any thread: gives back the spans that are kept empty.
void release_empty(Cache* cache);
/// Under cache->lock: the current span of a class, none of whose blocks is in the fast list, takes
/// its place among the others.
void retire_current(Cache* cache, unsigned size_class);

// remote.cpp
void free_remote(Cache* cache, Span* s, void* p);
void flush_slots(Cache* cache);
/// Under cache->lock, by any thread: gives back the spans that others have freed as a whole while
/// their owner did not look.
void reap_queue(Cache* cache);

// caches.cpp
Cache* make_cache();  // of this thread; nullptr without memory
void retire_cache(Cache* cache);
Cache* first_cache();
/// Frees the large blocks that wait in threads' slots. Takes the page heap's lock.
bool release_parked();
/// Gives back what no thread needs of its cache: for idle ones too.
void trim_caches();
void lock_caches();
void unlock_caches();
void reset_cache_locks();  // in the child of a fork

// ---- fast paths ----

/// A block of the fast list; nullptr where there is none.
inline Block* pop(Cache* cache, unsigned size_class) {
  // One call's store is the next one's load: processors hand such a word on without a delay, but
  // only where its address is a plain register. It is a third of malloc.
  Block** list = &cache->list[size_class];
  asm("" : "+r"(list));
  Block* const block = *list;
  if (__builtin_expect(block != nullptr, 1)) *list = block->next;
  return block;
}

/// Without a jump for the smallest sizes: two taken ones cost a sixth of malloc and free together.
inline void* allocate(size_t bytes) {
  if (__builtin_expect(bytes <= kFineLimit, 1)) {
    if (Block* const block = pop(t_cache, fine_class(bytes));
        __builtin_expect(block != nullptr, 1)) {
      return block;
    }
  } else if (bytes <= kMaxSmall) {
    const unsigned size_class = coarse_class(bytes);
    if (Block* const block = pop(t_cache, size_class); __builtin_expect(block != nullptr, 1)) {
      return start_of(block, size_class);
    }
  }
  return allocate_refilled(bytes);
}

/// A block of this cache's span back to it.
inline void give_back(Cache* cache, Span* s, Block* block) {
  // Null lies in no range. NOLINTNEXTLINE(clang-analyzer-core.NullDereference)
  block->next = s->local_free;
  s->local_free = block;
  if (__builtin_expect(count_down(s->countdown), 0)) span_event(cache, s);
}

/// A big block that is freed while the fast list is empty is the next one given: it is still in the
/// processor's caches.
inline void deallocate_big(Cache* cache, Span* s, void* p) {
  Block* const block = link_of(s, p);
  Block** list = &cache->list[s->size_class];
  asm("" : "+r"(list));
  // A thread always has one. NOLINTNEXTLINE(clang-analyzer-core.NullDereference)
  if (*list != nullptr || cache->current[s->size_class] != s) return give_back(cache, s, block);
  cache->sample_left -= s->block_bytes;
  if (__builtin_expect(cache->sample_left < 0, 0)) return sample_after(cache, s, block);
  block->next = nullptr;
  *list = block;
}

/// Always inlined: a jump from free to it is a tenth of malloc and free together.
__attribute__((always_inline)) inline void deallocate(void* p) {
  uintptr_t offset;
  if (__builtin_expect(in_range(p, offset), 1)) {
    Span* const s = span_at(offset);
    Cache* const cache = t_cache;
    const Cache* const owner = s->owner.load(std::memory_order_relaxed);
    if (__builtin_expect(owner == cache, 1)) {
      if (__builtin_expect(s->big, 0)) return deallocate_big(cache, s, p);
      return give_back(cache, s, static_cast<Block*>(p));
    }
    if (owner != nullptr) return free_remote(cache, s, p);
  }
  deallocate_slow(p);
}

}  // namespace flatout::malloc
