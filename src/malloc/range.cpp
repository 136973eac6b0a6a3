#include "malloc/range.h"

#include <algorithm>

#include "malloc/lock.h"
#include "malloc/os.h"

namespace flatout::malloc {

constinit Range g_range{};

namespace {

constexpr size_t kWanted = size_t{4} << 40;  // more than a machine has memory
constexpr size_t kLeast = size_t{8} << 20;   // less is of no use
constexpr size_t kMostAlign = size_t{1} << 30;
constexpr size_t kTableStep = size_t{256} << 10;  // tables are committed in such pieces

// A table that grows in place: its addresses are reserved, its memory comes as it is needed.
struct Table {
  char* at = nullptr;
  size_t reserved = 0, committed = 0;
  bool ensure(size_t bytes) {
    if (bytes <= committed) return true;
    const size_t wanted = std::min(reserved, (bytes + kTableStep - 1) / kTableStep * kTableStep);
    if (wanted < bytes || !os_commit(at + committed, wanted - committed)) return false;
    committed = wanted;
    return true;
  }
};

constinit Lock g_start_lock;
constinit Table g_map, g_spans, g_dirty, g_huge, g_regions;
uint32_t g_span_count = 1;
Span* g_free_spans = nullptr;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Processors find a line in their first cache by some bits of its address before they know all of
// it (AMD: a hash of bits 12 to 27). Two hot lines that agree in them miss in turn, at every free;
// so the tables, which would all begin at a multiple of 1 GiB, begin at different OS pages.
constexpr size_t kApart = size_t{53} << 12;

// The range, and after it the tables.
bool reserve(size_t bytes) {
  const size_t pages = bytes >> kPageShift;
  Table tables[5];
  tables[0].reserved = round_up(pages * sizeof(uint32_t), kTableStep);
  tables[1].reserved = round_up(pages * sizeof(Span), kTableStep);
  tables[2].reserved = round_up(pages / 8, kTableStep);
  tables[3].reserved = round_up(pages / kHugePages / 8 + 8, kTableStep);
  tables[4].reserved = round_up(pages / kHugePages * sizeof(Region), kTableStep);
  size_t total = bytes;
  for (const Table& table : tables) total += table.reserved + kApart;
  const size_t align = bytes >= 64 * kMostAlign ? kMostAlign : kHugeBytes;
  char* base = static_cast<char*>(os_reserve(total, align));
  if (base == nullptr) return false;
  char* at = base + bytes;
  for (Table& table : tables) {
    table.at = at += kApart;
    at += table.reserved;
  }
  g_map = tables[0];
  g_spans = tables[1];
  g_dirty = tables[2];
  g_huge = tables[3];
  g_regions = tables[4];
  if (!g_spans.ensure(sizeof(Span)) || !g_map.ensure(1) || !g_dirty.ensure(1) ||
      !g_huge.ensure(1)) {
    return false;
  }
  g_range.map = reinterpret_cast<uint32_t*>(g_map.at);
  g_range.spans = reinterpret_cast<Span*>(g_spans.at);
  g_range.dirty = reinterpret_cast<uint64_t*>(g_dirty.at);
  g_range.huge = reinterpret_cast<uint64_t*>(g_huge.at);
  g_range.regions = reinterpret_cast<Region*>(g_regions.at);
  g_range.most_align = static_cast<uint32_t>(align >> kPageShift);
  g_range.pages = static_cast<uint32_t>(pages);
  g_range.base.store(reinterpret_cast<uintptr_t>(base), std::memory_order_release);
  // Until it is committed, a page is not ours to look up: bytes follows `committed`.
  return true;
}

// act(word, mask) for each word of the bitmap that [first, first + count) has a part in.
template <typename Act>
void for_words(uint64_t* bits, uint32_t first, uint32_t count, Act act) {
  while (count != 0) {
    const uint32_t shift = first % 64, n = std::min(count, 64 - shift);
    act(bits[first / 64], (n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1) << shift);
    first += n;
    count -= n;
  }
}

}  // namespace

bool range_start() {
  if (g_range.base.load(std::memory_order_acquire) != 0) return true;
  const LockHolder hold(g_start_lock);
  if (g_range.base.load(std::memory_order_relaxed) != 0) return true;
  const size_t limit = os_address_limit();
  // The other half is for the program's own mappings, its libraries and stacks.
  for (size_t bytes = std::min(kWanted, limit / 2); bytes >= kLeast; bytes /= 2) {
    if (reserve(bytes / kHugeBytes * kHugeBytes)) return true;
  }
  return false;
}

void lock_range() { g_start_lock.lock(); }
void unlock_range() { g_start_lock.unlock(); }
void reset_range_lock() { g_start_lock.reset(); }

bool range_grow(uint32_t pages) {
  const uint32_t left = g_range.pages - g_range.committed;
  const uint32_t wanted = (pages + kHugePages - 1) / kHugePages * kHugePages;
  if (wanted < pages || wanted > left) return false;
  const size_t end = size_t{g_range.committed} + wanted;
  if (!g_map.ensure(end * sizeof(uint32_t)) || !g_dirty.ensure(end / 8) ||
      !g_huge.ensure(end / kHugePages / 8 + 8) ||
      !g_regions.ensure(end / kHugePages * sizeof(Region))) {
    return false;
  }
  if (!os_commit(page_address(g_range.committed), size_t{wanted} << kPageShift)) return false;
  g_range.committed = static_cast<uint32_t>(end);
  g_range.bytes.store(end << kPageShift, std::memory_order_release);
  return true;
}

Span* new_span() {
  if (g_free_spans != nullptr) {
    Span* s = g_free_spans;
    g_free_spans = s->next;
    s->next = nullptr;
    return s;
  }
  if (!g_spans.ensure((size_t{g_span_count} + 1) * sizeof(Span))) return nullptr;
  return g_range.spans + g_span_count++;
}

void delete_span(Span* s) {
  s->kind = Kind::kNone;
  s->owner.store(nullptr, std::memory_order_relaxed);
  s->next = g_free_spans;
  g_free_spans = s;
}

uint32_t count_dirty(uint32_t first, uint32_t count) {
  uint32_t sum = 0;
  for_words(g_range.dirty, first, count, [&](uint64_t& word, uint64_t mask) {
    // All or nothing in most words; the rest is worth a call where the CPU's instruction may be
    // missing.
    const uint64_t bits = word & mask;
    if (bits == ~uint64_t{0}) {
      sum += 64;
    } else if (bits != 0) {
      sum += static_cast<uint32_t>(__builtin_popcountll(bits));
    }
  });
  return sum;
}

void set_dirty(uint32_t first, uint32_t count) {
  for_words(g_range.dirty, first, count, [](uint64_t& word, uint64_t mask) { word |= mask; });
}

void clear_dirty(uint32_t first, uint32_t count) {
  for_words(g_range.dirty, first, count, [](uint64_t& word, uint64_t mask) { word &= ~mask; });
}

}  // namespace flatout::malloc
