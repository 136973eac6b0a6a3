// A span is a run of pages: blocks of one size class, one large block, or free ("extent").
// Its description lies outside the pages, dense, in a table of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "malloc/size_class.h"

namespace flatout::malloc {

// The thread sanitizer has to see what a test of it is to be about.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FLATOUT_HAS_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define FLATOUT_HAS_TSAN 1
#endif
#ifndef FLATOUT_HAS_TSAN
#define FLATOUT_HAS_TSAN 0
#endif

struct Cache;
struct Sample;

struct Block {  // the link in a free block; the rest of it is whatever the program left there
  Block* next;
};

enum class Kind : uint8_t {
  kNone,    // no span of ours here
  kSmall,   // blocks of one class
  kLarge,   // one block, in use
  kParked,  // a large block that was freed and waits in a thread's slot for its like
  kFree,    // in the page heap
  kHeld,    // free, while its memory is being given back
};

// A span's kind, readable without a lock: neighbours under the page heap's lock look at it while
// the block's owner frees it. Only the page heap makes or ends kFree.
class AtomicKind {
 public:
  operator Kind() const { return value_.load(std::memory_order_relaxed); }
  AtomicKind& operator=(Kind kind) {
    value_.store(kind, std::memory_order_relaxed);
    return *this;
  }

 private:
  std::atomic<Kind> value_;
};

// Where a small span stands with its owner; changes only under the owner's lock.
enum class Place : uint8_t {
  kCurrent,  // its blocks are in the owner's fast list, or will be
  kFull,     // no block to give; in no list
  kPartial,  // in the owner's list of spans with free blocks
  kEmpty,    // nothing of it is in use; the owner keeps it for a while
};

// Blocks that other threads have freed: a list as one word, so that a thread can add many blocks by
// one compare-and-swap and the owner can take all by one exchange. head and tail are offsets in the
// span in units of 8 bytes; the word is 0 exactly when there is none.
struct RemoteList {
  uint64_t word;
  static constexpr unsigned kBits = 20;
  static constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  static RemoteList make(uint64_t head, uint64_t tail, uint64_t count) {
    return {head | tail << kBits | count << (2 * kBits)};
  }
  uint64_t head() const { return word & kMask; }
  uint64_t tail() const { return word >> kBits & kMask; }
  uint32_t count() const { return static_cast<uint32_t>(word >> (2 * kBits)); }
};

struct alignas(128) Span {
  // The owner's line.
  Block* local_free;                // freed by the owner
  std::atomic<Cache*> owner;        // null: not small
  std::atomic<uint32_t> countdown;  // frees by the owner until something happens to this span
  std::atomic<uint32_t>
      trigger_at;   // blocks in use at that moment. in use = countdown + trigger_at
  uint32_t carved;  // blocks made so far; the rest of the span is untouched
  uint32_t capacity;
  uint32_t block_bytes;
  uint32_t first_page, pages;
  uint8_t size_class;
  AtomicKind kind;
  Place place;
  bool queued;            // in the owner's list of spans with remote frees
  uint16_t remote_limit;  // blocks that another thread collects before it hands them over
  bool big;               // its blocks have kBig bytes or more
  bool coloured;          // their links are not at their beginning
  bool warm;              // may have memory behind all of it: blocks are made many at a time
  uint8_t short_refills;  // how often the fast list got all blocks, and they were few
  uint64_t sample_due;    // 0, or its next block is a sample, every so many bytes in the mean
  // Other threads' line.
  alignas(64) std::atomic<uint64_t> remote;
  Span *next, *prev;              // of the owner's partial spans, or of a bin of free extents
  Span *queue_next, *queue_prev;  // of the owner's queue
  Sample* sample;                 // large: this block is in the heap profile
  uint32_t dirty;                 // free: pages that may have memory behind them

  uint32_t in_use() const {
    return countdown.load(std::memory_order_acquire) + trigger_at.load(std::memory_order_relaxed);
  }
  /// Something happens when the owner's frees have brought `used` down to `at`; kNever: nothing.
  void set_in_use(uint32_t used, uint32_t at) {
    trigger_at.store(at, std::memory_order_relaxed);
    countdown.store(used - at, std::memory_order_relaxed);
  }
  static constexpr uint32_t kNever = UINT32_MAX;  // one below 0
  uint32_t end_page() const { return first_page + pages; }
};
static_assert(sizeof(Span) == 128);

/// The link of a block that is being freed.
inline Block* link_of(const Span* s, void* p) {
  if (__builtin_expect(!s->coloured, 1)) return static_cast<Block*>(p);
  const auto at = reinterpret_cast<uintptr_t>(p);
  constexpr uintptr_t kCacheLines = kColouredBytes - 64;  // bits that choose one of an OS page
  return reinterpret_cast<Block*>(at | ((at >> 6 ^ at >> 9) & kCacheLines));
}

/// The block that a link of this class lies in.
inline void* start_of(Block* link, unsigned size_class) {
  const intptr_t mask = kClassTable.start_mask[size_class];
  return reinterpret_cast<void*>(reinterpret_cast<intptr_t>(link) & mask);
}

/// One less; true where nothing is left. Only the owner writes it, so it takes no locked
/// instruction: a load and a store (release), which compilers do not make one instruction of.
inline bool count_down(std::atomic<uint32_t>& count) {
#if defined(__x86_64__) && !FLATOUT_HAS_TSAN
  bool none;
  asm("subl $1, %0" : "+m"(count), "=@ccz"(none) : : "memory");
  return none;
#else
  const uint32_t left = count.load(std::memory_order_relaxed) - 1;
  count.store(left, std::memory_order_release);
  return left == 0;
#endif
}

/// A list through Span::next and prev.
struct SpanList {
  Span* first = nullptr;
  void push(Span* s) {
    s->prev = nullptr;
    s->next = first;
    if (first != nullptr) first->prev = s;
    first = s;
  }
  void remove(Span* s) {
    (s->prev != nullptr ? s->prev->next : first) = s->next;
    if (s->next != nullptr) s->next->prev = s->prev;
    s->next = s->prev = nullptr;
  }
};

}  // namespace flatout::malloc
