// The one reserved range of addresses that all blocks come from, and the tables beside it, each
// committed as far as it is used: page -> span, the spans, and which pages are dirty.
// A pointer is ours exactly when it lies in the range: one subtraction and one comparison.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "malloc/span.h"

namespace flatout::malloc {

/// A huge page that is cut into spans for small blocks.
struct Region {
  uint64_t used[2];  // a bit a page
  Region *next, *prev;
  uint32_t used_pages;
  uint8_t order;  // list that it is in: of its longest free run
  bool live;
};

struct Range {
  std::atomic<uintptr_t> base;  // 0 bytes until reserved, so every pointer is foreign till then
  std::atomic<size_t> bytes;
  uint32_t* map;    // page -> index into spans; 0: none. A large or free span: first and last page
  Span* spans;      // [0] stands for "none"
  uint64_t* dirty;  // one bit a page: may have memory behind it, so is not known to be zero
  uint64_t* huge;   // one bit a huge page: the kernel was asked for one
  Region* regions;  // one a huge page

  uint32_t pages;       // in the range
  uint32_t most_align;  // pages: blocks can be aligned so far
  uint32_t committed;   // pages that are readable and writable: a prefix, whole huge pages
};
extern constinit Range g_range;

/// Reserves the range, if it is not yet. False without address space.
bool range_start();
void lock_range();
void unlock_range();
void reset_range_lock();
/// Commits at least `pages` more. Under the page heap's lock. False if the kernel refuses.
bool range_grow(uint32_t pages);

inline char* page_address(uint32_t page) {
  return reinterpret_cast<char*>(g_range.base.load(std::memory_order_relaxed) +
                                 (uintptr_t{page} << kPageShift));
}
inline uint32_t span_index(const Span* s) { return static_cast<uint32_t>(s - g_range.spans); }

/// True if `p` is in the range; `offset` from its base.
inline bool in_range(const void* p, uintptr_t& offset) {
  offset = reinterpret_cast<uintptr_t>(p) - g_range.base.load(std::memory_order_relaxed);
  return offset < g_range.bytes.load(std::memory_order_relaxed);
}
/// The span at a place in the range; spans[0] where there is none or its inside is large.
inline Span* span_at(uintptr_t offset) { return g_range.spans + g_range.map[offset >> kPageShift]; }

/// A description of a span; nullptr when even that cannot be had. Under the page heap's lock.
Span* new_span();
void delete_span(Span* s);

/// Bits of g_range.dirty for pages [first, first + count).
uint32_t count_dirty(uint32_t first, uint32_t count);
void set_dirty(uint32_t first, uint32_t count);
void clear_dirty(uint32_t first, uint32_t count);
inline bool is_dirty(uint32_t page) { return (g_range.dirty[page / 64] >> (page % 64) & 1) != 0; }

}  // namespace flatout::malloc
