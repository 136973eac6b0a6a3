#include "devmem/arena.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "devmem/sim_driver.h"

namespace flatout::devmem {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;

struct Hole {
  Address address = 0;
  Bytes size = 0, largest = 0;
  Hole *left = nullptr, *right = nullptr;
};

TEST(HoleTree, FindsTheLowestHoleThatFitsAsAPlainMapDoes) {
  std::mt19937_64 random(7);
  std::vector<Hole> holes(300);
  HoleTree<Hole> tree;
  std::map<Address, Hole*> plain;
  for (int i = 0; i < 20'000; ++i) {
    const size_t at = random() % holes.size();
    Hole& hole = holes[at];
    const Address begin = at * 1000 + random() % 400;
    const Bytes size = 1 + random() % 500;
    if (!tree.holds(&hole)) {
      hole = {begin, size, 0, nullptr, nullptr};
      tree.insert(&hole);
      plain[begin] = &hole;
    } else if (random() % 2 == 0) {
      plain.erase(hole.address);
      tree.resize(&hole, begin, size);
      plain[begin] = &hole;
    } else {
      plain.erase(hole.address);
      tree.erase(&hole);
    }
    const Bytes wanted = 1 + random() % 600;
    const Hole* lowest = nullptr;
    Bytes largest = 0;
    for (const auto& [address, each] : plain) {
      if (!lowest && each->size >= wanted) lowest = each;
      largest = std::max(largest, each->size);
    }
    ASSERT_EQ(tree.find(wanted), lowest);
    ASSERT_EQ(tree.largest(), largest);
  }
}

TEST(LiveChunks, KnowsWhatIsLiveAsAPlainMapDoes) {
  struct Chunk {
    Address address = 0;
    Bytes size = 0, requested = 0;
  };
  std::mt19937_64 random(7);
  LiveChunks<Chunk> live;
  std::map<Address, Chunk> plain;
  for (int i = 0; i < 50'000; ++i) {
    const Address address = random() % 700 * 256;
    const auto found = plain.find(address);
    const auto removed = found == plain.end() ? Result<Chunk*>(nullptr) : live.remove(address);
    if (found == plain.end()) {
      ASSERT_FALSE(live.remove(address).ok());
      Chunk& chunk = plain[address] = {address, 256, 0};
      ASSERT_EQ(live.add(&chunk, 200), address);
    } else {
      ASSERT_TRUE(removed.ok());
      ASSERT_EQ(*removed, &found->second);
      plain.erase(found);
    }
    ASSERT_EQ(live.stats(0).chunks, plain.size());
    ASSERT_EQ(live.allocated(), plain.size() * 256);
  }
}

// Whatever the step is: once nothing new is asked for, no views are made for ever either.
TEST(Arena, AStepThatRepeatsItselfComesToCostNoDriverCall) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SimDriver driver(Bytes{1} << 36);
    Arena arena(driver, driver.total_bytes());
    std::vector<Address> weights;
    weights.reserve(30);
    for (int i = 0; i < 30; ++i) weights.push_back(*arena.allocate(kMiB * (1 + i % 9) / 3, 0));
    uint64_t calls = 0;
    for (int step = 0; step < 30; ++step) {
      if (step == 25) calls = driver.calls();
      std::mt19937_64 random(seed);
      std::vector<Address> live;
      for (int i = 0; i < 400; ++i) {
        if (!live.empty() && random() % 100 < 45) {
          const size_t which = random() % live.size();
          ASSERT_TRUE(arena.free(live[which]).ok());
          live.erase(live.begin() + static_cast<ptrdiff_t>(which));
        } else {
          live.push_back(*arena.allocate(1 + random() % (Bytes{1} << (10 + random() % 14)),
                                         random() % 4 == 0 ? 1 : 0));
        }
      }
      for (const Address block : live) ASSERT_TRUE(arena.free(block).ok());
    }
    arena.check();
    EXPECT_EQ(driver.calls(), calls) << "seed " << seed;
  }
}

// Six pages of memory, of which blocks of 1.5 MiB leave the ends of pages free.
struct Fragments {
  SimDriver driver{Bytes{1} << 36};
  Arena arena{driver, driver.total_bytes()};
  std::vector<Address> blocks;
  Fragments() {
    for (int i = 0; i < 8; ++i) blocks.push_back(*arena.allocate(3 * kMiB / 2, 0));
  }
};

