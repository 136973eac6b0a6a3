// Regions: huge pages of the range, cut into the spans of small blocks. A span goes into the
// fullest of the regions with the shortest free run that holds it, so that others become wholly
// free and go back to the extents.
#include <algorithm>
#include <bit>
#include <cstring>

#include "malloc/os.h"
#include "malloc/page_heap.h"

namespace flatout::malloc {
namespace {

constexpr unsigned kMostLooks = 8;
// What another thread collects of a span before it hands it over, which costs some cache misses.
constexpr uint32_t kHandedBytes = 16384, kMostHanded = 256;
// Where addresses are few (RLIMIT_AS), a span takes no more of those that are left, unless it would
// hold fewer blocks: threads with blocks of many classes would take them all and use next to none.
constexpr uint64_t kShareOfLeft = 1024, kFewestBlocks = 4;

uint32_t span_pages(uint32_t block_bytes, uint64_t pages_left) {
  const uint64_t fewest = (kFewestBlocks * block_bytes + kPageBytes - 1) >> kPageShift;
  const uint64_t most = std::bit_ceil(std::max({fewest, pages_left / kShareOfLeft, uint64_t{4}}));
  return static_cast<uint32_t>(std::min<uint64_t>(span_pages_of(block_bytes), most));
}

uint32_t first_page_of(const Region* r) {
  return static_cast<uint32_t>(r - g_range.regions) * kHugePages;
}

// Bit i of the result: 4 << order - 1 pages from page i, a multiple of their number, are free.
// order 1: 4 pages, 2: 8, 3: 16, 4: 32, 5: 64.
uint64_t free_runs(uint64_t used, unsigned order) {
  uint64_t m = ~used;
  m = m & m >> 1 & m >> 2 & m >> 3 & 0x1111111111111111u;
  if (order >= 2) m = m & m >> 4 & 0x0101010101010101u;
  if (order >= 3) m = m & m >> 8 & 0x0001000100010001u;
  if (order >= 4) m = m & m >> 16 & 0x0000000100000001u;
  if (order >= 5) m = m & m >> 32 & 1u;
  return m;
}

unsigned order_of(uint32_t pages) {  // 4 -> 1, 8 -> 2, ...
  return static_cast<unsigned>(__builtin_ctz(pages)) - 1;
}

unsigned longest_run(const Region* r) {
  if (r->used_pages == 0) return 6;
  if (r->used_pages == kHugePages) return 0;
  for (unsigned order = 5; order > 0; --order) {
    if ((free_runs(r->used[0], order) | free_runs(r->used[1], order)) != 0) return order;
  }
  return 0;
}

uint64_t mask_of(uint32_t pages, uint32_t shift) {
  return (pages == 64 ? ~uint64_t{0} : (uint64_t{1} << pages) - 1) << shift;
}

// What the pages of a span are looked up by, 0 where it ends; four at once, of which spans have a
// multiple.
void map_pages(const Span* s, uint32_t index) {
  const uint32_t four[4] = {index, index, index, index};
  for (uint32_t i = 0; i < s->pages; i += 4) {
    std::memcpy(g_range.map + s->first_page + i, four, sizeof four);
  }
}

}  // namespace

void PageHeap::relist(Region* r) {
  const unsigned order = longest_run(r);
  if (r->live) {
    if (order == r->order) return;
    (r->prev != nullptr ? r->prev->next : regions_[r->order]) = r->next;
    if (r->next != nullptr) r->next->prev = r->prev;
  }
  r->live = true;
  r->order = static_cast<uint8_t>(order);
  r->prev = nullptr;
  r->next = regions_[order];
  if (r->next != nullptr) r->next->prev = r;
  regions_[order] = r;
}

Region* PageHeap::region_with_room(unsigned order) {
  for (unsigned o = order; o < kOrders; ++o) {
    Region* best = nullptr;
    unsigned looked = 0;
    for (Region* r = regions_[o]; r != nullptr && looked < kMostLooks; r = r->next, ++looked) {
      if (best == nullptr || r->used_pages > best->used_pages) best = r;
    }
    if (best != nullptr) return best;
  }
  return nullptr;
}

Region* PageHeap::new_region() {
  Span* s = find_or_grow(kHugePages, kHugePages);
  if (s == nullptr) return nullptr;
  Region* r = g_range.regions + s->first_page / kHugePages;
  // The neighbours of a region see no span at its ends, so nothing is joined to it.
  g_range.map[s->first_page] = g_range.map[s->end_page() - 1] = 0;
  delete_span(s);
  *r = Region{};
  relist(r);
  return r;
}

Span* PageHeap::allocate_small(unsigned size_class) {
  if (!range_start()) return nullptr;
  const uint32_t bytes = kClassTable.bytes[size_class];
  const LockHolder hold(lock_);
  const uint32_t pages = span_pages(bytes, g_range.pages - counts_.used);
  const unsigned order = order_of(pages);
  Span* s = new_span();
  if (s == nullptr) return nullptr;
  Region* r = region_with_room(order);
  if (r == nullptr) r = new_region();
  if (r == nullptr) {
    delete_span(s);
    return nullptr;
  }
  unsigned word = 0;
  if (free_runs(r->used[0], order) == 0) word = 1;
  const uint32_t shift = static_cast<uint32_t>(__builtin_ctzll(free_runs(r->used[word], order)));
  r->used[word] |= mask_of(pages, shift);
  r->used_pages += pages;
  relist(r);

  s->first_page = first_page_of(r) + word * 64 + shift;
  s->pages = pages;
  s->kind = Kind::kSmall;
  s->place = Place::kCurrent;
  s->queued = false;
  s->size_class = static_cast<uint8_t>(size_class);
  s->block_bytes = bytes;
  s->big = bytes >= kBig;
  s->coloured = is_coloured(bytes);
  s->capacity = static_cast<uint32_t>((size_t{pages} << kPageShift) / bytes);
  s->carved = 0;
  s->short_refills = 0;
  s->sample_due = 0;
  s->set_in_use(0, Span::kNever);
  s->local_free = nullptr;
  s->remote.store(0, std::memory_order_relaxed);
  s->remote_limit = static_cast<uint16_t>(std::clamp(kHandedBytes / bytes, 1u, kMostHanded));
  s->next = s->prev = s->queue_next = s->queue_prev = nullptr;
  s->sample = nullptr;
  map_pages(s, span_index(s));
  s->warm = mark_used(s->first_page, pages) == pages;
  return s;
}

void PageHeap::free_small(Span* s) {
  const LockHolder hold(lock_);
  Region* r = g_range.regions + s->first_page / kHugePages;
  const uint32_t within = s->first_page % kHugePages;
  map_pages(s, 0);
  r->used[within / 64] &= ~mask_of(s->pages, within % 64);
  r->used_pages -= s->pages;
  mark_free(s->pages);
  delete_span(s);
  if (r->used_pages != 0) {
    relist(r);
    return;
  }
  Span* whole = new_span();
  if (whole == nullptr) {  // stays an empty region
    relist(r);
    return;
  }
  (r->prev != nullptr ? r->prev->next : regions_[r->order]) = r->next;
  if (r->next != nullptr) r->next->prev = r->prev;
  r->live = false;
  whole->first_page = first_page_of(r);
  whole->pages = kHugePages;
  whole->dirty = count_dirty(whole->first_page, kHugePages);
  insert(whole);
}

// The free runs inside regions that are in use: only under pressure, for it tears huge pages.
uint32_t PageHeap::release_regions(uint32_t pages) {
  uint32_t released = 0;
  const LockHolder hold(lock_);
  for (unsigned order = kOrders; order-- > 1;) {
    for (Region* r = regions_[order]; r != nullptr && released < pages; r = r->next) {
      for (uint32_t at = 0; at < kHugePages; at += 4) {
        const uint32_t page = first_page_of(r) + at;
        const uint32_t dirty = count_dirty(page, 4);
        if ((r->used[at / 64] >> (at % 64) & 15) != 0 || dirty == 0) continue;
        if (!os_release(page_address(page), 4 * kPageBytes)) return released;
        clear_dirty(page, 4);
        counts_.dirty_free -= dirty;
        counts_.released += dirty;
        released += dirty;
      }
    }
  }
  return released;
}

const char* PageHeap::check() {
  const LockHolder hold(lock_);
  const char* broken = nullptr;
  uint64_t dirty_free = 0, free_pages = 0;
  const auto look = [&](Span* s) {
    if (s->kind != Kind::kFree) broken = "an extent in a bin is not free";
    if (g_range.spans + g_range.map[s->first_page] != s) broken = "an extent is not on the map";
    if (g_range.spans + g_range.map[s->end_page() - 1] != s) broken = "an extent's end is not";
    if (count_dirty(s->first_page, s->pages) != s->dirty) broken = "an extent's dirty pages";
    Span* next = free_after(s);
    if (next != nullptr && (next->dirty != 0) == (s->dirty != 0)) broken = "neighbours not joined";
    if (next != nullptr && s->pages + next->pages > longest_run_) broken = "the longest run";
    dirty_free += s->dirty;
    free_pages += s->pages;
    return broken == nullptr;
  };
  dirty_.for_each(look);
  clean_.for_each(look);
  for (unsigned order = 0; order < kOrders; ++order) {
    for (Region* r = regions_[order]; r != nullptr; r = r->next) {
      if (longest_run(r) != order) broken = "a region in the wrong list";
      uint32_t used = 0;
      for (uint32_t at = 0; at < kHugePages; ++at) {
        const uint32_t page = first_page_of(r) + at;
        const bool in_use = (r->used[at / 64] >> (at % 64) & 1) != 0;
        used += in_use ? 1 : 0;
        free_pages += in_use ? 0 : 1;
        dirty_free += !in_use && is_dirty(page) ? 1 : 0;
        if (in_use != (g_range.map[page] != 0)) broken = "a region's map";
      }
      if (used != r->used_pages) broken = "a region's count";
    }
  }
  if (dirty_free != counts_.dirty_free) broken = "the count of dirty free pages";
  if (free_pages + counts_.used != g_range.committed) broken = "the count of used pages";
  return broken;
}

}  // namespace flatout::malloc
