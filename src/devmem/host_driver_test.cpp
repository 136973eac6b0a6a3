#include "devmem/host_driver.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "devmem/arena.h"

namespace flatout::devmem {
namespace {

TEST(HostDriver, TheArenaHandsOutMemoryThatKeepsWhatIsWritten) {
  HostDriver driver(Bytes{64} << 20);
  Arena arena(driver, driver.total_bytes());
  struct Block {
    Address at;
    Bytes size;
    unsigned char fill;
  };
  std::vector<Block> blocks;
  uint64_t random = 1;
  const auto check_and_free = [&](size_t i) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(blocks[i].at);
    for (Bytes k = 0; k < blocks[i].size; k += 509) ASSERT_EQ(bytes[k], blocks[i].fill);
    ASSERT_TRUE(arena.free(blocks[i].at).ok());
    blocks[i] = blocks.back();
    blocks.pop_back();
  };
  for (int round = 0; round < 400; ++round) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const Bytes size = 1 + (random >> 33) % (Bytes{3} << 20);
    const auto at = arena.allocate(size, 0);
    if (at.ok()) {
      blocks.push_back({*at, size, static_cast<unsigned char>(round)});
      std::memset(reinterpret_cast<void*>(*at), round, size);
      arena.check();
    }
    if (!at.ok() || random % 3 == 0) check_and_free((random >> 40) % blocks.size());
    EXPECT_LE(driver.used(), driver.total_bytes());
  }
  while (!blocks.empty()) check_and_free(0);
}

TEST(HostDriver, WhatIsWrittenByOneAddressIsReadByAnother) {
  HostDriver driver(Bytes{8} << 20);
  const Address range = *driver.reserve(3 * kPageBytes);
  const Handle handle = *driver.create(kPageBytes);
  for (const Bytes page : {0, 2}) {
    driver.map(range + page * kPageBytes, handle);
    driver.set_access(range + page * kPageBytes, kPageBytes);
  }
  auto* const bytes = reinterpret_cast<unsigned char*>(range);
  bytes[77] = 5;
  EXPECT_EQ(bytes[2 * kPageBytes + 77], 5);
  for (const Bytes page : {0, 2}) driver.unmap(range + page * kPageBytes);
  driver.release(handle);
}

TEST(HostDriver, SaysWhenItIsFull) {
  HostDriver driver(Bytes{8} << 20);
  EXPECT_EQ(driver.create(Bytes{16} << 20).error().code, Code::kFull);
  Arena arena(driver, driver.total_bytes());
  const auto most = arena.allocate(Bytes{6} << 20, 0);
  ASSERT_TRUE(most.ok());
  EXPECT_EQ(arena.allocate(Bytes{6} << 20, 0).error().code, Code::kFull);
  ASSERT_TRUE(arena.free(*most).ok());
  EXPECT_TRUE(arena.allocate(Bytes{6} << 20, 0).ok());
}

}  // namespace
}  // namespace flatout::devmem
