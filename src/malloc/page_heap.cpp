#include "malloc/page_heap.h"

#include <algorithm>
#include <cstring>

#include "malloc/cache.h"
#include "malloc/os.h"

namespace flatout::malloc {

constinit PageHeap g_page_heap;

namespace {

constexpr uint32_t kHugeFrom = (4u << 20) >> kPageShift;  // pages, where THP is asked for
constexpr uint32_t kAskFrom = (1u << 30) >> kPageShift;   // the kernel might refuse so much
constexpr uint32_t kMaxHold = (32u << 20) >> kPageShift;  // given back at one time

// Where neighbours find a large or free span: its first and last page.
void set_ends(const Span* s, uint32_t index) {
  g_range.map[s->first_page] = index;
  g_range.map[s->end_page() - 1] = index;
}

// Whether the range grows by huge pages for such a block. Those of half a MiB share them with their
// neighbours, so they too cost at most one more, which is little where there is much memory
// already. Not for a region: of its blocks some are touched in part.
bool grows_huge(uint32_t pages, uint32_t align) {
  constexpr uint32_t kSharedFrom = (512u << 10) >> kPageShift, kMuch = (16u << 20) >> kPageShift;
  if (pages >= kHugeFrom) return true;
  return pages >= kSharedFrom && align < kHugePages && g_range.committed >= kMuch;
}

// Asks for huge pages within [first, first + pages) where nobody has yet.
void advise_huge(uint32_t first, uint32_t pages) {
  const uint32_t begin = (first + kHugePages - 1) / kHugePages, end = (first + pages) / kHugePages;
  for (uint32_t h = begin; h < end;) {
    uint32_t stop = h;
    while (stop < end && (g_range.huge[stop / 64] >> (stop % 64) & 1) == 0) {
      g_range.huge[stop / 64] |= uint64_t{1} << (stop % 64);
      ++stop;
    }
    if (stop > h) os_advise_huge(page_address(h * kHugePages), (stop - h) * kHugeBytes);
    h = stop + 1;
  }
}

}  // namespace

// ---- free extents ----

Span* PageHeap::free_before(const Span* s) const {
  if (s->first_page == 0) return nullptr;
  Span* other = g_range.spans + g_range.map[s->first_page - 1];
  return other->kind == Kind::kFree ? other : nullptr;
}

Span* PageHeap::free_after(const Span* s) const {
  if (s->end_page() >= g_range.committed) return nullptr;
  Span* other = g_range.spans + g_range.map[s->end_page()];
  return other->kind == Kind::kFree ? other : nullptr;
}

// Pages of s and the free extents beside it, dirty and clean; more than there are if the parts are
// too many to look at.
uint64_t PageHeap::run_of(const Span* s) const {
  constexpr unsigned kMostParts = 16;
  uint64_t pages = s->pages;
  unsigned parts = 1;
  const Span* other = s;
  while ((other = free_before(other)) != nullptr && ++parts <= kMostParts) pages += other->pages;
  other = s;
  while ((other = free_after(other)) != nullptr && ++parts <= kMostParts) pages += other->pages;
  return parts <= kMostParts ? pages : UINT64_MAX;
}

void PageHeap::take(Span* s) {
  (s->dirty != 0 ? dirty_ : clean_).remove(s);
  s->kind = Kind::kHeld;
}

// s and the extent that begins where s ends become one: s. Neither is in a bin.
void PageHeap::absorb(Span* s, Span* next) {
  set_ends(s, 0);
  set_ends(next, 0);
  s->pages += next->pages;
  s->dirty += next->dirty;
  set_ends(s, span_index(s));
  delete_span(next);
}

// Puts a free extent into the bins, joined with neighbours of its state: clean ones stay apart from
// dirty ones, so that both are known for what they are. Returns what it became.
Span* PageHeap::insert(Span* s) {
  set_ends(s, span_index(s));
  Span* before = free_before(s);
  if (before != nullptr && (before->dirty != 0) == (s->dirty != 0)) {
    take(before);
    absorb(before, s);
    s = before;
  }
  Span* after = free_after(s);
  if (after != nullptr && (after->dirty != 0) == (s->dirty != 0)) {
    take(after);
    absorb(s, after);
  }
  s->kind = Kind::kFree;
  (s->dirty != 0 ? dirty_ : clean_).insert(s);
  if (const uint64_t run = run_of(s); run > s->pages) longest_run_ = std::max(longest_run_, run);
  return s;
}

// Shortens s, which is in no bin, to [first, first + pages); what is left over becomes free.
// Without descriptions for the parts the end stays on, which wastes; the front cannot: s goes back
// and the answer is nullptr.
Span* PageHeap::cut(Span* s, uint32_t first, uint32_t pages) {
  const uint32_t lead = first - s->first_page, trail = s->end_page() - first - pages;
  const auto split = [&](uint32_t at, uint32_t n) {
    Span* rest = new_span();
    if (rest == nullptr) return false;
    set_ends(s, 0);
    rest->first_page = at;
    rest->pages = n;
    rest->dirty = s->dirty == 0 ? 0 : count_dirty(at, n);
    if (at == s->first_page) s->first_page += n;
    s->pages -= n;
    s->dirty -= rest->dirty;
    set_ends(s, span_index(s));
    insert(rest);
    return true;
  };
  if (trail != 0) split(s->end_page() - trail, trail);
  if (lead != 0 && !split(s->first_page, lead)) {
    insert(s);
    return nullptr;
  }
  return s;
}

// The largest dirty extent that has room for `pages` together with the clean ones beside it, and of
// those only what is missing.
Span* PageHeap::find_around_dirty(uint32_t pages) {
  constexpr unsigned kMostLooks = 64;
  Span *s = nullptr, *before = nullptr, *after = nullptr;
  unsigned looked = 0;
  const auto pages_of = [](const Span* of) { return of == nullptr ? uint64_t{0} : of->pages; };
  dirty_.for_each([&](Span* one) {
    before = free_before(one);
    after = free_after(one);
    if (pages_of(before) + one->pages + pages_of(after) >= pages) s = one;
    return s == nullptr && ++looked < kMostLooks;
  });
  if (s == nullptr) return nullptr;
  take(s);
  if (after != nullptr) {
    take(after);
    absorb(s, after);
  }
  if (s->pages >= pages) return cut(s, s->first_page, pages);
  take(before);
  absorb(before, s);
  return cut(before, before->end_page() - pages, pages);
}

Span* PageHeap::find(uint32_t pages, uint32_t align) {
  constexpr uint32_t kWorthALook = (1u << 20) >> kPageShift;  // so many would be cleared anew
  Span* s = dirty_.best_fit(pages, align);
  if (s == nullptr && align == 1 && pages >= kWorthALook) {
    s = find_around_dirty(pages);
    if (s != nullptr) return s;
  }
  if (s == nullptr) s = clean_.best_fit(pages, align);
  if (s == nullptr) return nullptr;
  take(s);
  return cut(s, ExtentBins::aligned_start(s, align), pages);
}

// Joins s with all free extents after it, dirty or clean.
Span* PageHeap::merge_run(Span* s) {
  take(s);
  for (Span* next = free_after(s); next != nullptr; next = free_after(s)) {
    take(next);
    absorb(s, next);
  }
  s->kind = Kind::kFree;
  (s->dirty != 0 ? dirty_ : clean_).insert(s);
  return s;
}

// As find, and where that fails joins dirty and clean neighbours: before the range grows.
Span* PageHeap::find_or_merge(uint32_t pages, uint32_t align) {
  if (Span* s = find(pages, align); s != nullptr) return s;
  if (pages > longest_run_) return nullptr;
  Span* best = nullptr;
  uint64_t best_pages = 0, longest = 0;
  const auto look = [&](Span* s) {
    if (free_before(s) != nullptr) return true;  // not the first of its run
    uint64_t run = 0;
    uint32_t parts = 0;
    for (Span* next = s; next != nullptr; next = free_after(next)) {
      run += next->pages;
      ++parts;
    }
    const uint64_t start = ExtentBins::aligned_start(s, align);
    if (parts > 1) longest = std::max(longest, run);
    if (parts > 1 && start + pages <= s->first_page + run &&
        (best == nullptr || run < best_pages)) {
      best = s;
      best_pages = run;
    }
    return true;
  };
  dirty_.for_each(look);
  clean_.for_each(look);
  longest_run_ = longest;
  if (best == nullptr) return nullptr;
  merge_run(best);
  return find(pages, align);
}

Span* PageHeap::find_or_grow(uint32_t pages, uint32_t align) {
  if (Span* s = find_or_merge(pages, align); s != nullptr) return s;
  // The free extents at the end of the range count.
  uint32_t tail = 0;
  if (g_range.committed != 0) {
    Span* last = g_range.spans + g_range.map[g_range.committed - 1];
    for (; last != nullptr && last->kind == Kind::kFree; last = free_before(last)) {
      tail += last->pages;
    }
  }
  const uint32_t begin = g_range.committed - tail;
  const uint64_t start = (uint64_t{begin} + align - 1) / align * align;
  const uint64_t needed = start + pages - g_range.committed;
  if (needed > g_range.pages) return nullptr;
  const uint32_t old = g_range.committed;
  const bool huge = grows_huge(pages, align);
  // Small requests come in numbers: fewer, larger system calls. It is only address space.
  const uint32_t ahead = std::min(4096u, std::max(256u, old / 8));
  if ((huge || needed >= ahead || !range_grow(ahead)) &&
      !range_grow(static_cast<uint32_t>(needed))) {
    return nullptr;
  }
  Span* fresh = new_span();
  if (fresh == nullptr) return nullptr;  // the address space is lost, which nobody will notice
  if (huge) advise_huge(old, g_range.committed - old);
  fresh->first_page = old;
  fresh->pages = g_range.committed - old;
  fresh->dirty = 0;
  Span* s = insert(fresh);
  if (tail != 0) {
    while (Span* before = free_before(s)) s = before;
    merge_run(s);
  }
  return find(pages, align);
}

// ---- what has memory behind it ----

// Returns how many of them were dirty already.
uint32_t PageHeap::mark_used(uint32_t first, uint32_t pages) {
  const uint32_t dirty = count_dirty(first, pages);
  if (dirty != pages) {
    set_dirty(first, pages);
    const uint64_t missed = std::min<uint64_t>(counts_.released - counts_.refaulted, pages - dirty);
    counts_.refaulted += missed;
    if (missed != 0 && counts_.missed_ns == 0) counts_.missed_ns = os_now_ns();
  }
  counts_.dirty_free -= dirty;
  dirty_hint_.store(counts_.dirty_free, std::memory_order_relaxed);
  counts_.used += pages;
  counts_.peak = std::max(counts_.peak, counts_.used);
  return dirty;
}

void PageHeap::mark_free(uint32_t pages) {
  counts_.used -= pages;
  counts_.dirty_free += pages;
  dirty_hint_.store(counts_.dirty_free, std::memory_order_relaxed);
}

PageCounts PageHeap::counts() {
  const LockHolder hold(lock_);
  return counts_;
}

PageCounts PageHeap::take_counts() {
  const LockHolder hold(lock_);
  const PageCounts out = counts_;
  counts_.peak = counts_.used;
  counts_.missed_ns = 0;
  return out;
}

// ---- large blocks ----

// Under the lock, which it opens for a moment.
Span* PageHeap::find_for_large(uint32_t pages, uint32_t align) {
  if (pages >= kAskFrom && !os_may_give(size_t{pages} << kPageShift)) return nullptr;
  if (Span* s = find_or_merge(pages, align); s != nullptr) return s;
  lock_.unlock();
  release_parked();  // what waits in threads' slots may be just what is missing
  lock_.lock();
  // The first small block must not come to lie among large ones, which it would keep apart for
  // ever.
  if (g_range.committed == 0) new_region();
  return find_or_grow(pages, align);
}

void PageHeap::make_large(Span* s) {
  s->kind = Kind::kLarge;
  s->sample = nullptr;
  s->dirty = 0;
  if (s->pages >= kHugeFrom) advise_huge(s->first_page, s->pages);
}

Span* PageHeap::allocate_large(uint32_t pages, uint32_t align) {
  if (!range_start()) return nullptr;
  lock_.lock();
  Span* s = find_for_large(pages, align);
  if (s != nullptr) {
    make_large(s);
    mark_used(s->first_page, s->pages);
  }
  lock_.unlock();
  return s;
}

Span* PageHeap::allocate_zeroed(uint32_t pages, uint32_t align) {
  struct Run {
    uint32_t first, count;
  };
  constexpr unsigned kMostRuns = 32;
  Run runs[kMostRuns];
  unsigned n = 0;
  if (!range_start()) return nullptr;
  lock_.lock();
  Span* s = find_for_large(pages, align);
  if (s != nullptr) {
    if (s->dirty != 0) {
      for (uint32_t at = s->first_page; at < s->end_page();) {
        if (!is_dirty(at)) {
          ++at;
          continue;
        }
        uint32_t stop = at + 1;
        while (stop < s->end_page() && is_dirty(stop)) ++stop;
        if (n == kMostRuns) {  // so torn that the last run has to stand for all the rest
          runs[n - 1].count = s->end_page() - runs[n - 1].first;
          break;
        }
        runs[n++] = {at, stop - at};
        at = stop;
      }
    }
    make_large(s);
    mark_used(s->first_page, s->pages);
  }
  lock_.unlock();
  for (unsigned i = 0; i < n; ++i) {
    os_clear(page_address(runs[i].first), size_t{runs[i].count} << kPageShift);
  }
  return s;
}

void PageHeap::free_large(Span* s, bool empty) {
  const LockHolder hold(lock_);
  mark_free(s->pages);
  s->dirty = s->pages;
  if (empty) {
    clear_dirty(s->first_page, s->pages);
    counts_.dirty_free -= s->pages;
    s->dirty = 0;
  }
  insert(s);
}

bool PageHeap::resize_large(Span* s, uint32_t pages) {
  const LockHolder hold(lock_);
  if (pages < s->pages) {
    Span* rest = new_span();
    if (rest == nullptr) return false;
    set_ends(s, 0);
    rest->first_page = s->first_page + pages;
    rest->pages = s->pages - pages;
    rest->dirty = rest->pages;
    s->pages = pages;
    set_ends(s, span_index(s));
    mark_free(rest->pages);
    insert(rest);
    return true;
  }
  const uint32_t more = pages - s->pages;
  Span* next = free_after(s);
  if (next == nullptr || next->pages < more) return false;
  take(next);
  cut(next, next->first_page, more);
  mark_used(next->first_page, next->pages);
  absorb(s, next);
  s->dirty = 0;
  if (s->pages >= kHugeFrom) advise_huge(s->first_page, s->pages);
  return true;
}

// ---- giving back ----

// Takes a free extent out of the bins whose memory is to be given back; at most `pages` of it.
Span* PageHeap::hold_for_release(uint32_t pages, bool fragments) {
  Span* found = nullptr;
  uint32_t first = 0, count = 0;
  dirty_.for_each([&](Span* s) {
    uint32_t begin = s->first_page, end = s->end_page();
    if (!fragments) {
      begin = ExtentBins::aligned_start(s, kHugePages);
      end = end / kHugePages * kHugePages;
      if (begin >= end || count_dirty(begin, end - begin) == 0) return true;
    }
    // From its end, in whole huge pages: what stays is used first.
    uint32_t most = std::min(kMaxHold, pages);
    if (!fragments) most = (most + kHugePages - 1) / kHugePages * kHugePages;
    if (end - begin > most) begin = end - most;
    found = s;
    first = begin;
    count = end - begin;
    return false;
  });
  if (found == nullptr) return nullptr;
  take(found);
  return cut(found, first, count);
}

uint32_t PageHeap::release(uint32_t pages, bool fragments) {
  uint32_t released = 0;
  for (const bool all : {false, true}) {
    if (all && !fragments) break;
    while (released < pages) {
      const LockHolder holding(release_lock_);
      lock_.lock();
      Span* s = hold_for_release(pages - released, all);
      lock_.unlock();
      if (s == nullptr) break;
      // Nobody else touches a held extent, so the slow part needs no lock.
      const bool done = os_release(page_address(s->first_page), size_t{s->pages} << kPageShift);
      lock_.lock();
      const uint32_t dirty = count_dirty(s->first_page, s->pages);
      if (done) {
        clear_dirty(s->first_page, s->pages);
        counts_.dirty_free -= dirty;
        counts_.released += dirty;
        s->dirty = 0;
        released += dirty;
      }
      insert(s);
      lock_.unlock();
      if (!done) return released;  // locked memory: there is no giving back
    }
  }
  if (fragments && released < pages) released += release_regions(pages - released);
  return released;
}

}  // namespace flatout::malloc
