// What the C library's allocation functions promise, asked of libflatout_malloc.so: ctest runs this
// program with it in LD_PRELOAD. The cases are those of the conformance suites of glibc, mimalloc,
// snmalloc and gperftools, in our own words.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "flatout/malloc.h"

extern "C" {
void* __libc_malloc(size_t);
void* __libc_memalign(size_t, size_t);
void free_sized(void*, size_t) __attribute__((weak));
void free_aligned_sized(void*, size_t, size_t) __attribute__((weak));
void cfree(void*) __attribute__((weak));
}

namespace {

// Through volatile pointers, so that the compiler does not reason about what it knows of malloc.
void* (*volatile v_malloc)(size_t) = malloc;
void (*volatile v_free)(void*) = free;
void* (*volatile v_calloc)(size_t, size_t) = calloc;
void* (*volatile v_realloc)(void*, size_t) = realloc;
void* (*volatile v_reallocarray)(void*, size_t, size_t) = reallocarray;
size_t (*volatile v_usable)(void*) = malloc_usable_size;

bool aligned(const void* p, size_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }

TEST(Surface, IsOurs) {
  for (const char* name : {"malloc",
                           "free",
                           "calloc",
                           "realloc",
                           "reallocarray",
                           "memalign",
                           "aligned_alloc",
                           "posix_memalign",
                           "valloc",
                           "pvalloc",
                           "malloc_usable_size",
                           "malloc_trim",
                           "mallinfo",
                           "mallinfo2",
                           "mallopt",
                           "malloc_stats",
                           "malloc_info",
                           "cfree",
                           "free_sized",
                           "free_aligned_sized",
                           "_Znwm",
                           "_Znam",
                           "_ZnwmRKSt9nothrow_t",
                           "_ZnamRKSt9nothrow_t",
                           "_ZnwmSt11align_val_t",
                           "_ZnamSt11align_val_t",
                           "_ZnwmSt11align_val_tRKSt9nothrow_t",
                           "_ZnamSt11align_val_tRKSt9nothrow_t",
                           "_ZdlPv",
                           "_ZdaPv",
                           "_ZdlPvm",
                           "_ZdaPvm",
                           "_ZdlPvRKSt9nothrow_t",
                           "_ZdaPvRKSt9nothrow_t",
                           "_ZdlPvSt11align_val_t",
                           "_ZdaPvSt11align_val_t",
                           "_ZdlPvmSt11align_val_t",
                           "_ZdaPvmSt11align_val_t",
                           "_ZdlPvSt11align_val_tRKSt9nothrow_t",
                           "_ZdaPvSt11align_val_tRKSt9nothrow_t"}) {
    void* at = dlsym(RTLD_DEFAULT, name);
    ASSERT_NE(at, nullptr) << name;
    Dl_info info{};
    ASSERT_NE(dladdr(at, &info), 0) << name;
    EXPECT_NE(std::string(info.dli_fname).find("libflatout_malloc.so"), std::string::npos) << name;
  }
}

TEST(Surface, MallocOfNothingIsABlock) {
  void* p = v_malloc(0);
  void* q = v_malloc(0);
  EXPECT_NE(p, nullptr);
  EXPECT_NE(p, q);
  v_free(p);
  v_free(q);
  v_free(nullptr);
  EXPECT_NE(p = v_calloc(0, 10), nullptr);
  v_free(p);
}

TEST(Surface, BlocksAreAlignedForWhatFits) {
  for (size_t size = 1; size < 4000; ++size) {
    void* p = v_malloc(size);
    EXPECT_TRUE(aligned(p, size >= 16 ? 16 : 8)) << size;
    EXPECT_GE(v_usable(p), size);
    std::memset(p, 0xff, v_usable(p));
    v_free(p);
  }
}

TEST(Surface, TooMuchIsENOMEM) {
  const auto fails = [](auto call) {
    errno = 0;
    void* p = call();
    EXPECT_EQ(p, nullptr);
    EXPECT_EQ(errno, ENOMEM);
    v_free(p);
  };
  for (const size_t size :
       {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 4096, SIZE_MAX / 2, SIZE_MAX / 2 + 1}) {
    fails([&] { return v_malloc(size); });
    fails([&] { return v_calloc(1, size); });
    fails([&] { return v_realloc(nullptr, size); });
    fails([&] { return aligned_alloc(64, size); });
    fails([&] { return memalign(4096, size); });
    fails([&] { return valloc(size); });
    fails([&] { return pvalloc(size); });
    fails([&] { return ::operator new(size, std::nothrow); });
  }
  fails([] { return v_calloc(SIZE_MAX / 16 + 1, 16); });
  fails([] { return v_calloc(16, SIZE_MAX / 16 + 1); });
  fails([] { return v_reallocarray(nullptr, SIZE_MAX / 2, 3); });
  void* p = v_malloc(10);
  std::memcpy(p, "123456789", 10);
  fails([&] { return v_realloc(p, SIZE_MAX / 2 + 1); });
  fails([&] { return v_reallocarray(p, SIZE_MAX, SIZE_MAX); });
  EXPECT_STREQ(static_cast<char*>(p), "123456789");
  v_free(p);
}

// A program that tries whether so much can be had must not be ended for it when it uses it.
TEST(Surface, MoreThanTheKernelWouldMapIsENOMEM) {
  unsigned refused = 0;
  for (size_t size = size_t{1} << 32; size <= size_t{1} << 41; size *= 2) {
    void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped != MAP_FAILED) {
      munmap(mapped, size);
      continue;
    }
    ++refused;
    errno = 0;
    EXPECT_EQ(v_malloc(size), nullptr) << size;
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(v_calloc(1, size), nullptr) << size;
    EXPECT_EQ(memalign(4096, size), nullptr) << size;
    void* p = v_malloc(100);
    EXPECT_EQ(v_realloc(p, size), nullptr) << size;
    v_free(p);
  }
  if (refused == 0) GTEST_SKIP() << "the kernel maps whatever is asked for";
}

