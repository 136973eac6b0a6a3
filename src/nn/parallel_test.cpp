#include "nn/parallel.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace flatout::nn {
namespace {

// Each index is done once: their sum, and that of their squares.
bool runs_each_once(const Threads& threads) {
  std::vector<std::atomic<int>> times(1000);
  parallel_for(threads, 1000, [&](int64_t i) { ++times[static_cast<size_t>(i)]; });
  for (const auto& count : times) {
    if (count != 1) return false;
  }
  return true;
}

TEST(Parallel, EachIndexIsDoneOnceByAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 16, 4}) EXPECT_TRUE(runs_each_once({threads})) << threads;
}

TEST(Parallel, CallersFromSeveralThreadsDoNotWaitForEachOther) {
  std::vector<std::thread> callers;
  callers.reserve(4);
  std::atomic<int> good{0};
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int k = 0; k < 50; ++k) good += runs_each_once({3}) ? 1 : 0;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(good, 200);
}

TEST(Parallel, AChildOfForkHasThreadsOfItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no threads after fork";
#endif
  ASSERT_TRUE(runs_each_once({3}));
  const pid_t child = fork();
  if (child == 0) _exit(runs_each_once({3}) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Parallel, WhereNoThreadCanBeStartedTheCallerDoesItAll) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no threads after fork";
#endif
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{0, 0};
    // The limit does not hold for root.
    const bool limited =
        (geteuid() != 0 || setuid(65534) == 0) && setrlimit(RLIMIT_NPROC, &none) == 0;
    if (!limited) _exit(2);
    try {
      std::thread([] {}).join();
      _exit(2);
    } catch (const std::system_error&) {
    }
    _exit(runs_each_once({3}) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) {
    GTEST_SKIP() << "threads cannot be forbidden here";
  }
  EXPECT_EQ(status, 0);
}

int asked = 0;
void run_alone(int count, void (*task)(void*), void* data) {
  asked = count;
  task(data);
}

TEST(Parallel, TheCallersOwnThreadsAreUsed) {
  EXPECT_TRUE(runs_each_once({5, &run_alone}));
  EXPECT_EQ(asked, 5);
}

}  // namespace
}  // namespace flatout::nn
