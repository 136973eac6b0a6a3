// Blocks that a thread frees and another one owns. They are collected by span, 16 KiB or 256 of
// them at a time, and added to the span's remote list by one compare-and-swap. The first that come
// to a span put it into its owner's queue; the last that come, when nothing of it is in use any
// more, give the whole span back, even while the owner sleeps.
//
// A fork by another thread may leave its child with a slot as it is anywhere in here, to be used by
// the cache's next thread: it is written in such an order that blocks may be lost there, but are
// never handed over twice, nor counted without being in the list.
#include "malloc/cache.h"
#include "malloc/idle.h"
#include "malloc/page_heap.h"

namespace flatout::malloc {
namespace {

uint64_t place_of(const Span* s, const Block* block) {
  return static_cast<uint64_t>(reinterpret_cast<const char*>(block) - page_address(s->first_page)) /
         8;
}

void leave_queue(Cache* owner, Span* s) {
  (s->queue_prev != nullptr ? s->queue_prev->queue_next : owner->queue) = s->queue_next;
  if (s->queue_next != nullptr) s->queue_next->queue_prev = s->queue_prev;
  s->queued = false;
}

// All that is in use is in the remote list: then no thread can free more of it, and the owner takes
// blocks from a span that is not its current one only under the lock.
bool all_free(const Span* s) {
  const RemoteList list{s->remote.load(std::memory_order_acquire)};
  return s->place != Place::kCurrent && list.word != 0 && list.count() == s->in_use();
}

void return_span(Cache* owner, Span* s) {
  leave_queue(owner, s);
  if (s->place == Place::kPartial) owner->partial[s->size_class].remove(s);
  s->remote.store(0, std::memory_order_relaxed);
  release_span(s);
}

// s may be another span by now, even another owner's: everything is looked at anew under the lock,
// and what is found there is true of whatever span it is.
void tell_owner(Cache* owner, Span* s) {
  const LockHolder hold(owner->lock);
  if (s->owner.load(std::memory_order_relaxed) != owner) return;
  if (s->remote.load(std::memory_order_acquire) == 0) return;
  if (!s->queued) {
    s->queued = true;
    s->queue_prev = nullptr;
    s->queue_next = owner->queue;
    if (owner->queue != nullptr) owner->queue->queue_prev = s;
    owner->queue = s;
  }
  if (owner->dead) {
    drain_queue(owner);
    return;
  }
  if (all_free(s)) return_span(owner, s);
}

__attribute__((noinline)) void add_remote(Span* s, Block* head, Block* tail, uint32_t count) {
  Cache* const owner = s->owner.load(std::memory_order_relaxed);
  uint64_t old = s->remote.load(std::memory_order_relaxed);
  RemoteList list;
  do {
    const RemoteList before{old};
    tail->next = old == 0
                     ? nullptr
                     : reinterpret_cast<Block*>(page_address(s->first_page) + before.head() * 8);
    list = RemoteList::make(place_of(s, head), old == 0 ? place_of(s, tail) : before.tail(),
                            before.count() + count);
  } while (!s->remote.compare_exchange_weak(old, list.word, std::memory_order_acq_rel,
                                            std::memory_order_relaxed));
  // The one who made it non-empty tells the owner, and afterwards looks again: whoever added the
  // last block meanwhile may have looked before the span was in the queue.
  if (old == 0 || list.count() >= s->in_use()) {
    tell_owner(owner, s);
    idle_kick();
  }
}

// The slot is empty before the blocks are handed over: that may wait for a lock that fork holds.
__attribute__((noinline)) void flush(RemoteSlot& slot) {
  const RemoteSlot full = slot;
  slot.span = nullptr;
  std::atomic_signal_fence(std::memory_order_release);
  add_remote(full.span, full.head, full.tail, full.count);
}

// Of a thread that has no cache yet, or none any more.
void free_without_cache(Span* s, Block* block) {
  if (make_cache() == nullptr) return add_remote(s, block, block, 1);
  deallocate(start_of(block, s->size_class));  // the cache may be just the span's owner
}

__attribute__((noinline)) void open_slot(Cache* cache, RemoteSlot& slot, Span* s, Block* block) {
  if (cache == &g_no_cache) return free_without_cache(s, block);
  if (slot.span != nullptr) flush(slot);
  block->next = nullptr;
  slot.head = slot.tail = block;
  slot.count = 1;
  std::atomic_signal_fence(std::memory_order_release);
  slot.span = s;
  if (s->remote_limit == 1) flush(slot);
}

}  // namespace

// The usual case calls nothing, and so keeps no register.
void free_remote(Cache* cache, Span* s, void* p) {
  Block* const block = link_of(s, p);
  RemoteSlot& slot = cache->slots[reinterpret_cast<uintptr_t>(s) / sizeof(Span) % Cache::kSlots];
  if (__builtin_expect(slot.span != s, 0)) return open_slot(cache, slot, s, block);
  block->next = slot.head;
  std::atomic_signal_fence(std::memory_order_release);
  slot.head = block;
  std::atomic_signal_fence(std::memory_order_release);
  if (__builtin_expect(++slot.count >= s->remote_limit, 0)) flush(slot);
}

void reap_queue(Cache* cache) {
  for (Span *s = cache->queue, *next; s != nullptr; s = next) {
    next = s->queue_next;
    if (all_free(s)) return_span(cache, s);
  }
}

void flush_slots(Cache* cache) {
  for (RemoteSlot& slot : cache->slots) {
    if (slot.span != nullptr) flush(slot);
  }
}

}  // namespace flatout::malloc