TEST(Arena, FreeEndsOfHandlesAndWholeOnesServeWhatNoHoleHolds) {
  Fragments f;
  const Bytes reserved = f.driver.used();
  ASSERT_EQ(reserved, 12 * kMiB);
  for (const int i : {1, 3, 6}) ASSERT_TRUE(f.arena.free(f.blocks[static_cast<size_t>(i)]).ok());
  ASSERT_EQ(f.arena.stats().largest_free, 3 * kMiB / 2);
  // Of pages they leave free the last 0.5 MiB and the first 1 (block 1), the last 1.5 (block 3),
  // the last 1 and the first 0.5 (block 6).
  const auto joined = f.arena.allocate(2 * kMiB, 0);
  ASSERT_TRUE(joined.ok());
  EXPECT_EQ(f.driver.used(), reserved) << "nothing new was asked for";
  EXPECT_TRUE(f.driver.accessible(*joined, 2 * kMiB));
  EXPECT_NE(f.driver.behind(*joined).first, f.driver.behind(*joined + 2 * kMiB - 1).first);
  f.arena.check();
  EXPECT_EQ(f.arena.stats().live, 5 * (3 * kMiB / 2) + 2 * kMiB);

  // Freed, its memory serves where it lies, and the same request by the same mappings.
  ASSERT_TRUE(f.arena.free(*joined).ok());
  EXPECT_EQ(f.arena.stats().largest_free, 3 * kMiB / 2);
  const uint64_t calls = f.driver.calls();
  EXPECT_EQ(*f.arena.allocate(2 * kMiB, 0), *joined);
  EXPECT_EQ(f.driver.calls(), calls);
  ASSERT_TRUE(f.arena.free(*joined).ok());
  const auto inside = f.arena.allocate(3 * kMiB / 2, 0);
  EXPECT_EQ(*inside, f.blocks[1]) << "the lowest hole";
  EXPECT_EQ(f.driver.calls(), calls);
  f.arena.check();

  // A view whose memory is needed elsewhere is no longer one; trimming gives its addresses back.
  for (const size_t i : {0, 2, 4, 5, 7}) ASSERT_TRUE(f.arena.free(f.blocks[i]).ok());
  ASSERT_TRUE(f.arena.free(*inside).ok());
  f.arena.trim();
  f.arena.check();
  EXPECT_EQ(f.driver.used(), 0u);
}

TEST(Arena, OnlyWhatIsMissingIsAskedFor) {
  Fragments f;
  const Bytes reserved = f.driver.used();
  for (const size_t i : {1, 3}) ASSERT_TRUE(f.arena.free(f.blocks[i]).ok());
  // The last 1.5 MiB of one page and the first 1 of another: 5 MiB are missing, of 8 behind a hole.
  const auto joined = f.arena.allocate(7 * kMiB + kMiB / 2, 0);
  ASSERT_TRUE(joined.ok());
  EXPECT_EQ(f.driver.used(), reserved + 6 * kMiB);
  EXPECT_TRUE(f.driver.accessible(*joined, 7 * kMiB + kMiB / 2));
  f.arena.check();
}

TEST(Arena, FreeEndsOfHandlesServeBeforeWholeOnes) {
  SimDriver driver;
  Arena arena(driver, driver.total_bytes());
  std::vector<Address> blocks;
  for (const Bytes size : {4, 3, 3, 3, 3}) blocks.push_back(*arena.allocate(size * kMiB / 2, 0));
  ASSERT_EQ(driver.used(), 8 * kMiB);
  // Idle are a page, the last 0.5 MiB of one and the first 1 of the next, the last 1.5 of another.
  for (const size_t i : {0, 2, 4}) ASSERT_TRUE(arena.free(blocks[i]).ok());
  ASSERT_TRUE(arena.allocate(9 * kMiB / 4, 0).ok());
  EXPECT_EQ(driver.used(), 8 * kMiB);
  EXPECT_EQ(arena.stats().largest_free, 2 * kMiB) << "the page is left";
  arena.check();
}

