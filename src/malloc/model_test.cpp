// Random operations against a model: every block keeps its contents, no two overlap, all promises
// of size and alignment hold. FLATOUT_MALLOC_OPERATIONS sets how many (24 million in the slow
// test).
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "malloc/allocator.h"
#include "malloc/page_heap.h"

namespace flatout::malloc {
namespace {

struct Held {
  unsigned char* at = nullptr;
  size_t bytes = 0;
  unsigned char fill = 0;
};

long operations() {
  const char* wanted = std::getenv("FLATOUT_MALLOC_OPERATIONS");
  return wanted != nullptr ? std::atol(wanted) : 200'000;
}

size_t random_size(std::mt19937_64& random) {
  const unsigned bits = random() % 22;  // up to 4 MiB, small ones as often as large ones
  const size_t size = random() % ((size_t{2} << bits));
  return bits > 18 && random() % 8 != 0 ? size >> 6 : size;
}

// First, last, and some bytes between.
void fill(Held& h, unsigned char value) {
  h.fill = value;
  std::memset(h.at, value, std::min<size_t>(h.bytes, 64));
  for (size_t i = 64; i < h.bytes; i += 4096) h.at[i] = value;
  if (h.bytes > 0) h.at[h.bytes - 1] = value;
}
bool intact(const Held& h, size_t bytes) {
  for (size_t i = 0; i < std::min<size_t>(bytes, 64); ++i) {
    if (h.at[i] != h.fill) return false;
  }
  for (size_t i = 64; i < bytes; i += 4096) {
    if (h.at[i] != h.fill) return false;
  }
  return bytes < h.bytes || bytes == 0 || h.at[bytes - 1] == h.fill;
}

// Blocks that one thread leaves for another to free.
struct Exchange {
  std::mutex lock;
  std::vector<Held> blocks;
};

::testing::AssertionResult play(uint64_t seed, long n, Exchange& exchange) {
  std::mt19937_64 random(seed);
  std::vector<Held> held(600);
  const auto bad = [&](const char* what, const Held& h) {
    return ::testing::AssertionFailure() << what << ", " << h.bytes << " bytes, seed " << seed;
  };
  for (long i = 0; i < n; ++i) {
    Held& h = held[random() % held.size()];
    if (h.at != nullptr) {
      if (!intact(h, h.bytes)) return bad("contents changed", h);
      const unsigned choice = random() % 8;
      if (choice < 2) {
        const size_t size = random_size(random) + 1;
        const size_t kept = std::min(size, h.bytes);
        auto* p = static_cast<unsigned char*>(reallocate(h.at, size));
        if (p == nullptr) return bad("reallocate failed", h);
        h.at = p;
        const size_t old = h.bytes;
        h.bytes = size;
        if (old <= size ? !intact({p, old, h.fill}, old) : !intact(h, kept > 1 ? kept - 1 : 0)) {
          return bad("reallocate changed the contents", h);
        }
        fill(h, static_cast<unsigned char>(random()));
        continue;
      }
      if (choice == 2) {
        const std::lock_guard hold(exchange.lock);
        exchange.blocks.push_back(h);
        h = {};
        continue;
      }
      deallocate(h.at);
      h = {};
      continue;
    }
    h.bytes = random_size(random);
    const unsigned choice = random() % 16;
    size_t alignment = h.bytes >= 16 ? 16 : 8;
    if (choice == 0) {
      alignment = size_t{1} << (3 + random() % 15);
      h.at = static_cast<unsigned char*>(allocate_aligned(alignment, h.bytes));
    } else if (choice < 4) {
      h.at = static_cast<unsigned char*>(allocate_zeroed(1, h.bytes));
      if (h.at != nullptr && !intact({h.at, h.bytes, 0}, h.bytes)) return bad("not cleared", h);
    } else {
      h.at = static_cast<unsigned char*>(allocate(h.bytes));
    }
    if (h.at == nullptr) return bad("no memory", h);
    if (reinterpret_cast<uintptr_t>(h.at) % alignment != 0) return bad("not aligned", h);
    if (usable_size(h.at) < h.bytes) return bad("usable size too small", h);
    h.bytes = random() % 4 == 0 ? usable_size(h.at) : h.bytes;
    fill(h, static_cast<unsigned char>(random()));
    // As many are taken as were left there, in the mean: else the exchange would hold them all.
    if (random() % 4 == 0) {
      Held other;
      {
        const std::lock_guard hold(exchange.lock);
        if (exchange.blocks.empty()) continue;
        std::swap(exchange.blocks[random() % exchange.blocks.size()], exchange.blocks.back());
        other = exchange.blocks.back();
        exchange.blocks.pop_back();
      }
      if (!intact(other, other.bytes)) return bad("contents changed on the way", other);
      deallocate(other.at);
    }
  }
  for (Held& h : held) {
    if (h.at != nullptr && !intact(h, h.bytes)) return bad("contents changed", h);
    deallocate(h.at);
  }
  return ::testing::AssertionSuccess();
}

void free_all(Exchange& exchange) {
  for (const Held& h : exchange.blocks) {
    EXPECT_TRUE(intact(h, h.bytes));
    deallocate(h.at);
  }
  exchange.blocks.clear();
}

TEST(Model, HoldsForOneThread) {
  Exchange exchange;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    ASSERT_TRUE(play(seed, operations() / 4, exchange));
    ASSERT_STREQ(g_page_heap.check(), nullptr);
  }
  free_all(exchange);
  purge();
  EXPECT_STREQ(g_page_heap.check(), nullptr);
}

TEST(Model, HoldsForThreadsThatFreeEachOthersBlocks) {
  Exchange exchange;
  for (int round = 0; round < 2; ++round) {  // the second round's threads take over the caches
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        EXPECT_TRUE(play(100 * static_cast<uint64_t>(round) + t, operations() / 8, exchange));
      });
    }
    std::thread purger([&] {
      while (!stop) purge();
    });
    for (std::thread& t : threads) t.join();
    stop = true;
    purger.join();
    ASSERT_STREQ(g_page_heap.check(), nullptr);
  }
  free_all(exchange);
  EXPECT_STREQ(g_page_heap.check(), nullptr);
}

}  // namespace
}  // namespace flatout::malloc
