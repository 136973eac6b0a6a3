// Where the fast list of a size class gets its blocks: from what the owner freed in the current
// span, from the current span's untouched rest, from other spans with free blocks, from a new span.
#include <algorithm>
#include <utility>

#include "malloc/cache.h"
#include "malloc/idle.h"
#include "malloc/page_heap.h"
#include "malloc/profile.h"

namespace flatout::malloc {
namespace {

constexpr uint32_t kMostEmpty =
    (1u << 20) >> kPageShift;          // pages in empty spans that a cache keeps
constexpr uint32_t kMany = 64;         // blocks: a fast list of so many, or of so many bytes
constexpr int64_t kManyBytes = 8192;   // (part of a first cache), is long enough
constexpr uint32_t kFew = 16;          // blocks that are made for one that is too short
constexpr uint8_t kPatience = 8;       // short refills until more blocks are made
constexpr uint32_t kCarve = 4096;      // bytes: a class that is hardly used costs one OS page
constexpr uint32_t kMostCarve = 8192;  // and the blocks are in the first cache when they are used

char* block_at(const Span* s, uint32_t index) {
  return page_address(s->first_page) + size_t{index} * s->block_bytes;
}

void sample_next(Cache* cache, Span* s) {
  s->sample_due = cache->sample_interval;
  start_sampling(cache);
}

// How many of `blocks` may be handed out before one has to be sampled; 0: the next one has to be.
// A sample that falls among them waits for its turn in this span (sample_due): it must not go to
// whichever class is refilled first, or classes would be sampled alike, whatever they take.
uint32_t until_sample(Cache* cache, Span* s, uint32_t blocks) {
  const int64_t bytes = s->block_bytes;
  if (__builtin_expect(s->sample_due == 0 && int64_t{blocks} * bytes <= cache->sample_left, 1)) {
    cache->sample_left -= int64_t{blocks} * bytes;
    return blocks;
  }
  if (s->sample_due != 0) return 0;
  const auto n = static_cast<uint32_t>(std::max<int64_t>(cache->sample_left, 0) / bytes);
  sample_next(cache, s);
  return n;
}

// Makes `n` new blocks from the span's untouched rest, in the order of their addresses.
Block* make_blocks(Span* s, uint32_t n, Block* then) {
  char* at = block_at(s, s->carved);
  Block* const first = link_of(s, at);
  Block* last = first;
  for (uint32_t i = 1; i < n; ++i) {
    at += s->block_bytes;
    Block* const block = link_of(s, at);
    last->next = block;
    last = block;
  }
  last->next = then;
  s->carved += n;
  return first;
}

// Blocks that the owner has freed in its current span.
uint32_t freed_blocks(const Span* s) { return s->carved - s->in_use(); }

// Refilled too often. A long list costs memory, too: its blocks are used in turns, all of them.
bool is_short(uint32_t blocks, int64_t bytes) { return blocks < kMany && bytes < kManyBytes; }

// The current span's freed blocks become the fast list. Only the owner does this and only for its
// current span, which nobody else touches, so there is no lock.
Block* take_freed(Cache* cache, Span* s, uint64_t* sampled) {
  Block* const first = s->local_free;
  const uint32_t blocks = freed_blocks(s);
  const uint32_t n = until_sample(cache, s, blocks);
  if (n == 0) {
    *sampled = std::exchange(s->sample_due, 0);
    return nullptr;
  }
  Block* rest = nullptr;
  if (n < blocks) {  // the sample comes within these: stop before it
    Block* last = first;
    for (uint32_t i = 1; i < n; ++i) last = last->next;
    rest = last->next;
    last->next = nullptr;
  }
  s->set_in_use(s->carved - (blocks - n), Span::kNever);
  std::atomic_signal_fence(std::memory_order_release);  // in this order: see allocate_refilled()
  // A busy class with few free blocks comes here all the time: a few more, for the next time.
  if (n == blocks && is_short(n, int64_t{n} * s->block_bytes) && s->carved < s->capacity &&
      ++s->short_refills >= kPatience) {
    s->short_refills = 0;
    const auto enough = static_cast<uint32_t>(kManyBytes / s->block_bytes);
    rest = make_blocks(s, std::min({kFew, enough, s->capacity - s->carved}), nullptr);
  }
  s->local_free = rest;
  return first;
}

// Makes new blocks from the current span's untouched rest. As take_freed, without a lock.
Block* carve(Cache* cache, Span* s, uint64_t* sampled) {
  // Where there is memory behind them, as many again as there are.
  const uint32_t least =
      s->warm ? std::clamp(s->carved, 1u, kFew) : std::clamp(s->carved / 2, 1u, 4u);
  const uint32_t bytes = std::clamp(s->carved * s->block_bytes, kCarve, kMostCarve);
  uint32_t n = std::min(std::max(bytes / s->block_bytes, least), s->capacity - s->carved);
  n = until_sample(cache, s, n);
  if (n == 0) {
    *sampled = std::exchange(s->sample_due, 0);
    return nullptr;
  }
  Block* const first = make_blocks(s, n, nullptr);
  s->set_in_use(s->in_use() + n, Span::kNever);
  return first;
}

// A span without a free block rests until enough of it is free again to be worth a visit.
void set_full(Span* s) {
  const uint32_t used = s->in_use();
  const uint32_t wake =
      std::clamp<uint32_t>(4096 / s->block_bytes, 1, std::max(1u, s->capacity / 8));
  s->place = Place::kFull;
  s->set_in_use(used, used - std::min(wake, used));
}

// Whether the free blocks follow each other in memory, upwards or downwards, as far as the first
// few tell. Coloured ones never do, by their links.
bool is_in_order(const Span* s) {
  const intptr_t step = s->block_bytes;
  const Block* at = s->local_free;
  for (unsigned i = 0; i < 8 && at != nullptr && at->next != nullptr; ++i, at = at->next) {
    const intptr_t by = reinterpret_cast<intptr_t>(at->next) - reinterpret_cast<intptr_t>(at);
    if (by != step && by != -step) return false;
  }
  return true;
}

// Under cache->lock: s is in no list and nothing of it is in use. A few such spans are kept for the
// next burst of the same sizes. Blocks that were freed in no order are made anew, in the order of
// their addresses: taking them in the order of the frees costs more in cache misses than that.
void keep_or_release(Cache* cache, Span* s) {
  if (cache->empty_pages + s->pages > kMostEmpty) {
    release_span(s);
    return;
  }
  s->place = Place::kEmpty;
  if (!is_in_order(s)) {
    s->warm = s->warm || s->carved == s->capacity;
    s->local_free = nullptr;
    s->carved = 0;
  }
  s->set_in_use(0, 0);
  cache->empty.push(s);
  cache->empty_pages += s->pages;
}

Span* take_empty(Cache* cache, unsigned c) {
  for (Span* s = cache->empty.first; s != nullptr; s = s->next) {
    if (s->size_class != c) continue;
    cache->empty.remove(s);
    cache->empty_pages -= s->pages;
    return s;
  }
  return nullptr;
}

void rest_partial(Cache* cache, Span* s, uint32_t used) {
  s->place = Place::kPartial;
  s->set_in_use(used, 0);
  cache->partial[s->size_class].push(s);
}

// Under cache->lock.
void settle(Cache* cache, Span* s) {
  if (s->place == Place::kCurrent) return;
  const uint32_t used = s->in_use();
  if (used == 0) {
    if (s->place == Place::kPartial) cache->partial[s->size_class].remove(s);
    keep_or_release(cache, s);
  } else if (s->place == Place::kFull) {
    rest_partial(cache, s, used);
  }
}

}  // namespace

__attribute__((noinline)) void sample_after(Cache* cache, Span* s, Block* block) {
  give_back(cache, s, block);
  sample_next(cache, s);
}

void release_span(Span* s) {
  s->owner.store(nullptr, std::memory_order_relaxed);
  g_page_heap.free_small(s);
}

void release_empty(Cache* cache) {
  while (Span* s = cache->empty.first) {
    cache->empty.remove(s);
    cache->empty_pages -= s->pages;
    release_span(s);
  }
}

// A current span with blocks to give, after the one before had none left.
static Span* next_span(Cache* cache, unsigned c) {
  const LockHolder hold(cache->lock);
  drain_queue(cache);
  Span* s = cache->current[c];
  if (s != nullptr && s->local_free != nullptr) return s;
  if (s != nullptr) set_full(s);
  s = cache->partial[c].first;
  if (s != nullptr) {
    cache->partial[c].remove(s);
  } else {
    s = take_empty(cache, c);
  }
  if (s != nullptr) {
    s->place = Place::kCurrent;
    s->set_in_use(s->in_use(), Span::kNever);
  } else {
    s = g_page_heap.allocate_small(c);
    if (s != nullptr) s->owner.store(cache, std::memory_order_relaxed);
  }
  cache->current[c] = s;
  return s;
}

__attribute__((noinline)) void* allocate_refilled(size_t bytes) {
  if (bytes > kMaxSmall) return allocate_large(bytes);
  Cache* const cache = t_cache;
  const unsigned c = class_of(bytes);
  Span* const s = cache->current[c];
  if (s != nullptr && s->local_free != nullptr && s->sample_due == 0) {
    const uint32_t blocks = freed_blocks(s);
    const int64_t total = int64_t{blocks} * s->block_bytes;
    if (!is_short(blocks, total) && total <= cache->sample_left) {
      cache->sample_left -= total;
      Block* const first = s->local_free;
      s->set_in_use(s->carved, Span::kNever);
      // In this order: a fork by another thread may leave its child with things as they are here.
      std::atomic_signal_fence(std::memory_order_release);
      s->local_free = nullptr;
      std::atomic_signal_fence(std::memory_order_release);
      cache->list[c] = first->next;
      return start_of(first, c);
    }
  }
  return allocate_slow(bytes);
}

void* refill(Cache* cache, unsigned c, uint64_t* sampled) {
  Span* s = cache->current[c];
  // Counted as given, but a fork came before they were: in the child they are lost.
  if (s != nullptr && s->local_free != nullptr && freed_blocks(s) == 0) s->local_free = nullptr;
  if (s == nullptr || (s->local_free == nullptr && s->carved == s->capacity)) {
    s = next_span(cache, c);
    if (s == nullptr) return nullptr;
  }
  Block* const block =
      s->local_free != nullptr ? take_freed(cache, s, sampled) : carve(cache, s, sampled);
  if (block == nullptr) return nullptr;
  cache->list[c] = block->next;
  return start_of(block, c);
}

void retire_current(Cache* cache, unsigned c) {
  Span* s = cache->current[c];
  if (s == nullptr) return;
  cache->current[c] = nullptr;
  const uint32_t used = s->in_use();
  if (used == 0) {
    keep_or_release(cache, s);
  } else if (s->local_free == nullptr && s->carved == s->capacity) {
    set_full(s);
  } else {
    rest_partial(cache, s, used);
  }
}

void drain_queue(Cache* cache) {
  while (cache->queue != nullptr) {
    Span* const s = cache->queue;
    cache->queue = s->queue_next;
    if (cache->queue != nullptr) cache->queue->queue_prev = nullptr;
    s->queued = false;
    const RemoteList list{s->remote.exchange(0, std::memory_order_acquire)};
    if (list.word == 0) continue;
    char* const base = page_address(s->first_page);
    reinterpret_cast<Block*>(base + list.tail() * 8)->next = s->local_free;
    s->local_free = reinterpret_cast<Block*>(base + list.head() * 8);
    const uint32_t used = s->in_use() - list.count();
    uint32_t at = s->trigger_at.load(std::memory_order_relaxed);
    if (at != Span::kNever && used < at) at = 0;
    s->set_in_use(used, at);
    if (used == at || at == 0) settle(cache, s);
  }
}

__attribute__((noinline)) void span_event(Cache* cache, Span* s) {
  {
    const LockHolder hold(cache->lock);
    // Between the last free and the lock another thread may have given the span back.
    if (s->owner.load(std::memory_order_relaxed) == cache) settle(cache, s);
  }
  idle_kick();
}

}  // namespace flatout::malloc
