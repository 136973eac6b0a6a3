#include "malloc/allocator.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "malloc/demand.h"
#include "malloc/foreign.h"
#include "malloc/idle.h"
#include "malloc/os.h"
#include "malloc/page_heap.h"
#include "malloc/profile.h"

namespace flatout::malloc {
namespace {

constexpr size_t kMoveFrom = size_t{32} << 20;  // realloc moves page tables from here on

constexpr uint32_t kMostMoves = 4096;

std::atomic<uint64_t> g_invalid{0};
std::atomic<uint32_t> g_moves{0};

void* no_memory() {
  errno = ENOMEM;
  return nullptr;
}

char* address_of(const Span* s) { return page_address(s->first_page); }

// What is freed was no block of ours in use. Said once: the program may do it a million times.
void invalid_free(const void* p) {
  if (g_invalid.fetch_add(1, std::memory_order_relaxed) == 0) {
    os_message("freed twice, or not the start of a block (ignored; told once):", p);
  }
}

// Pages for `bytes`; 0 if that is more than can be.
uint32_t pages_for(size_t bytes) {
  if (bytes > (size_t{1} << 46)) return 0;
  return static_cast<uint32_t>(std::max<size_t>(1, (bytes + kPageBytes - 1) >> kPageShift));
}

// The large block that this thread freed last, if it has just so many pages; else it is no longer
// kept. Others may take it out. Inlined: a call is a twentieth of a pair of large blocks.
__attribute__((always_inline)) inline Span* unpark(Cache* cache, uint32_t pages) {
  if (cache->parked.load(std::memory_order_relaxed) == nullptr) return nullptr;
  Span* const s = cache->parked.exchange(nullptr, std::memory_order_acquire);
  if (s == nullptr) return nullptr;
  if (s->pages != pages) {
    g_page_heap.free_large(s);
    return nullptr;
  }
  s->kind = Kind::kLarge;
  return s;
}

// `sampled`: 0, or the block is a sample, every so many bytes in the mean.
void* large(size_t bytes, uint32_t align_pages, bool zero, uint64_t sampled = 0) {
  const uint32_t pages = pages_for(bytes);
  if (pages == 0 || (align_pages > 1 && (!range_start() || align_pages > g_range.most_align))) {
    return no_memory();
  }
  // A small block came to be drawn by the bytes of its class, and stands for others by these.
  const size_t drawn = sampled != 0 ? kClassTable.bytes[class_of(bytes)] : bytes;
  Cache* const cache = make_cache();
  if (cache != nullptr) {
    if (sampled == 0) {
      cache->sample_left -= static_cast<int64_t>(bytes);
      if (cache->sample_left < 0) {
        sampled = cache->sample_interval;
        start_sampling(cache);
      }
    }
    if (align_pages == 1) {
      // A sample has a span of its own; of 0 pages is none, so what is kept is only let go.
      if (Span* const s = unpark(cache, sampled == 0 ? pages : 0)) {
        if (zero) os_clear(address_of(s), bytes);
        return address_of(s);
      }
    }
  }
  Span* s = zero ? g_page_heap.allocate_zeroed(pages, align_pages)
                 : g_page_heap.allocate_large(pages, align_pages);
  if (s == nullptr && purge() != 0) {
    s = zero ? g_page_heap.allocate_zeroed(pages, align_pages)
             : g_page_heap.allocate_large(pages, align_pages);
  }
  if (s == nullptr) return no_memory();
  if (sampled != 0) s->sample = take_sample(bytes, sample_weight(sampled, drawn));
  return address_of(s);
}

void forget_sample(Span* s) {
  if (s->sample == nullptr) return;
  drop_sample(s->sample);
  s->sample = nullptr;
}

// Where another one waits, whose place it takes, or the thread has no cache.
__attribute__((noinline)) void free_large_after(Cache* cache, Span* s) {
  if (cache != &g_no_cache) s = cache->parked.exchange(s, std::memory_order_acq_rel);
  if (s == nullptr) return;
  g_page_heap.free_large(s);
  idle_kick();
}

void free_large(Span* s) {
  forget_sample(s);
  Cache* const cache = t_cache;
  s->kind = Kind::kParked;
  if (cache == &g_no_cache || cache->parked.load(std::memory_order_relaxed) != nullptr) {
    return free_large_after(cache, s);
  }
  const uint32_t pages = s->pages;
  cache->parked.store(s, std::memory_order_release);  // others only ever take it out
  if (pages > DemandWindow::kSlack) idle_kick(pages);
}

bool starts_at(const Span* s, const void* p) { return address_of(s) == p; }

// Whether a small block of a class of so many bytes is kept for as many as are asked for now.
bool still_fits(size_t bytes, size_t block_bytes) {
  return bytes <= block_bytes && (bytes > block_bytes / 2 || block_bytes <= 64);
}

// A sampled block of a small size has pages of its own, but stays and moves as one that is not
// sampled would: who moves is drawn anew, so those that are sampled would become ever fewer.
bool is_sampled_small(const Span* s) {
  return s->sample != nullptr && s->pages <= kMaxSmall >> kPageShift;
}
bool sampled_still_fits(const Span* s, size_t bytes) {
  return is_sampled_small(s) && still_fits(bytes, kClassTable.bytes[class_of(s->sample->bytes)]);
}

// What a block grew by is drawn for the profile as an allocation of its own: else a buffer that
// grows in small steps would be seen by chance at its first, or would have to move at each.
void sample_growth(Span* s, size_t bytes) {
  Cache* const cache = make_cache();
  if (cache == nullptr) return;
  cache->sample_left -= static_cast<int64_t>(bytes);
  if (cache->sample_left >= 0) return;
  const uint64_t interval = cache->sample_interval;
  start_sampling(cache);
  s->sample = take_sample(bytes, sample_weight(interval, bytes), s->sample, true);
}

// In place, where that wastes little and the neighbours allow it.
bool resize_in_place(Span* s, size_t bytes) {
  const uint32_t wanted = pages_for(bytes), pages = s->pages;
  if (bytes <= kMaxSmall || wanted == 0 || is_sampled_small(s)) return false;
  if (wanted == pages) return true;
  if (wanted < pages) {
    if (pages - wanted < std::max(4u, pages / 16)) return true;
    if (!g_page_heap.resize_large(s, wanted)) return false;
    if (s->sample != nullptr)
      shrink_sample(s->sample, static_cast<double>(wanted) / static_cast<double>(pages));
    return true;
  }
  if (!g_page_heap.resize_large(s, wanted)) return false;
  sample_growth(s, size_t{wanted - pages} << kPageShift);
  return true;
}

// By moving the page tables' entries instead of the bytes.
void* reallocate_by_move(Span* s, size_t bytes) {
  void* to = large(bytes, 1, false);
  if (to == nullptr) return nullptr;
  const size_t old = size_t{s->pages} << kPageShift;
  // Each move leaves the kernel with one mapping more, and a process may have only some 65,000.
  const bool move = g_moves.fetch_add(1, std::memory_order_relaxed) < kMostMoves;
  const bool moved = move && os_move(address_of(s), to, old);
  if (!moved) std::memcpy(to, address_of(s), old);
  forget_sample(s);
  s->kind = Kind::kHeld;
  g_page_heap.free_large(s, moved);
  return to;
}

}  // namespace

uint64_t invalid_frees() { return g_invalid.load(std::memory_order_relaxed); }

// First what a loop over one size needs: no lock, and mostly no call.
__attribute__((noinline)) void* allocate_large(size_t bytes) {
  Cache* const cache = t_cache;
  if (static_cast<int64_t>(bytes) <= cache->sample_left) {
    if (Span* const s = unpark(cache, pages_for(bytes))) {
      cache->sample_left -= static_cast<int64_t>(bytes);
      return address_of(s);
    }
  }
  return large(bytes, 1, false);
}

__attribute__((noinline)) void* allocate_slow(size_t bytes) {
  const unsigned size_class = class_of(bytes);
  Cache* cache = t_cache;
  if (cache == &g_no_cache) {
    if (!range_start()) return no_memory();
    cache = make_cache();
    if (cache == nullptr) return large(bytes, 1, false);  // the thread is at its end
    // It may have been another thread's.
    if (Block* const block = pop(cache, size_class)) return start_of(block, size_class);
  }
  for (bool purged = false;; purged = true) {
    uint64_t sampled = 0;
    if (void* const p = refill(cache, size_class, &sampled); __builtin_expect(p != nullptr, 1)) {
      return p;
    }
    if (sampled != 0) return large(bytes, 1, false, sampled);
    if (purged || purge() == 0) return no_memory();
  }
}

__attribute__((noinline)) void deallocate_slow(void* p) {
  uintptr_t offset;
  if (in_range(p, offset)) {
    Span* const s = span_at(offset);
    if (s->kind == Kind::kLarge && starts_at(s, p)) return free_large(s);
    return invalid_free(p);
  }
  if (p != nullptr) free_foreign(p);
}

void* allocate_zeroed(size_t count, size_t bytes) {
  size_t total;
  if (__builtin_mul_overflow(count, bytes, &total)) return no_memory();
  if (total > kMaxSmall) return large(total, 1, true);
  void* p = allocate(total);
  if (p != nullptr) std::memset(p, 0, total);
  return p;
}

void* allocate_aligned(size_t alignment, size_t bytes) {
  if (bytes <= kMaxSmall && alignment <= kPageBytes) {
    // Spans begin at a multiple of 64 KiB, so blocks are aligned as their size is; a sampled
    // block begins at a page.
    size_t wanted = std::max(bytes, alignment == 16 ? size_t{16} : size_t{1});
    for (unsigned c = class_of(wanted); c < kClasses; ++c) {
      if (kClassTable.bytes[c] % alignment == 0) return allocate(kClassTable.bytes[c]);
    }
  }
  return large(std::max<size_t>(bytes, 1),
               static_cast<uint32_t>(
                   std::max<size_t>(1, std::min(alignment, size_t{1} << 45) >> kPageShift)),
               false);
}

void* reallocate(void* p, size_t bytes) {
  if (p == nullptr) return allocate(bytes);
  uintptr_t offset;
  if (!in_range(p, offset)) return reallocate_foreign(p, bytes, allocate);
  if (bytes == 0) {
    deallocate(p);
    return nullptr;
  }
  Span* const s = span_at(offset);
  size_t old = 0;
  if (s->kind == Kind::kSmall) {
    old = s->block_bytes;
    if (still_fits(bytes, old)) return p;
  } else if (s->kind == Kind::kLarge && starts_at(s, p)) {
    old = size_t{s->pages} << kPageShift;
    if (sampled_still_fits(s, bytes) || resize_in_place(s, bytes)) return p;
    if (old >= kMoveFrom && bytes > old) return reallocate_by_move(s, bytes);
  } else {
    invalid_free(p);
    errno = EINVAL;
    return nullptr;
  }
  void* to = allocate(bytes);
  if (to == nullptr) return nullptr;
  std::memcpy(to, p, std::min(old, bytes));
  deallocate(p);
  return to;
}

size_t usable_size(const void* p) {
  if (p == nullptr) return 0;
  uintptr_t offset;
  if (!in_range(p, offset)) return usable_size_foreign(p);
  const Span* const s = span_at(offset);
  if (s->kind == Kind::kSmall) return s->block_bytes;
  return s->kind == Kind::kLarge && starts_at(s, p) ? size_t{s->pages} << kPageShift : 0;
}

Totals totals() {
  const PageCounts counts = g_page_heap.counts();
  Totals out{};
  out.in_use_bytes = size_t{counts.used} << kPageShift;
  out.cached_bytes = size_t{counts.dirty_free} << kPageShift;
  out.released_bytes = counts.released << kPageShift;
  out.reserved_bytes = g_range.bytes.load(std::memory_order_relaxed);
  for (Cache* cache = first_cache(); cache != nullptr; cache = cache->next) ++out.caches;
  return out;
}

size_t purge() {
  release_parked();
  trim_caches();
  return size_t{g_page_heap.release(UINT32_MAX, true)} << kPageShift;
}

}  // namespace flatout::malloc