TEST(Arena, SmallBlocksKeepNoPageThatLargeOnesLeave) {
  SimDriver driver;
  Arena arena(driver, driver.total_bytes());
  ASSERT_TRUE(arena.allocate(kMiB / 8, 0).ok());
  std::vector<Address> large;
  for (int i = 0; i < 8; ++i) {
    large.push_back(*arena.allocate(2 * kMiB - 4096, 0));
    ASSERT_TRUE(arena.allocate(4096, 0).ok());
  }
  const Bytes reserved = driver.used();
  EXPECT_EQ(reserved, 18 * kMiB);
  for (const Address block : large) ASSERT_TRUE(arena.free(block).ok());
  ASSERT_TRUE(arena.allocate(15 * kMiB, 0).ok());
  EXPECT_EQ(driver.used(), reserved);
  // Where one half has no hole the other serves.
  ASSERT_TRUE(arena.allocate(3 * kMiB / 2, 0).ok());
  EXPECT_EQ(driver.used(), reserved);
  arena.check();
}

// Of eight pages every second lies idle.
struct EverySecondPage {
  SimDriver driver{64 * kMiB};
  Arena arena{driver, driver.total_bytes()};
  EverySecondPage() {
    std::vector<Address> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(*arena.allocate(2 * kMiB, 0));
    for (size_t i = 0; i < 8; i += 2) EXPECT_TRUE(arena.free(blocks[i]).ok());
  }
};

TEST(Arena, AViewServesWhateverFitsInWhatIsFreeOfIt) {
  EverySecondPage f;
  const Address joined = *f.arena.allocate(8 * kMiB, 0);
  ASSERT_TRUE(f.arena.free(joined).ok());
  const uint64_t calls = f.driver.calls();
  // Its pages are the last, the third, the second and the first; the third is taken.
  std::vector<Address> pages;
  for (int i = 0; i < 3; ++i) pages.push_back(*f.arena.allocate(2 * kMiB, 0));
  for (const size_t i : {0, 1}) ASSERT_TRUE(f.arena.free(pages[i]).ok());
  const Address part = *f.arena.allocate(4 * kMiB, 0);
  EXPECT_EQ(part, joined + 4 * kMiB);
  EXPECT_TRUE(f.driver.accessible(part, 4 * kMiB));
  f.arena.check();
  ASSERT_TRUE(f.arena.free(part).ok());
  ASSERT_TRUE(f.arena.free(pages[2]).ok());
  EXPECT_EQ(*f.arena.allocate(8 * kMiB, 0), joined);
  EXPECT_EQ(f.driver.calls(), calls);
  f.arena.check();
}

TEST(Arena, TrimmingLeavesALiveViewOnlyWhatItsBlockUses) {
  EverySecondPage f;
  const Address joined = *f.arena.allocate(8 * kMiB, 0);
  ASSERT_TRUE(f.arena.free(joined).ok());
  // Of the view's four pages the first is taken, and a block uses the next two.
  std::vector<Address> pages;
  for (int i = 0; i < 4; ++i) pages.push_back(*f.arena.allocate(2 * kMiB, 0));
  for (const size_t i : {0, 1, 2}) ASSERT_TRUE(f.arena.free(pages[i]).ok());
  const Address part = *f.arena.allocate(4 * kMiB, 0);
  EXPECT_EQ(part, joined + 2 * kMiB);
  ASSERT_TRUE(f.arena.free(pages[3]).ok());
  f.arena.trim();
  f.arena.check();
  EXPECT_EQ(f.driver.used(), 12 * kMiB);
  EXPECT_TRUE(f.driver.accessible(part, 4 * kMiB));
  // It goes on as a view of that size.
  ASSERT_TRUE(f.arena.free(part).ok());
  const uint64_t calls = f.driver.calls();
  EXPECT_EQ(*f.arena.allocate(4 * kMiB, 0), part);
  EXPECT_EQ(f.driver.calls(), calls);
  ASSERT_TRUE(f.arena.free(part).ok());
  f.arena.trim();
  f.arena.check();
  EXPECT_EQ(f.driver.used(), 8 * kMiB);
}

// A view begins with the end of a handle and ends with the begin of the same.
TEST(Arena, AViewThatMapsAHandleTwiceServesSmallerRequests) {
  SimDriver driver;
  Arena arena(driver, driver.total_bytes());
  std::vector<Address> blocks;
  for (const Bytes size : {4, 1, 2, 1, 4}) blocks.push_back(*arena.allocate(size * kMiB / 2, 0));
  for (const size_t i : {0, 1, 3}) ASSERT_TRUE(arena.free(blocks[i]).ok());
  const Address joined = *arena.allocate(3 * kMiB, 0);
  EXPECT_EQ(driver.used(), 6 * kMiB);
  EXPECT_EQ(driver.behind(joined).first, driver.behind(joined + 3 * kMiB - 1).first);
  ASSERT_TRUE(arena.free(joined).ok());
  const uint64_t calls = driver.calls();
  EXPECT_EQ(*arena.allocate(11 * kMiB / 4, 0), joined);
  EXPECT_EQ(driver.calls(), calls);
  arena.check();
}

