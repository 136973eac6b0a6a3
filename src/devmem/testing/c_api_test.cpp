// libflatout_devmem.so as programs and PyTorch call it, over the stand-in libcuda: many threads and
// streams, several devices, logical devices, what is said of mistakes.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "flatout/devmem.h"

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

template <class Function>
Function* of_libcuda(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(library != nullptr ? ::dlsym(library, name) : nullptr);
}
auto* const fake_used = of_libcuda<uint64_t(int)>("fakeUsed");
auto* const fake_launch = of_libcuda<void(void*)>("fakeLaunch");
auto* const fake_finish = of_libcuda<void(void*)>("fakeFinish");
auto* const fake_queued = of_libcuda<uint64_t(void*)>("fakeQueued");
auto* const fake_done = of_libcuda<uint64_t(void*)>("fakeDone");
auto* const fake_accessible = of_libcuda<int(uint64_t, size_t, int)>("fakeAccessible");
auto* const fake_take = of_libcuda<int(int, uint64_t)>("fakeTake");
auto* const fake_give = of_libcuda<void(int, uint64_t)>("fakeGive");

/// Each test in a process of its own: what stands in for a framework's allocator is the process's.
class CApi : public testing::Test {
 protected:
  void SetUp() override {
    if (fake_used == nullptr) GTEST_SKIP() << "needs the stand-in libcuda";
  }
  static void* new_stream() {
    of_libcuda<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context(), 0);
    of_libcuda<int(void*)>("cuCtxSetCurrent")(context());
    void* stream = nullptr;
    of_libcuda<int(void**, unsigned)>("cuStreamCreate")(&stream, 1);
    return stream;
  }
  static void*& context() {
    static void* context = nullptr;
    return context;
  }
  static flatout_devmem_stats stats(int device, int index = 0) {
    flatout_devmem_stats out = {};
    flatout_devmem_get_stats(flatout_devmem_pool_of(device, index), &out, sizeof out);
    return out;
  }
};

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Sixteen threads on two devices, each with streams of its own and blocks that others use, too.
// No two live blocks overlap, all of them are accessible from their device, and none is handed out
// before the streams that used it are done with it.
TEST_F(CApi, ThreadsAndStreamsNeverGetWhatIsInUse) {
  struct Use {
    void* stream;
    uint64_t after;
  };
  struct Block {
    uint64_t size;
    void* stream;
    std::vector<Use> uses;
  };
  std::mutex mutex;
  std::map<uint64_t, Block> live[2], freed[2];
  std::vector<void*> streams;
  streams.reserve(8);
  for (int i = 0; i < 8; ++i) streams.push_back(new_stream());
  std::atomic<int> wrong{0}, refused{0};
  ASSERT_EQ(flatout_devmem_configure("arena", "60MiB"), 0) << flatout_devmem_error();

  const auto work = [&](int thread) {
    std::mt19937_64 random(static_cast<uint64_t>(thread));
    const int device = thread % 2;
    std::vector<uint64_t> mine;
    for (int i = 0; i < 1500; ++i) {
      void* const stream = streams[random() % streams.size()];
      if (random() % 16 == 0) fake_finish(stream);
      if (random() % 5 < 2 && !mine.empty()) {
        std::swap(mine[random() % mine.size()], mine.back());
        const uint64_t at = mine.back();
        mine.pop_back();
        Block block;
        {
          const std::lock_guard lock(mutex);
          block = std::move(live[device].extract(at).mapped());
          for (Use& use : block.uses) use.after = fake_queued(use.stream);
          // From here on it may be handed out to another thread.
          freed[device][at] = block;
        }
        flatout_devmem_free(reinterpret_cast<void*>(at), block.size, device, block.stream);
        continue;
      }
      const uint64_t size = 1 + random() % (uint64_t{1} << (9 + random() % 14));
      void* const got = flatout_devmem_alloc(size, device, stream);
      if (got == nullptr) {
        ++refused;
        continue;
      }
      const uint64_t at = address_of(got), end = at + size;
      Block block{size, stream, {{stream, 0}}};
      const std::lock_guard lock(mutex);
      auto next = live[device].lower_bound(at);
      if (next != live[device].end() && next->first < end) ++wrong;
      if (next != live[device].begin() &&
          std::prev(next)->first + std::prev(next)->second.size > at)
        ++wrong;
      if (at % 256 != 0 || fake_accessible(at, size, device) == 0) ++wrong;
      for (auto it = freed[device].begin(); it != freed[device].end() && it->first < end;) {
        if (it->first + it->second.size <= at) {
          ++it;
          continue;
        }
        for (const Use& use : it->second.uses)
          if (use.stream != stream && fake_done(use.stream) < use.after) ++wrong;
        it = freed[device].erase(it);
      }
      fake_launch(stream);
      if (random() % 3 == 0) {
        void* const other = streams[random() % streams.size()];
        flatout_devmem_use_on(got, other);
        fake_launch(other);
        block.uses.push_back({other, 0});
      }
      live[device][at] = std::move(block);
      mine.push_back(at);
    }
    for (const uint64_t at : mine) {
      Block block;
      {
        const std::lock_guard lock(mutex);
        block = std::move(live[device].extract(at).mapped());
      }
      flatout_devmem_free(reinterpret_cast<void*>(at), block.size, device, block.stream);
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(16);
  for (int t = 0; t < 16; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GT(refused.load(), 0) << "the limit was never met";
  flatout_devmem_empty_cache();
  for (const int device : {0, 1}) {
    EXPECT_EQ(stats(device).live, 0u);
    EXPECT_EQ(stats(device).waiting, 0u);
    EXPECT_EQ(stats(device).reserved, 0u);
    EXPECT_LE(stats(device).peak_reserved, 60 * kMiB);
    EXPECT_EQ(stats(device).allocations, stats(device).frees);
    EXPECT_EQ(fake_used(device), 64 * kMiB) << "the context alone";
  }
}

TEST_F(CApi, OutOfMemoryIsNullAndTheNextRequestIsServed) {
  void* const first = flatout_devmem_alloc(10'000 * kMiB, 0, nullptr);
  ASSERT_NE(first, nullptr) << flatout_devmem_error();
  EXPECT_EQ(flatout_devmem_alloc(10'000 * kMiB, 0, nullptr), nullptr);
  EXPECT_NE(std::string(flatout_devmem_error()).find("CUDA out of memory. Tried to allocate"),
            std::string::npos);
  EXPECT_NE(flatout_devmem_alloc(kMiB, 0, nullptr), nullptr);
  EXPECT_EQ(flatout_devmem_alloc(0, 0, nullptr), nullptr) << "no bytes are no memory";
  flatout_devmem_free(nullptr, 0, 0, nullptr);
  flatout_devmem_free(first, 10'000 * kMiB, 0, nullptr);
  EXPECT_NE(flatout_devmem_alloc(12'000 * kMiB, 0, nullptr), nullptr) << flatout_devmem_error();
}

TEST_F(CApi, WithoutPyTorchTheThrownErrorIsAStandardOneInTheSameWords) {
  try {
    flatout_devmem_alloc_or_throw(100'000 * kMiB, 0, nullptr);
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("CUDA out of memory. Tried to allocate"),
              std::string::npos);
  }
  EXPECT_NE(flatout_devmem_alloc_or_throw(kMiB, 0, nullptr), nullptr);
}

TEST_F(CApi, AnotherProcessThatFillsTheCardIsNamedByWhatIsFree) {
  ASSERT_TRUE(fake_take(0, 16'000 * kMiB));
  EXPECT_EQ(flatout_devmem_alloc(400 * kMiB, 0, nullptr), nullptr);
  EXPECT_NE(std::string(flatout_devmem_error()).find("of which 320 MiB is free"), std::string::npos)
      << flatout_devmem_error();
  fake_give(0, 16'000 * kMiB);
  EXPECT_NE(flatout_devmem_alloc(400 * kMiB, 0, nullptr), nullptr);
}

TEST_F(CApi, ADeviceThatIsNotThereIsNamedOnce) {
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(flatout_devmem_alloc(kMiB, 7, nullptr), nullptr);
  EXPECT_EQ(flatout_devmem_alloc(kMiB, -1, nullptr), nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("no CUDA device 7: this process sees 2"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
}

TEST_F(CApi, LogicalDevicesHaveMemoryOfTheirOwn) {
  ASSERT_EQ(flatout_devmem_configure(nullptr, "0=100MiB+300MiB"), 0) << flatout_devmem_error();
  void* const stream = new_stream();
  EXPECT_EQ(flatout_devmem_pools(0), 0) << "not before it is used";
  ASSERT_EQ(flatout_devmem_bind(0, stream, 1), 0) << flatout_devmem_error();
  EXPECT_EQ(flatout_devmem_pools(0), 2);
  EXPECT_EQ(flatout_devmem_alloc(200 * kMiB, 0, nullptr), nullptr);
  EXPECT_NE(std::string(flatout_devmem_error()).find("logical device 0"), std::string::npos);
  void* const large = flatout_devmem_alloc(200 * kMiB, 0, stream);
  ASSERT_NE(large, nullptr) << flatout_devmem_error();
  void* const small = flatout_devmem_alloc(60 * kMiB, 0, nullptr);
  ASSERT_NE(small, nullptr);
  EXPECT_EQ(stats(0, 0).live, 60 * kMiB);
  EXPECT_EQ(stats(0, 1).live, 200 * kMiB);
  EXPECT_EQ(stats(0, 1).limit, 300 * kMiB);
  flatout_devmem_free(large, 200 * kMiB, 0, stream);  // finds its own pool
  flatout_devmem_free(small, 60 * kMiB, 0, nullptr);
  EXPECT_EQ(stats(0, 0).live + stats(0, 1).live, 0u);
  EXPECT_NE(flatout_devmem_bind(0, stream, 2), 0);
  EXPECT_NE(std::string(flatout_devmem_error()).find("no logical device 2: it has 2"),
            std::string::npos);
  EXPECT_EQ(flatout_devmem_pool_of(0, 2), nullptr);
  void* const other = flatout_devmem_alloc(500 * kMiB, 1, nullptr);
  EXPECT_NE(other, nullptr) << "the limits are device 0's";
}

TEST_F(CApi, SettingsAreReadBeforeTheFirstRequestOnly) {
  EXPECT_NE(flatout_devmem_configure("tf_growth", nullptr), 0);
  EXPECT_NE(std::string(flatout_devmem_error()).find("takes no care of streams"),
            std::string::npos);
  EXPECT_NE(flatout_devmem_configure("best", nullptr), 0);
  EXPECT_NE(flatout_devmem_configure("arena", "0=lots"), 0);
  EXPECT_NE(std::string(flatout_devmem_error()).find("'lots' is neither a size"),
            std::string::npos);
  EXPECT_EQ(flatout_devmem_configure("torch", "50%"), 0);
  flatout_devmem_set_fraction(0.25, 1);
  ASSERT_NE(flatout_devmem_alloc(kMiB, 0, nullptr), nullptr);
  ASSERT_NE(flatout_devmem_alloc(kMiB, 1, nullptr), nullptr);
  EXPECT_EQ(stats(0).limit, 8192 * kMiB);
  EXPECT_EQ(stats(1).limit, 4096 * kMiB);
  EXPECT_NE(flatout_devmem_configure("arena", nullptr), 0);
  EXPECT_NE(std::string(flatout_devmem_error()).find("given out memory already"),
            std::string::npos);
}

TEST_F(CApi, LimitsBeyondTheCardAreNamed) {
  ASSERT_EQ(flatout_devmem_configure(nullptr, "0=10GiB+10GiB"), 0);
  EXPECT_EQ(flatout_devmem_alloc(kMiB, 0, nullptr), nullptr);
  EXPECT_NE(std::string(flatout_devmem_error()).find("add up to 20.0 GiB"), std::string::npos)
      << flatout_devmem_error();
}

TEST_F(CApi, AForkedProcessGetsNothingAndDoesNotHang) {
  void* const block = flatout_devmem_alloc(kMiB, 0, nullptr);
  ASSERT_NE(block, nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    flatout_devmem_free(block, kMiB, 0, nullptr);
    flatout_devmem_empty_cache();
    const bool ok = flatout_devmem_alloc(kMiB, 0, nullptr) == nullptr &&
                    std::string(flatout_devmem_error()).find("forked") != std::string::npos;
    ::_exit(ok ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(stats(0).live, kMiB);
}

TEST_F(CApi, TheEnvironmentRecordsAndNamesMistakes) {
  std::string folder = testing::TempDir() + "flatout-devmem-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ::setenv("FLATOUT_DEVMEM_RECORD", (folder + "/memory.jsonl").c_str(), 1);
  ::setenv("FLATOUT_DEVMEM_DEBUG", "1", 1);
  void* const block = flatout_devmem_alloc(3 * kMiB, 0, nullptr);
  ASSERT_NE(block, nullptr) << flatout_devmem_error();
  flatout_devmem_free(block, 3 * kMiB, 0, nullptr);
  testing::internal::CaptureStderr();
  flatout_devmem_free(block, 3 * kMiB, 0, nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("double free of"), std::string::npos) << said;
  EXPECT_NE(said.find("devmem_c_test"), std::string::npos) << "the caller's place: " << said;
  ASSERT_EQ(flatout_devmem_snapshot(flatout_devmem_pool_of(0, 0), (folder + "/now.jsonl").c_str()),
            0);
  EXPECT_TRUE(std::filesystem::exists(folder + "/memory.jsonl"));
  std::stringstream text;
  text << std::ifstream(folder + "/now.jsonl").rdbuf();
  EXPECT_NE(text.str().find("\"name\":\"GPU 0\""), std::string::npos) << text.str();
  EXPECT_NE(text.str().find("\"size\":3145728"), std::string::npos);
  EXPECT_NE(text.str().find("\"site\":"), std::string::npos);
  std::filesystem::remove_all(folder);
}

// ---- the C++ side ----

using flatout::devmem::Buffer;
using flatout::devmem::OutOfMemory;
using flatout::devmem::Pool;

TEST_F(CApi, APoolOfACardKeepsItsLimitAndGivesAllBack) {
  const uint64_t before = fake_used(0);
  {
    Pool pool({.limit_bytes = 64 * kMiB});
    void* const stream = new_stream();
    void* const block = pool.allocate(40 * kMiB, stream);
    EXPECT_TRUE(fake_accessible(address_of(block), 40 * kMiB, 0));
    EXPECT_THROW(pool.allocate(40 * kMiB, stream), OutOfMemory);
    EXPECT_EQ(pool.stats().refused, 1u);
    void* const other = new_stream();
    fake_launch(other);
    pool.record_stream(block, other);
    pool.deallocate(block, 40 * kMiB, stream);
    EXPECT_EQ(pool.stats().waiting, 40 * kMiB);
    EXPECT_THROW(pool.record_stream(block, other), std::invalid_argument);
    const Buffer buffer(pool, 40 * kMiB, stream);  // waits for the other stream
    EXPECT_EQ(buffer.data(), block);
  }
  EXPECT_EQ(fake_used(0), std::max(before, 64 * kMiB)) << "the context alone";
}

TEST(CppApi, APoolOfTheHostHasMemoryThatCanBeUsed) {
  Pool pool({.kind = FLATOUT_DEVMEM_HOST, .device = 3, .capacity_bytes = 256 * kMiB});
  auto* const numbers = static_cast<int*>(pool.allocate(kMiB));
  numbers[0] = 1;
  numbers[kMiB / sizeof(int) - 1] = 2;
  EXPECT_EQ(pool.stats().live, kMiB);
  Pool moved = std::move(pool);
  moved.deallocate(numbers, kMiB);
  moved.deallocate(nullptr, 0);
  EXPECT_EQ(moved.allocate(0), nullptr);
  moved.trim();
  EXPECT_EQ(moved.stats().reserved, 0u);
  EXPECT_EQ(moved.stats().peak_live, kMiB);
  moved.reset_peaks();
  EXPECT_EQ(moved.stats().peak_live, 0u);
  EXPECT_THROW(moved.snapshot("/nowhere/at/all"), std::runtime_error);
}

TEST(CppApi, WhatCannotBeOpenedSaysWhy) {
  try {
    Pool pool({.kind = FLATOUT_DEVMEM_SIMULATED, .device = 4, .policy = "tf_all"});
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("tf_all"), std::string::npos);
  }
  EXPECT_THROW(Pool({.kind = 9}), std::runtime_error);
}

TEST(CppApi, PoolsOfOneDeviceShareIt) {
  const flatout::devmem::Options half{.kind = FLATOUT_DEVMEM_SIMULATED,
                                      .device = 5,
                                      .limit_bytes = 64 * kMiB,
                                      .capacity_bytes = 128 * kMiB};
  Pool first(half), second(half);
  EXPECT_THROW(Pool{half}, std::runtime_error) << "the card is given away";
  void* const block = first.allocate(60 * kMiB);
  EXPECT_THROW(first.allocate(60 * kMiB), OutOfMemory);
  void* const other = second.allocate(60 * kMiB);
  EXPECT_NE(block, other);
  first.deallocate(block, 60 * kMiB);
  second.deallocate(other, 60 * kMiB);
}

}  // namespace
