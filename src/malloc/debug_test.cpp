// What the debug build finds, and that it says so: ctest runs this program with
// libflatout_malloc_debug.so in LD_PRELOAD.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

extern "C" void* __libc_malloc(size_t);

namespace {

// Through volatile pointers, so that the compiler does not reason about what it knows of malloc.
void* (*volatile v_malloc)(size_t) = malloc;
void (*volatile v_free)(void*) = free;
void* (*volatile v_realloc)(void*, size_t) = realloc;
void* (*volatile v_memalign)(size_t, size_t) = memalign;

void store(void* p, size_t at) { static_cast<volatile char*>(p)[at] = 'x'; }
char load(void* p, size_t at) { return static_cast<volatile char*>(p)[at]; }

constexpr size_t kSizes[] = {1, 16, 100, 5000, 60'000, 70'000, 5'000'000};

// As functions, so that a report can name them.
extern "C" __attribute__((noinline)) void* debug_test_allocates(size_t size) {
  void* p = v_malloc(size);
  asm volatile("" ::: "memory");
  return p;
}
extern "C" __attribute__((noinline)) void debug_test_frees(void* p) {
  v_free(p);
  asm volatile("" ::: "memory");
}

TEST(DebugDeathTest, NamesADoubleFree) {
  for (const size_t size : kSizes) {
    EXPECT_EXIT(
        {
          void* p = debug_test_allocates(size);
          debug_test_frees(p);
          v_free(p);
        },
        testing::KilledBySignal(SIGABRT),
        "freed twice: 0x[0-9a-f]+, block of " + std::to_string(size) +
            " bytes.*freed at.*allocated at")
        << size;
  }
}

TEST(DebugDeathTest, NamesWhoAllocatedAndFreed) {
  EXPECT_EXIT(
      {
        void* p = debug_test_allocates(100);
        debug_test_frees(p);
        debug_test_frees(p);
      },
      testing::KilledBySignal(SIGABRT),
      "freed at.*debug_test_frees.*allocated at.*debug_test_allocates");
}

TEST(DebugDeathTest, NamesAnInteriorFree) {
  for (const size_t size : kSizes) {
    if (size < 100) continue;
    for (const size_t inside : {size_t{8}, size_t{16}, size_t{64}}) {
      EXPECT_EXIT(v_free(static_cast<char*>(v_malloc(size)) + inside),
                  testing::KilledBySignal(SIGABRT), "not the start of a block")
          << size;
    }
  }
}

TEST(DebugDeathTest, NamesAWriteBeyondTheBlock) {
  for (const size_t size : kSizes) {
    if (size > 60'000) continue;  // see below
    EXPECT_EXIT(
        {
          void* p = debug_test_allocates(size);
          store(p, size);
          v_free(p);
        },
        testing::KilledBySignal(SIGABRT), "written beyond the block.*allocated at")
        << size;
  }
}

TEST(DebugDeathTest, StopsTheReadBeyondALargeBlockWhereItHappens) {
  for (const size_t size : {size_t{65'536}, size_t{5'000'000}}) {
    EXPECT_EXIT(load(v_malloc(size), size), testing::KilledBySignal(SIGSEGV),
                "used beyond the block.*block of " + std::to_string(size))
        << size;
  }
}

TEST(DebugDeathTest, NamesAWriteBeforeTheBlock) {
  EXPECT_EXIT(
      {
        auto* p = static_cast<char*>(v_malloc(100));
        store(p - 1, 0);
        v_free(p);
      },
      testing::KilledBySignal(SIGABRT), "written before the block");
}

TEST(DebugDeathTest, StopsTheUseOfALargeBlockThatWasFreed) {
  for (const size_t at : {size_t{100'000}, size_t{4'999'999}}) {
    EXPECT_EXIT(
        {
          void* p = debug_test_allocates(5'000'000);
          debug_test_frees(p);
          load(p, at);
        },
        testing::KilledBySignal(SIGSEGV),
        "used after it was freed.*freed at.*debug_test_frees.*allocated at.*debug_test_allocates");
  }
}

TEST(DebugDeathTest, NamesAWriteToWhatWasFreedOnceItLeavesTheQuarantine) {
  EXPECT_EXIT(
      {
        void* p = debug_test_allocates(1000);
        debug_test_frees(p);
        store(p, 500);
        for (int i = 0; i < 3000; ++i) v_free(v_malloc(60'000));  // 180 MB through 64 MB
      },
      testing::KilledBySignal(SIGABRT), "written after it was freed.*debug_test_frees");
}

TEST(DebugDeathTest, NamesItAtTheEndOfTheProcessAtTheLatest) {
  EXPECT_EXIT(
      {
        void* p = v_malloc(1000);
        v_free(p);
        store(p, 500);
        std::exit(0);
      },
      testing::KilledBySignal(SIGABRT), "written after it was freed");
}

// The file is made within malloc, which is no place for a thread to be cancelled at.
TEST(DebugDeathTest, ARecordedRequestIsNoPlaceToBeCancelledAt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the program anew: the library reads these
  const std::string path = testing::TempDir() + "cancelled." + std::to_string(::getpid());
  ::setenv("FLATOUT_MALLOC_RECORD", path.c_str(), 1);
  ::setenv("FLATOUT_MALLOC_RECORD_LEAST", "10000000", 1);  // of the thread's request alone
  EXPECT_EXIT(
      {
        static bool passed = false;
        pthread_t thread;
        const auto cancelled = [](void*) -> void* {
          pthread_cancel(pthread_self());
          v_free(v_malloc(20'000'000));
          passed = true;
          pthread_testcancel();
          return nullptr;
        };
        void* result = nullptr;
        if (pthread_create(&thread, nullptr, cancelled, nullptr) == 0) {
          pthread_join(thread, &result);
        }
        ::_exit(passed && result == PTHREAD_CANCELED ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
  ::unsetenv("FLATOUT_MALLOC_RECORD");
  ::unsetenv("FLATOUT_MALLOC_RECORD_LEAST");
  EXPECT_EQ(::unlink(path.c_str()), 0);  // the request was recorded
}

TEST(Debug, FreshMemoryIsNotZero) {
  auto* p = static_cast<unsigned char*>(v_malloc(1000));
  EXPECT_TRUE(std::all_of(p, p + 1000, [](unsigned char c) { return c == 0xcb; }));
  EXPECT_EQ(malloc_usable_size(p), 1000u);
  v_free(p);
}

TEST(Debug, FreedMemoryIsNotReusedAtOnce) {
  void* p = v_malloc(1000);
  v_free(p);
  for (int i = 0; i < 1000; ++i) {
    void* q = v_malloc(1000);
    EXPECT_NE(p, q);
    v_free(q);
  }
}

TEST(Debug, WhatIsRightIsLeftAlone) {
  const auto work = [] {
    std::vector<void*> kept(64);
    for (unsigned i = 0; i < 20'000; ++i) {
      void*& p = kept[size_t{i} * 7 % kept.size()];
      const size_t size = i % 100 == 0 ? 100'000 : i * 37 % 3000;
      if (i % 5 == 0 && p != nullptr) {
        p = v_realloc(p, size + 1);
      } else {
        v_free(p);
        p = i % 7 == 0 ? v_memalign(size_t{8} << (i % 12), size) : v_malloc(size);
      }
      std::memset(p, 1, size);
    }
    for (void* p : kept) v_free(p);
  };
  std::thread other(work);
  work();
  other.join();
}

TEST(Debug, PointersOfOthersGoToWhereTheyCameFrom) {
  void* p = __libc_malloc(1000);
  EXPECT_GE(malloc_usable_size(p), 1000u);
  p = v_realloc(p, 5000);
  v_free(p);
  v_free(__libc_malloc(200'000));
}

TEST(Debug, IsTheLibraryInUse) {
  Dl_info info{};
  ASSERT_NE(dladdr(dlsym(RTLD_DEFAULT, "malloc"), &info), 0);
  EXPECT_NE(std::string(info.dli_fname).find("libflatout_malloc_debug.so"), std::string::npos);
}

}  // namespace
