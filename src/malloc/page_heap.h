// The page heap: free extents of the range, best fit, neighbours coalesced; and the regions, huge
// pages cut into the spans of small blocks. It knows which pages have memory behind them ("dirty"),
// reuses those first, and gives the memory of free ones back when the idle cache says so.
#pragma once

#include <cstddef>
#include <cstdint>

#include "malloc/extent_bins.h"
#include "malloc/lock.h"
#include "malloc/range.h"

namespace flatout::malloc {

struct PageCounts {
  uint32_t used = 0;        // pages handed out
  uint32_t dirty_free = 0;  // free pages with memory behind them
  uint32_t peak = 0;        // most used since the last take_peak()
  uint64_t released = 0;    // pages given back, ever
  uint64_t refaulted = 0;   // of those, pages that were wanted again, ever
  uint64_t missed_ns = 0;   // when that first happened since the last take_peak(); 0: it did not
};

class PageHeap {
 public:
  /// A large block of `pages` at a multiple of `align` pages (a power of two). nullptr without
  /// memory. Takes the lock, as all here.
  Span* allocate_large(uint32_t pages, uint32_t align = 1);
  /// `empty`: its memory is gone already.
  void free_large(Span* s, bool empty = false);
  /// Grows s in place to `pages`, or shrinks it. False if its neighbour is in the way.
  bool resize_large(Span* s, uint32_t pages);

  /// A span for the blocks of a size class; all fields set but the owner's. nullptr without memory.
  Span* allocate_small(unsigned size_class);
  void free_small(Span* s);

  PageCounts counts();
  /// Free pages with memory behind them, without the lock: a little old, perhaps.
  uint32_t dirty_hint() const { return dirty_hint_.load(std::memory_order_relaxed); }
  /// counts(), and starts its peak and missed_ns anew.
  PageCounts take_counts();
  /// Gives back up to `pages` dirty free pages: first whole huge pages, then, with `fragments`, the
  /// rest as well. Returns how many it gave back.
  uint32_t release(uint32_t pages, bool fragments);

  /// For a fork.
  void lock() {
    release_lock_.lock();
    lock_.lock();
  }
  void unlock() {
    lock_.unlock();
    release_lock_.unlock();
  }
  void reset_lock() {
    lock_.reset();
    release_lock_.reset();
  }

  /// As allocate_large, and clears the memory: without touching what is zero already.
  Span* allocate_zeroed(uint32_t pages, uint32_t align = 1);

  /// Checks every invariant; nullptr, or what is broken. For tests.
  const char* check();

 private:
  static constexpr unsigned kOrders = 7;

  Span* find_around_dirty(uint32_t pages);
  Span* find(uint32_t pages, uint32_t align);
  Span* find_or_merge(uint32_t pages, uint32_t align);
  Span* find_or_grow(uint32_t pages, uint32_t align);
  Span* merge_run(Span* s);
  Span* cut(Span* s, uint32_t first, uint32_t pages);
  Span* find_for_large(uint32_t pages, uint32_t align);
  void make_large(Span* s);
  Span* insert(Span* s);
  void take(Span* s);
  void absorb(Span* s, Span* next);
  Span* free_before(const Span* s) const;
  Span* free_after(const Span* s) const;
  uint64_t run_of(const Span* s) const;
  uint32_t mark_used(uint32_t first, uint32_t pages);
  void mark_free(uint32_t pages);
  Span* hold_for_release(uint32_t pages, bool fragments);
  uint32_t release_regions(uint32_t pages);

  // regions.cpp
  Region* region_with_room(unsigned order);
  Region* new_region();
  void relist(Region* region);

  Lock release_lock_;  // an extent is held; before lock_
  Lock lock_;
  // Pages: no run of dirty beside clean extents has more. It spares a look at all of them where
  // none could be joined to what is wanted.
  uint64_t longest_run_ = 0;
  Region* regions_[kOrders] = {};  // by the longest free run: none, 4, 8 ... 128 pages
  ExtentBins dirty_, clean_;
  PageCounts counts_;
  std::atomic<uint32_t> dirty_hint_{0};
};

extern constinit PageHeap g_page_heap;

}  // namespace flatout::malloc
