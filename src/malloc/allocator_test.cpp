// The allocator under its own names; what the C library's names promise is in surface_test.cpp.
#include "malloc/allocator.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "malloc/cache.h"
#include "malloc/idle.h"
#include "malloc/os.h"
#include "malloc/page_heap.h"
#include "malloc/testing.h"

namespace flatout::malloc {
namespace {

constexpr size_t kMib = size_t{1} << 20;

// These tests are the clock. Once started the thread would go on, and give memory back beside them.
const bool g_no_idle_thread = [] {
  set_idle_thread(false);
  return true;
}();

char* take(size_t bytes) { return static_cast<char*>(allocate(bytes)); }

TEST(Allocator, GivesDistinctWritableBlocks) {
  std::vector<char*> blocks;
  for (size_t size = 1; size < 300'000; size += 1 + size / 9) {
    char* p = take(size);
    ASSERT_NE(p, nullptr);
    std::memset(p, static_cast<int>(blocks.size()), size);
    EXPECT_GE(usable_size(p), size);
    blocks.push_back(p);
  }
  size_t i = 0;
  for (size_t size = 1; size < 300'000; size += 1 + size / 9, ++i) {
    for (size_t k = 0; k < size; k += 97) ASSERT_EQ(blocks[i][k], static_cast<char>(i));
    deallocate(blocks[i]);
  }
  EXPECT_EQ(g_page_heap.check(), nullptr);
}

TEST(Allocator, GivesALargeBlockAgainAtOnce) {
  char* p = take(64 * kMib);
  deallocate(p);
  char* q = take(64 * kMib);
  EXPECT_EQ(p, q);
  deallocate(q);
}

TEST(Allocator, ClearsWhatWasUsedBefore) {
  for (const size_t size : {size_t{24}, size_t{5000}, size_t{70'000}, 3 * kMib, 20 * kMib}) {
    for (int round = 0; round < 3; ++round) {
      char* p = take(size);
      std::memset(p, 0xA5, size);
      deallocate(p);
      release_parked();
      char* q = static_cast<char*>(allocate_zeroed(1, size));
      EXPECT_TRUE(std::all_of(q, q + size, [](char c) { return c == 0; })) << size;
      deallocate(q);
    }
  }
}

TEST(Allocator, LeavesFreshPagesUntouchedWhenItClears) {
  purge();
  char* p = static_cast<char*>(allocate_zeroed(1, 256 * kMib));
  ASSERT_NE(p, nullptr);
  EXPECT_LT(resident_pages(p, 256 * kMib), 600u);
  deallocate(p);
}

// Of the mappings that [p, p + bytes) has a part in, what takes memory: zeros that were only read
// do not.
size_t anonymous_bytes(const char* p, size_t bytes) {
  std::ifstream smaps("/proc/self/smaps");
  const auto begin = reinterpret_cast<uintptr_t>(p);
  size_t sum = 0;
  bool within = false;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t from = 0, to = 0;
    size_t kib = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &from, &to) == 2) {
      within = from < begin + bytes && to > begin;
    } else if (within && std::sscanf(line.c_str(), "Anonymous: %zu kB", &kib) == 1) {
      sum += kib * 1024;
    }
  }
  return sum;
}

// A hash table, say, of which all is looked at and little is used. Both ways back: from the
// thread's slot, and from the page heap. Each sixth MiB is used, which may be a huge page.
TEST(Allocator, ClearsALargeSparseBlockWithoutTouchingTheRest) {
  constexpr size_t kSize = 240 * kMib + 5000, kUsed = kSize / 6 * 2;
  purge();
  for (const bool parked : {true, false, true, false}) {
    char* p = static_cast<char*>(allocate_zeroed(1, kSize));
    ASSERT_NE(p, nullptr);
    EXPECT_LT(anonymous_bytes(p, kSize), kUsed + 16 * kMib) << parked;
    for (size_t at = 0; at < kSize; at += 4096) ASSERT_EQ(p[at], 0) << at;
    for (size_t at = 1; at < kSize; at += 6 * kMib) {
      ASSERT_EQ(p[at], 0) << at;
      p[at] = 1;
    }
    ASSERT_EQ(p[kSize - 1], 0);
    p[kSize - 1] = 1;
    deallocate(p);
    if (!parked) release_parked();
  }
  purge();
}

// Where nearly all is in use it is cleared in place: no page has to be faulted in again.
TEST(Allocator, ClearsALargeBlockThatIsUsedInPlace) {
  constexpr size_t kSize = 64 * kMib;
  char* p = take(kSize);
  std::memset(p, 0xA5, kSize);
  deallocate(p);
  char* q = static_cast<char*>(allocate_zeroed(1, kSize));
  ASSERT_EQ(p, q);
  EXPECT_GE(resident_pages(q, kSize) * 4096, kSize);
  EXPECT_TRUE(std::all_of(q, q + kSize, [](char c) { return c == 0; }));
  deallocate(q);
}

TEST(Allocator, FailsWithENOMEMForWhatCannotBe) {
  errno = 0;
  EXPECT_EQ(allocate(SIZE_MAX), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  errno = 0;
  EXPECT_EQ(allocate(size_t{1} << 47), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  errno = 0;
  EXPECT_EQ(allocate_zeroed(SIZE_MAX / 2, 3), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  errno = 0;
  EXPECT_EQ(allocate_aligned(size_t{1} << 40, 1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  void* p = allocate(100);
  errno = 0;
  EXPECT_EQ(reallocate(p, SIZE_MAX), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  deallocate(p);
}

TEST(Allocator, AlignsEveryPowerOfTwo) {
  for (size_t alignment = 8; alignment <= 64 * kMib; alignment *= 2) {
    for (const size_t size : {size_t{1}, size_t{17}, size_t{1000}, size_t{70'000}}) {
      char* p = static_cast<char*>(allocate_aligned(alignment, size));
      ASSERT_NE(p, nullptr) << alignment;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % alignment, 0u);
      std::memset(p, 1, size);
      EXPECT_GE(usable_size(p), size);
      deallocate(p);
    }
  }
  EXPECT_EQ(g_page_heap.check(), nullptr);
}

TEST(Allocator, KeepsTheContentsWhenABlockGrowsAndShrinks) {
  const std::vector<size_t> sizes{1,        30,        100,      5000,    66'000, 300'000, 5 * kMib,
                                  9 * kMib, 20 * kMib, 6 * kMib, 400'000, 10'000, 40,      3};
  char* p = nullptr;
  size_t old = 0;
  for (const size_t size : sizes) {
    p = static_cast<char*>(reallocate(p, size));
    ASSERT_NE(p, nullptr);
    for (size_t i = 0; i < std::min(old, size); i += 61) ASSERT_EQ(p[i], static_cast<char>(i * 7));
    for (size_t i = 0; i < size; i += 61) p[i] = static_cast<char>(i * 7);
    old = size;
  }
  EXPECT_EQ(reallocate(p, 0), nullptr);
  EXPECT_EQ(g_page_heap.check(), nullptr);
}

TEST(Allocator, CatchesDoubleAndInteriorFreesOfLargeBlocks) {
  char* p = take(3 * kMib);
  char* q = take(3 * kMib);
  const uint64_t before = invalid_frees();
  deallocate(p + 16);
  deallocate(p + kMib);
  EXPECT_EQ(invalid_frees(), before + 2);
  deallocate(p);
  deallocate(p);  // parked
  EXPECT_EQ(invalid_frees(), before + 3);
  deallocate(q);
  deallocate(p);  // in the page heap
  EXPECT_EQ(invalid_frees(), before + 4);
  errno = 0;
  EXPECT_EQ(reallocate(p, 100), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(g_page_heap.check(), nullptr);
}

// AMD's processors find a line in the first cache by this hash of its address.
uintptr_t way_hash(const void* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  uintptr_t mirrored = 0;  // bits 20 to 27 as the hash adds them to bits 12 to 19
  for (const unsigned bit : {27, 26, 25, 20, 21, 22, 23, 24}) {
    mirrored = mirrored >> 1 | (address >> bit & 1) << 7;
  }
  return (address >> 12 & 0xff) ^ mirrored;
}

TEST(Allocator, KeepsTheTablesThatEachFreeReadsApartInTheFirstCache) {
  deallocate(take(16));
  const void* hot[] = {g_range.map, g_range.spans, g_range.dirty, page_address(0)};
  for (const void* const* a = hot; a != std::end(hot); ++a) {
    for (const void* const* b = hot; b != a; ++b) EXPECT_NE(way_hash(*a), way_hash(*b));
  }
}

// Several spans' blocks; what is freed makes all but one of the spans empty.
std::vector<char*> take_many() {
  std::vector<char*> p(3000);
  for (char*& q : p) q = take(128);
  return p;
}
size_t count_apart(const std::vector<char*>& p, ptrdiff_t apart) {
  size_t n = 0;
  for (size_t i = 1; i < p.size(); ++i) n += p[i] - p[i - 1] == apart ? 1 : 0;
  return n;
}
void expect_distinct(std::vector<char*> p) {
  std::sort(p.begin(), p.end());
  EXPECT_EQ(std::adjacent_find(p.begin(), p.end()), p.end());
}

TEST(Allocator, TakesBlocksThatWereFreedInOrderAsTheyAre) {
  std::vector<char*> p = take_many();
  std::sort(p.begin(), p.end());
  for (int round = 0; round < 3; ++round) {
    for (char* q : p) deallocate(q);
    p = take_many();  // the last freed first
    expect_distinct(p);
    EXPECT_GT(count_apart(p, round % 2 == 0 ? -128 : 128), p.size() * 8 / 10) << round;
  }
  for (char* q : p) deallocate(q);
}

TEST(Allocator, MakesBlocksThatWereFreedInNoOrderAnew) {
  std::vector<char*> p = take_many();
  for (int round = 0; round < 3; ++round) {
    for (size_t i = p.size() - 1; i > 0; --i) std::swap(p[i], p[i * 2654435761u % (i + 1)]);
    for (char* q : p) deallocate(q);
    p = take_many();
    expect_distinct(p);
    EXPECT_GT(count_apart(p, 128), p.size() / 2) << round;
  }
  for (char* q : p) deallocate(q);
}

TEST(Allocator, GrowsByHugePagesForBlocksOfHalfAMibWhereThereIsMuch) {
  std::vector<char*> blocks = {take(16 * kMib)};
  for (const uint32_t before = g_range.committed; g_range.committed == before;) {
    ASSERT_LT(blocks.size(), 100'000u);
    blocks.push_back(take(kMib / 2));
  }
  const uint32_t last = g_range.committed / kHugePages - 1;
  EXPECT_TRUE(g_range.huge[last / 64] >> (last % 64) & 1);
  for (char* p : blocks) deallocate(p);
}

TEST(Allocator, KeepsErrnoWhenItFrees) {
  void* p = take(80 * kMib);
  void* q = take(100);
  errno = 77;
  deallocate(p);
  deallocate(q);
  purge();
  EXPECT_EQ(errno, 77);
}

TEST(Allocator, TakesTheSmallestExtentThatFits) {
  release_parked();
  char* a = take(8 * kMib);
  char* wall_a = take(kMib);
  char* b = take(4 * kMib);
  char* wall_b = take(kMib);
  deallocate(a);
  deallocate(b);
  release_parked();
  char* again = take(4 * kMib);
  EXPECT_EQ(again, b);
  for (char* p : {again, wall_a, wall_b}) deallocate(p);
}

TEST(Allocator, LeavesTheDestinationOfAMoveThatFailedUsable) {
  constexpr size_t kBytes = size_t{8} * 4096;
  char* const from = static_cast<char*>(os_map(kBytes));
  char* const to = static_cast<char*>(os_map(kBytes));
  ASSERT_TRUE(from != nullptr && to != nullptr);
  ASSERT_EQ(munmap(from, 4096), 0);
  EXPECT_FALSE(os_move(from, to, kBytes));
  std::memset(to, 1, kBytes);
}

TEST(Allocator, JoinsDirtyAndCleanNeighboursAmongManyExtents) {
  purge();
  // Walls keep the small holes apart: together they would be larger than what is wanted.
  std::vector<char*> walls, holes;
  for (int i = 0; i < 300; ++i) {
    holes.push_back(take(kMib));
    walls.push_back(take(100'000));
  }
  char* const whole = take(200 * kMib);
  walls.push_back(take(100'000));
  for (char* p : holes) deallocate(p);
  deallocate(whole);
  purge();
  char* const half = take(100 * kMib);
  EXPECT_EQ(half, whole);
  deallocate(half);
  release_parked();
  EXPECT_EQ(take(200 * kMib), whole);
  EXPECT_EQ(g_page_heap.check(), nullptr);
  for (char* p : walls) deallocate(p);
  deallocate(whole);
  EXPECT_EQ(g_page_heap.check(), nullptr);
}

TEST(Allocator, TakesOnlyWhatIsMissingFromCleanPages) {
  for (const bool clean_first : {true, false}) {
    purge();
    char* const lower = take(8 * kMib);
    char* const upper = take(8 * kMib);
    char* const wall = take(kMib);
    char* const clean = take(16 * kMib);  // would hold it all, of pages that are all to be cleared
    char* const end = take(kMib);
    char* const dirty = clean_first ? upper : lower;
    deallocate(clean_first ? lower : upper);
    deallocate(clean);
    purge();
    deallocate(dirty);
    release_parked();
    char* const p = take(12 * kMib);
    EXPECT_EQ(p, clean_first ? upper - 4 * kMib : lower);
    EXPECT_EQ(totals().cached_bytes, 0u);
    EXPECT_EQ(g_page_heap.check(), nullptr);
    for (char* block : {p, wall, end}) deallocate(block);
    release_parked();
    EXPECT_EQ(g_page_heap.check(), nullptr);
  }
}

TEST(Allocator, UsesFewBlocksInTurnsWhereTheyAreBig) {
  for (const size_t bytes : {size_t{6000}, size_t{22'000}, size_t{53'000}}) {
    purge();
    std::set<char*> used;
    for (int i = 0; i < 1000; ++i) {
      char *a = take(bytes), *b = take(bytes);
      used.insert({a, b});
      deallocate(i % 2 == 0 ? a : b);
      deallocate(i % 2 == 0 ? b : a);
    }
    EXPECT_LE(used.size() * bytes, 2 * bytes + 16384);
  }
}

const Span* span_of(const void* p) {
  uintptr_t offset = 0;
  EXPECT_TRUE(in_range(p, offset));
  return span_at(offset);
}

TEST(Allocator, MakesAsManyBlocksAgainWhereThereIsMemoryBehindThem) {
  constexpr size_t kBytes = 40960;
  purge();
  const auto fill = [](bool warm) {
    std::vector<char*> p;
    std::vector<uint32_t> made;
    do {
      p.push_back(take(kBytes));
      const Span* s = span_of(p.back());
      ASSERT_EQ(s, span_of(p.front()));
      EXPECT_EQ(s->warm, warm);
      if (made.empty() || made.back() != s->carved) made.push_back(s->carved);
    } while (made.back() < 16);
    const std::vector<uint32_t> few = {1, 2, 3, 4, 6, 9, 13, 17}, doubled = {1, 2, 4, 8, 16};
    EXPECT_EQ(made, warm ? doubled : few);
    for (char* q : p) deallocate(q);
  };
  std::thread([&] { fill(false); }).join();
  trim_caches();  // its span is free, and its memory still there
  std::thread([&] { fill(true); }).join();
}

TEST(Allocator, HandsBlocksOfOthersOverBySixteenKibOrManyAtOneTime) {
  for (const uint32_t bytes : {16u, 1024u}) {
    const uint32_t together = bytes == 16 ? 256 : 16;
    std::vector<char*> p;
    while (p.size() < together || span_of(p.back()) != span_of(p[p.size() - together])) {
      p.push_back(take(bytes));
    }
    const Span* s = span_of(p.back());
    std::thread([&, at = p.end() - together] {
      for (uint32_t i = 1; i < together; ++i) deallocate(at[i]);
      EXPECT_EQ(s->remote.load(), 0u) << bytes;
      deallocate(*at);
      EXPECT_EQ(RemoteList{s->remote.load()}.count(), together) << bytes;
    }).join();
    p.resize(p.size() - together);
    for (char* q : p) deallocate(q);
  }
}

// The owner's lock may be held by a fork, whose child goes on with the slots as they are.
TEST(Allocator, HandsBlocksOfOthersOverOnlyOnceThoughItWaitsForTheOwner) {
  constexpr uint32_t kTogether = 16;
  std::vector<char*> p;
  const auto from_one_span = [&] {
    const Span* s = span_of(p.back());
    return s == span_of(p[p.size() - kTogether]) && s->remote.load() == 0;
  };
  do {
    p.push_back(take(1024));
  } while (p.size() < kTogether || !from_one_span());
  const Span* s = span_of(p.back());
  Cache* const owner = s->owner.load();
  std::atomic<const Cache*> other{nullptr};
  std::atomic<bool> locked{false};
  std::thread thread([&, at = p.end() - kTogether] {
    deallocate(allocate(1));  // it has a cache, for which it needs locks
    other = t_cache;
    locked.wait(false);
    for (uint32_t i = 0; i < kTogether; ++i) deallocate(at[i]);
  });
  while (other == nullptr) std::this_thread::yield();
  owner->lock.lock();
  locked = true;
  locked.notify_one();
  while (s->remote.load(std::memory_order_acquire) == 0) std::this_thread::yield();
  for (const RemoteSlot& slot : other.load()->slots) EXPECT_NE(slot.span, s);
  owner->lock.unlock();
  thread.join();
  EXPECT_EQ(RemoteList{s->remote.load()}.count(), kTogether);
  p.resize(p.size() - kTogether);
  for (char* q : p) deallocate(q);
}

TEST(Allocator, FreesAsItsOwnWhatTheThreadBeforeLeftToIt) {
  char* p = nullptr;
  std::thread([&] { p = take(700); }).join();
  const Span* s = span_of(p);
  const uint32_t before = s->in_use();
  std::thread([&] {
    deallocate(p);  // the thread's first call: it has no cache yet
    EXPECT_EQ(s->in_use(), before - 1);
  }).join();
}

TEST(Allocator, GivesASpanBackWhenOthersFreedAllOfIt) {
  const size_t before = totals().in_use_bytes;
  std::vector<void*> blocks(100'000);
  for (void*& p : blocks) p = allocate(1000);
  // This thread only sleeps while the other frees.
  std::thread([&] {
    for (void* p : blocks) deallocate(p);
  }).join();
  EXPECT_LT(totals().in_use_bytes, before + 3 * kMib);
  EXPECT_EQ(g_page_heap.check(), nullptr);
}

TEST(Allocator, LeavesAnEndedThreadsBlocksUsableAndItsCacheToTheNext) {
  deallocate(allocate(1));  // this thread has a cache of its own
  std::vector<char*> blocks(5000);
  std::thread([&] {
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i] = take(16 + i % 600);
      *blocks[i] = static_cast<char>(i);
    }
  }).join();
  const unsigned caches = totals().caches;
  for (size_t i = 0; i < blocks.size(); ++i) {
    ASSERT_EQ(*blocks[i], static_cast<char>(i));
    deallocate(blocks[i]);
  }
  for (int i = 0; i < 20; ++i) std::thread([] { deallocate(allocate(50)); }).join();
  EXPECT_EQ(totals().caches, caches);
}

TEST(Allocator, KeepsWhatAnEndedThreadHadForTheNextAndGivesItBackWhenNoneComes) {
  purge();
  const size_t before = totals().in_use_bytes;
  const auto churn = [] {
    std::vector<char*> blocks;
    for (size_t size = 16; size <= 60'000; size += size / 3) blocks.push_back(take(size));
    for (char* p : blocks) deallocate(p);
  };
  std::thread(churn).join();
  const size_t kept = totals().in_use_bytes;
  EXPECT_GT(kept, before);
  std::thread(churn).join();
  EXPECT_EQ(totals().in_use_bytes, kept) << "the second thread had its own spans";
  idle_tick(1);
  EXPECT_EQ(totals().in_use_bytes, before);
  EXPECT_EQ(g_page_heap.check(), nullptr);
}

TEST(Allocator, GivesIdleMemoryBackAfterTheWindowButNotBefore) {
  purge();
  uint64_t now = 1'000'000'000'000;
  for (int i = 0; i < 20; ++i) idle_tick(now += idle_window_ns() / 8);
  std::vector<char*> blocks(100);
  char* const low = take(100 * kMib);
  std::memset(low, 1, 100 * kMib);
  deallocate(low);
  idle_tick(now += idle_window_ns() / 8);
  const size_t cached = totals().cached_bytes;
  EXPECT_GE(cached, 100 * kMib);
  EXPECT_GE(resident_pages(low, 100 * kMib), 25'000u);
  for (int i = 0; i < 8; ++i) idle_tick(now += idle_window_ns() / 8);
  EXPECT_LE(totals().cached_bytes, 5 * kMib);
  EXPECT_LE(resident_pages(low, 100 * kMib), 1280u);
  EXPECT_EQ(g_page_heap.check(), nullptr);
}

TEST(Allocator, PurgesEverythingThatIsFree) {
  std::vector<char*> blocks(200);
  for (char*& p : blocks) std::memset(p = take(kMib), 1, kMib);
  for (char* p : blocks) deallocate(p);
  purge();
  EXPECT_EQ(totals().cached_bytes, 0u);
  size_t resident = 0;
  for (char* p : blocks) resident += resident_pages(p, kMib);
  EXPECT_EQ(resident, 0u);
}

}  // namespace
}  // namespace flatout::malloc