// Neither malloc nor free is a place to be cancelled at: it would end with a lock held.
TEST(Surface, AllocatingIsNoPlaceToBeCancelledAt) {
  static bool passed;
  passed = false;
  pthread_t thread;
  const auto cancelled = [](void*) -> void* {
    pthread_cancel(pthread_self());
    v_free(v_malloc(size_t{1} << 41));  // asks the kernel how much may be had
    static char nobodys[256];
    v_free(nobodys + 16);
    void* block = v_malloc(100 << 10);
    v_free(static_cast<char*>(block) + 64);  // says so, on standard error
    v_free(block);
    passed = true;
    pthread_testcancel();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, cancelled, nullptr), 0);
  void* result = nullptr;
  pthread_join(thread, &result);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_TRUE(passed);
}

TEST(Surface, CallocClears) {
  for (const size_t size : {1, 100, 5000, 70'000, 3'000'000, 40'000'000}) {
    for (int i = 0; i < 3; ++i) {
      auto* p = static_cast<unsigned char*>(v_calloc(size, 1));
      EXPECT_TRUE(std::all_of(p, p + size, [](unsigned char c) { return c == 0; })) << size;
      std::memset(p, 0xa5, size);
      v_free(p);
    }
  }
}

TEST(Surface, ReallocIsMallocCopyFree) {
  char* p = static_cast<char*>(v_realloc(nullptr, 5));
  std::memcpy(p, "abcd", 5);
  for (const size_t size : {6, 60, 600, 6000, 60'000, 600'000, 6'000'000, 60'000'000, 600, 6}) {
    p = static_cast<char*>(v_realloc(p, size));
    ASSERT_NE(p, nullptr);
    EXPECT_STREQ(p, "abcd") << size;
    EXPECT_GE(v_usable(p), size);
  }
  EXPECT_EQ(v_realloc(p, 0), nullptr);
}

TEST(Surface, AlignedFunctionsCheckAndAlign) {
  void* p = reinterpret_cast<void*>(1);
  for (const size_t bad : {0, 1, 2, 4, 3, 12, 24}) {
    EXPECT_EQ(posix_memalign(&p, bad, 10), EINVAL) << bad;
    EXPECT_EQ(p, reinterpret_cast<void*>(1));
  }
  errno = 55;
  EXPECT_EQ(posix_memalign(&p, 16, SIZE_MAX), ENOMEM);
  EXPECT_EQ(errno, 55);  // by its result only
  for (size_t a = 8; a <= 1 << 21; a *= 2) {
    for (const size_t size : {0, 1, 100, 10'000, 1'000'000}) {
      ASSERT_EQ(posix_memalign(&p, a, size), 0);
      EXPECT_TRUE(aligned(p, a));
      std::memset(p, 1, size);
      p = v_realloc(p, size + 50);
      v_free(p);
      p = aligned_alloc(a, size);
      EXPECT_TRUE(aligned(p, a));
      if (free_aligned_sized != nullptr) free_aligned_sized(p, a, size);
      p = memalign(a, size);
      EXPECT_TRUE(aligned(p, a));
      v_free(p);
    }
  }
  const volatile size_t odd = 24;  // rounded up, as glibc does
  EXPECT_TRUE(aligned(p = aligned_alloc(odd, 48), 32));
  v_free(p);
  EXPECT_TRUE(aligned(p = memalign(odd, 48), 32));
  v_free(p);
  EXPECT_TRUE(aligned(p = valloc(10), 4096));
  v_free(p);
  EXPECT_TRUE(aligned(p = pvalloc(5000), 4096));
  EXPECT_GE(v_usable(p), 8192u);
  v_free(p);
}

TEST(Surface, UsableSizeOfNothingIsZero) { EXPECT_EQ(v_usable(nullptr), 0u); }

TEST(Surface, OtherWaysToFree) {
  void* p = v_malloc(100);
  ASSERT_NE(free_sized, nullptr);
  free_sized(p, 100);
  if (cfree != nullptr) cfree(v_malloc(10));
}

TEST(Surface, InformationIsPlausible) {
  std::vector<void*> p(100);
  for (void*& q : p) std::memset(q = v_malloc(100'000), 1, 100'000);
  EXPECT_GE(mallinfo2().uordblks, 10'000'000u);
  for (void* q : p) v_free(q);
  malloc_trim(0);
  EXPECT_LT(mallinfo2().fordblks, 1'000'000u);
  EXPECT_EQ(mallopt(M_MMAP_THRESHOLD, 1 << 20), 1);
  char* text = nullptr;
  size_t size = 0;
  FILE* f = open_memstream(&text, &size);
  EXPECT_EQ(malloc_info(0, f), 0);
  EXPECT_EQ(malloc_info(1, f), -1);
  fclose(f);
  EXPECT_EQ(std::string(text).rfind("<malloc", 0), 0u);
  v_free(text);
}

TEST(Surface, NewThrowsAndAsksItsHandler) {
  EXPECT_THROW(v_free(::operator new(SIZE_MAX / 2)), std::bad_alloc);
  EXPECT_THROW(v_free(::operator new (SIZE_MAX / 2, std::align_val_t{64})), std::bad_alloc);
  static int asked = 0;
  std::set_new_handler([] {
    if (++asked == 3) std::set_new_handler(nullptr);
  });
  EXPECT_THROW(v_free(::operator new[](SIZE_MAX / 2)), std::bad_alloc);
  EXPECT_EQ(asked, 3);
  struct alignas(256) Wide {
    char c[300];
  };
  auto* w = new Wide[3];
  EXPECT_TRUE(aligned(w, 256));
  delete[] w;
}

TEST(Surface, PointersOfOthersGoToWhereTheyCameFrom) {
  for (const size_t size : {20, 2000, 200'000, 20'000'000}) {
    auto* p = static_cast<char*>(__libc_malloc(size));
    EXPECT_GE(v_usable(p), size);
    std::memset(p, 7, size);
    p = static_cast<char*>(v_realloc(p, size * 2));
    EXPECT_TRUE(std::all_of(p, p + size, [](char c) { return c == 7; }));
    v_free(p);
    v_free(__libc_malloc(size));
    v_free(__libc_memalign(4096, size));
  }
  std::thread([] {  // of another arena
    for (const size_t size : {20, 2000, 100'000}) v_free(__libc_malloc(size));
  })
      .join();
}

alignas(64) char g_static[256];

TEST(Surface, WhatNobodyAllocatedIsLeftAlone) {
  alignas(64) char stack[256] = "stack";
  auto* mapped = static_cast<char*>(
      mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (char* p : {g_static + 64, stack + 64, mapped, mapped + 4096 + 16, g_static + 3}) {
    v_free(p);
    EXPECT_EQ(v_usable(p), 0u);
    errno = 0;
    EXPECT_EQ(v_realloc(p, 100), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_STREQ(stack, "stack");
  munmap(mapped, 65536);
}

TEST(Surface, SurvivesForkWhileThreadsAllocate) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&stop, t] {
      std::vector<void*> p(100);
      for (unsigned i = 0; !stop; ++i) {
        void*& q = p[size_t{i} * 7 % p.size()];
        v_free(q);
        q = v_malloc(i % 50 < 4 ? 1'000'000 >> i % 50 : (i * 37 + static_cast<unsigned>(t)) % 3000);
      }
      for (void* q : p) v_free(q);
    });
  }
  const char* wanted = getenv("FLATOUT_MALLOC_FORKS");
  const int forks = wanted != nullptr ? atoi(wanted) : 50;
  int bad = 0;
  for (int i = 0; i < forks; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(20);
      for (size_t k = 0; k < 300; ++k) v_free(v_malloc(k * 301));
      std::thread([] {
        for (size_t k = 0; k < 300; ++k) v_free(v_malloc(k * 301));
      }).join();
      const pid_t grandchild = i % 10 == 0 ? fork() : -1;
      if (grandchild == 0) {
        v_free(v_malloc(100));
        _exit(0);
      }
      if (grandchild > 0) waitpid(grandchild, nullptr, 0);
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    bad += status != 0 ? 1 : 0;
  }
  stop = true;
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(bad, 0);
}

pthread_key_t g_key;

TEST(Surface, DestructorsOfThreadDataMayAllocate) {
  pthread_key_create(&g_key, [](void* p) {
    v_free(p);
    v_free(v_malloc(500));
    static thread_local int rounds = 0;
    if (++rounds < 4) pthread_setspecific(g_key, v_malloc(100));
  });
  for (int i = 0; i < 50; ++i) {
    std::thread([] { pthread_setspecific(g_key, v_malloc(100)); }).join();
  }
  pthread_key_delete(g_key);
}

TEST(Surface, StatisticsAndPurgeOfTheHeader) {
  ASSERT_NE(flatout_malloc_get_stats, nullptr);
  flatout_malloc_stats s{};
  EXPECT_EQ(flatout_malloc_get_stats(nullptr, 8), EINVAL);
  void* p = v_malloc(10'000'000);
  EXPECT_EQ(flatout_malloc_get_stats(&s, sizeof s), 0);
  EXPECT_GE(s.in_use_bytes, 10'000'000u);
  EXPECT_GE(s.window_ns, 2'000'000'000u);
  std::memset(p, 1, 10'000'000);
  v_free(p);
  EXPECT_GE(flatout_malloc_purge(), 9'000'000u);
}

// What is sampled stands for all: the estimate is near the truth, and says who allocated.
__attribute__((noinline)) void* planted(size_t size) {
  void* p = v_malloc(size);
  asm volatile("" ::: "memory");
  return p;
}

TEST(Surface, TheHeapProfileNamesWhoAllocated) {
  flatout_malloc_set_sampling(64 << 10);
  std::vector<void*> kept(1'000'000);
  // What is freed at once is sampled in its own right, not in that of what stays.
  for (size_t i = 0; i < kept.size(); ++i) {
    kept[i] = planted(200);
    if (i % 5 == 0) v_free(v_malloc(20'000));
  }
  for (int i = 0; i < 1'000'000; ++i) v_free(v_malloc(200));
  const std::string path = testing::TempDir() + "flatout_heap_" + std::to_string(getpid());
  EXPECT_EQ(flatout_malloc_heap_dump(path.c_str()), 0);
  flatout_malloc_set_sampling(0);
  FILE* f = fopen(path.c_str(), "r");
  ASSERT_NE(f, nullptr);
  unsigned long live_count = 0, live_bytes = 0, total_count = 0, total_bytes = 0;
  ASSERT_EQ(fscanf(f, "heap profile: %lu: %lu [%lu: %lu] @ heap_v2/1", &live_count, &live_bytes,
                   &total_count, &total_bytes),
            4);
  fclose(f);
  unlink(path.c_str());
  // 200 MB in samples of at least 64 KiB and at most 1 MiB, as they come fast: six standard
  // deviations of 190 are 44 %.
  EXPECT_GT(live_count, 1'000'000u * 0.56);
  EXPECT_LT(live_count, 1'000'000u * 1.44);
  EXPECT_GT(total_count, live_count + 1'000'000u * 0.56);
  for (void* p : kept) v_free(p);
  EXPECT_EQ(flatout_malloc_heap_dump("/nonexistent/x"), ENOENT);
}

// Where there is little room for addresses the range is small, and a program runs all the same.
TEST(Surface, RunsWhereAddressesAreFew) {
  if (access("/bin/ls", X_OK) != 0) GTEST_SKIP() << "lacks /bin/ls";
  for (const rlim_t kib : {50'000, 80'000, 100'000, 150'000, 1'000'000}) {
    const pid_t child = fork();
    if (child == 0) {
      const rlimit limit{kib * 1024, kib * 1024};
      const int quiet = open("/dev/null", O_WRONLY);
      if (setrlimit(RLIMIT_AS, &limit) != 0 || dup2(quiet, STDOUT_FILENO) < 0) _exit(99);
      execl("/bin/ls", "ls", "/", nullptr);
      _exit(98);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "with " << kib << " KiB";
  }
}

// The child is this program again, with so few addresses from its start on: it runs that test.
void expect_with_addresses(size_t bytes, const std::string& test) {
  const std::string filter = "--gtest_filter=Surface." + test;
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(99);
    execl("/proc/self/exe", "malloc_surface_test", filter.c_str(), nullptr);
    _exit(98);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The half of a limit is to be had, not the next power of two below it.
TEST(Surface, HalfOfALimitOfAddressesIsForBlocks) {
  expect_with_addresses(size_t{300} << 20, "Gives140Mib");
}

TEST(Surface, Gives140Mib) {
  void* p = v_malloc(size_t{140} << 20);
  EXPECT_NE(p, nullptr);
  v_free(p);
}

// What spans have left untouched does not use up the few addresses there are: 14 MiB of blocks.
TEST(Surface, BlocksOfManySizesInManyThreadsFitIntoFewAddresses) {
  expect_with_addresses(size_t{300} << 20, "GivesAllSizesInTenThreads");
}

TEST(Surface, GivesAllSizesInTenThreads) {
  std::atomic<int> refused{0};
  std::barrier all_have(10);
  std::vector<std::thread> threads;
  for (int t = 0; t < 10; ++t) {
    threads.emplace_back([&] {
      std::vector<void*> blocks;
      for (size_t size = 8; size <= 65536; size += std::max<size_t>(8, size / 16)) {
        blocks.push_back(v_malloc(size));
        if (blocks.back() == nullptr) ++refused;
      }
      all_have.arrive_and_wait();
      for (void* p : blocks) v_free(p);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
}

}  // namespace
