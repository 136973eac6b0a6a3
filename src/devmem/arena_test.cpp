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

// Whatever the step is: once nothing new is asked for, nothing is moved for ever either.
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

TEST(Arena, AFullDeviceMovesWhateverLiesIdle) {
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

}  // namespace
}  // namespace flatout::devmem