TEST(Arena, AHandleThatIsLargeEnoughAloneIsNotJoinedWithASmallerOne) {
  SimDriver driver;
  Arena arena(driver, driver.total_bytes());
  ASSERT_TRUE(arena.free(*arena.allocate(48 * kMiB, 0)).ok());
  ASSERT_EQ(driver.calls(Call::kCreate), 8u);
  // Eight handles of 6 MiB and two of 2. Idle are the last 1.5 MiB of the first, the first 1.5 of
  // the third, the fourth, and the first small one.
  std::vector<Address> blocks;
  for (const Bytes size : {9, 3, 12, 3, 9, 12, 12, 12, 12, 12, 4, 4})
    blocks.push_back(*arena.allocate(size * kMiB / 2, 0));
  ASSERT_EQ(driver.used(), 52 * kMiB);
  for (const size_t i : {1, 3, 5, 10}) ASSERT_TRUE(arena.free(blocks[i]).ok());
  ASSERT_TRUE(arena.allocate(7 * kMiB, 0).ok());
  EXPECT_EQ(driver.used(), 52 * kMiB);
  EXPECT_EQ(arena.stats().largest_free, 2 * kMiB) << "the small one is left";
  arena.check();
}

TEST(Arena, WhatOtherStreamsFreedIsTakenFromTheHalfForTheSizeFirst) {
  SimDriver driver;
  Arena arena(driver, driver.total_bytes());
  const Address small = *arena.allocate(4096, 2);
  ASSERT_TRUE(arena.free(*arena.allocate(2 * kMiB, 1)).ok());
  EXPECT_EQ(*arena.allocate(4096, 0), small + 4096);
  EXPECT_EQ(driver.used(), 4 * kMiB);
  arena.check();
}

// Two of 32 handles are idle, again others each time.
TEST(Arena, EachPageThatWasAskedForGivesCreditForViews) {
  SimDriver driver;
  Arena arena(driver, driver.total_bytes());
  const Bytes size = 16 * kMiB;
  ASSERT_TRUE(arena.free(*arena.allocate(32 * size, 0)).ok());
  ASSERT_EQ(driver.calls(Call::kCreate), 32u);
  std::vector<Address> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(*arena.allocate(size, 0));
  for (size_t i = 0; i < 10; ++i) {
    for (size_t j = i + 2; j < 22; ++j) {
      for (const size_t k : {i, j}) ASSERT_TRUE(arena.free(blocks[k]).ok());
      ASSERT_TRUE(arena.free(*arena.allocate(2 * size, 0)).ok());
      for (const size_t k : {i, j}) blocks[k] = *arena.allocate(size, 0);
    }
  }
  EXPECT_EQ(driver.used(), 32 * size);
  arena.check();
}

TEST(Arena, AFullDeviceJoinsWhateverLiesIdle) {
  SimDriver driver(64 * kMiB);
  Arena arena(driver, driver.total_bytes());
  std::vector<Address> blocks;
  blocks.reserve(32);
  for (int i = 0; i < 32; ++i) blocks.push_back(*arena.allocate(2 * kMiB, i % 2));
  for (size_t i = 0; i < blocks.size(); i += 2) ASSERT_TRUE(arena.free(blocks[i]).ok());
  const auto whole = arena.allocate(32 * kMiB, 0);
  ASSERT_TRUE(whole.ok()) << "sixteen pages lie idle, none beside another";
  EXPECT_TRUE(driver.accessible(*whole, 32 * kMiB));
  arena.check();
}

