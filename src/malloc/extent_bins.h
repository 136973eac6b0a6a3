// Free extents by size: a bin for each number of pages below 128, then sixteen a doubling. A bin's
// first 256 are searched for the best, so a coarse bin costs little time, and seldom memory.
#pragma once

#include <cstdint>

#include "malloc/span.h"

namespace flatout::malloc {

class ExtentBins {
 public:
  void insert(Span* s) {
    const unsigned bin = bin_of(s->pages);
    bins_[bin].push(s);
    filled_[bin / 64] |= uint64_t{1} << (bin % 64);
  }
  void remove(Span* s) {
    const unsigned bin = bin_of(s->pages);
    bins_[bin].remove(s);
    if (bins_[bin].first == nullptr) filled_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  }

  /// The smallest extent with room for `pages` from an address that is a multiple of `align`
  /// pages, and of those the one at the lowest address. nullptr if there is none.
  Span* best_fit(uint32_t pages, uint32_t align) const {
    for (unsigned bin = next_filled(bin_of(pages)); bin < kBins; bin = next_filled(bin + 1)) {
      Span* best = nullptr;
      unsigned looked = 0;
      for (Span* s = bins_[bin].first; s != nullptr && looked < kMostLooks; s = s->next, ++looked) {
        if (fits(s, pages, align) && (best == nullptr || better(s, best))) best = s;
      }
      if (best != nullptr) return best;
    }
    return nullptr;
  }

  template <typename Act>  // act(Span*) -> false to stop; largest bins first; it may not remove
  void for_each(Act act) const {
    for (unsigned bin = kBins; bin-- > 0;) {
      for (Span* s = bins_[bin].first; s != nullptr; s = s->next) {
        if (!act(s)) return;
      }
    }
  }

  static uint32_t aligned_start(const Span* s, uint32_t align) {
    return (s->first_page + align - 1) & ~(align - 1);
  }

 private:
  static constexpr unsigned kExact = 128, kPerDoubling = 16;
  static constexpr unsigned kBins = kExact + kPerDoubling * 25, kWords = (kBins + 63) / 64;
  static constexpr unsigned kMostLooks = 256;

  static unsigned bin_of(uint32_t pages) {
    if (pages < kExact) return pages;
    const unsigned log = 31 - static_cast<unsigned>(__builtin_clz(pages));  // >= 7
    return kExact + (log - 7) * kPerDoubling + (pages >> (log - 4)) - kPerDoubling;
  }
  static bool fits(const Span* s, uint32_t pages, uint32_t align) {
    const uint64_t start = aligned_start(s, align);
    return start + pages <= s->end_page();
  }
  static bool better(const Span* a, const Span* b) {
    return a->pages != b->pages ? a->pages < b->pages : a->first_page < b->first_page;
  }
  unsigned next_filled(unsigned bin) const {
    if (bin >= kBins) return kBins;
    unsigned word = bin / 64;
    uint64_t bits = filled_[word] & ~uint64_t{0} << (bin % 64);
    while (bits == 0) {
      if (++word == kWords) return kBins;
      bits = filled_[word];
    }
    return word * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
  }

  SpanList bins_[kBins];
  uint64_t filled_[kWords] = {};
};

}  // namespace flatout::malloc