// Holes of 3 MiB between live blocks of one: each has a page of its own, and no handle that is
// larger is idle as a whole.
TEST(Arena, AFullDeviceJoinsWhatLiesBetweenLiveBlocks) {
  SimDriver driver(256 * kMiB);
  Arena arena(driver, driver.total_bytes());
  ASSERT_TRUE(arena.free(*arena.allocate(64 * kMiB, 0)).ok());
  std::vector<Address> holes;
  for (int i = 0; i < 16; ++i) {
    ASSERT_TRUE(arena.allocate(kMiB, 0).ok());
    holes.push_back(*arena.allocate(3 * kMiB, 0));
  }
  ASSERT_TRUE(arena.allocate(192 * kMiB, 0).ok());
  for (const Address hole : holes) ASSERT_TRUE(arena.free(hole).ok());
  ASSERT_EQ(driver.free_bytes(), 0u);
  const auto joined = arena.allocate(32 * kMiB, 0);
  ASSERT_TRUE(joined.ok()) << "16 pages lie idle";
  EXPECT_TRUE(driver.accessible(*joined, 32 * kMiB));
  arena.check();
}

TEST(Arena, HandlesAreSmallOnlyWhereLittleIsLeft) {
  const auto creates = [](Bytes capacity, Bytes limit, Bytes size) {
    SimDriver driver(capacity);
    Arena arena(driver, limit);
    EXPECT_TRUE(arena.allocate(size, 0).ok());
    return driver.calls(Call::kCreate);
  };
  const Bytes all = SimDriver::kUnlimited;
  EXPECT_EQ(creates(all, all, 64 * kMiB), 8u) << "an eighth of the request each";
  EXPECT_EQ(creates(all, all, 1024 * kMiB), 64u) << "16 MiB at most";
  SimDriver large;
  Arena arena(large, all);
  ASSERT_TRUE(arena.allocate(32 * 1024 * kMiB, 0).ok());
  const uint64_t before = large.calls(Call::kCreate);
  ASSERT_TRUE(arena.allocate(1024 * kMiB, 0).ok());
  EXPECT_EQ(large.calls(Call::kCreate) - before, 16u) << "or a 512th of what there is";
  EXPECT_EQ(creates(1100 * kMiB, all, 1024 * kMiB), 512u);
  EXPECT_EQ(creates(all, 1100 * kMiB, 1024 * kMiB), 512u) << "a limit is the same";
}

// Work that was queued before a block was freed goes on at its addresses.
TEST(Arena, NothingIsUnmappedWhileWorkMayUseIt) {
  struct Watched : SimDriver {
    using SimDriver::SimDriver;
    std::vector<Event> queued;
    uint64_t unmapped = 0;
    void unmap(Address address) override {
      ++unmapped;
      for (const Event event : queued) EXPECT_TRUE(is_done(event));
      SimDriver::unmap(address);
    }
  };
  for (const bool captured : {false, true}) {
    Watched driver(64 * kMiB);
    Arena arena(driver, driver.total_bytes());
    std::vector<Address> blocks;
    for (int i = 0; i < 32; ++i) blocks.push_back(*arena.allocate(2 * kMiB, i % 2));
    for (size_t i = 0; i < blocks.size(); i += 2) ASSERT_TRUE(arena.free(blocks[i]).ok());
    const auto joined = arena.allocate(8 * kMiB, 0);
    ASSERT_TRUE(joined.ok());
    for (const Stream stream : {0, 1}) {
      driver.launch(stream);
      driver.queued.push_back(driver.record(stream));
    }
    ASSERT_TRUE(arena.free(*joined).ok());
    if (captured) driver.begin_capture(1);
    arena.trim();
    arena.check();
    EXPECT_EQ(driver.unmapped > 0, !captured) << "who is captured must not be waited for";
    if (captured) driver.end_capture(1);
    for (const Stream stream : {0, 1}) driver.finish(stream);
  }
}

// On a full device views are made however often it takes, and do not pile up.
TEST(Arena, ViewsThatNobodyUsesAreGivenUp) {
  SimDriver driver(64 * kMiB);
  Arena arena(driver, driver.total_bytes());
  std::vector<Address> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(*arena.allocate(2 * kMiB, 0));
  for (size_t i = 0; i < blocks.size(); i += 2) ASSERT_TRUE(arena.free(blocks[i]).ok());
  for (Bytes i = 0; i < 1000; ++i) {
    const auto joined = arena.allocate(4 * kMiB + 256 * (i + 1), 0);
    ASSERT_TRUE(joined.ok());
    ASSERT_TRUE(arena.free(*joined).ok());
  }
  arena.check();
  const uint64_t mapped = driver.calls(Call::kMap) - driver.calls(Call::kUnmap);
  EXPECT_LT(mapped, 32u * 20);
}

}  // namespace
}  // namespace flatout::devmem
