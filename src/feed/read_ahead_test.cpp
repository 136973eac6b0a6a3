// Reading ahead by io_uring and by threads, and how many threads a pace needs.
#include "feed/read_ahead.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <numeric>

#include "feed/files.h"
#include "feed/ring.h"
#include "feed/start_thread.h"
#include "feed/testing/pictures.h"
#include "feed/thread_tuner.h"

namespace flatout::feed {
namespace {

using namespace std::chrono_literals;
using testing::TemporaryFolder;

TEST(Ring, ReadsWhatIsInAFileAndTellsWhatFails) {
  const auto ring = Ring::open(4);
  if (!ring.ok()) GTEST_SKIP() << ring.error().message;
  const TemporaryFolder folder;
  folder.write("a", {1, 2, 3, 4, 5});
  const std::string path = folder.path() + "/a", nothing = folder.path() + "/b";
  (*ring)->open_file(path.c_str(), 7);
  (*ring)->open_file(nothing.c_str(), 8);
  int fd = -1;
  for (int i = 0; i < 2; ++i) {
    const Ring::Done done = (*ring)->wait();
    EXPECT_TRUE(done.tag == 7 || done.result == -ENOENT);
    if (done.tag == 7) fd = done.result;
  }
  ASSERT_GE(fd, 0);
  std::vector<uint8_t> out(10);
  (*ring)->read(fd, 2, out, 9);
  const Ring::Done done = (*ring)->wait();
  EXPECT_EQ(done.tag, 9U);
  EXPECT_EQ(done.result, 3);
  EXPECT_EQ(out[0], 3);
  ::close(fd);
}

// Numbered files; every third does not exist but for a pipe, every fifth sample is in no file.
class Files : public Source {
 public:
  Files() {
    for (int i = 0; i < 100; ++i) {
      if (i % 3 != 0) folder.write(std::to_string(i), std::vector<uint8_t>(1000, 1));
    }
    folder.write("1", std::vector<uint8_t>(700'000, 1));  // several reads
    ::mkfifo((folder.path() + "/3").c_str(), 0600);
  }
  uint64_t count() const override { return 100; }
  std::string name(uint64_t index) const override { return std::to_string(index); }
  Result<Verdict> read(uint64_t, Sample&) const override { return Verdict{}; }
  bool extent(uint64_t index, Extent& out) const override {
    out = {folder.path() + "/" + std::to_string(index), index, index % 2 == 0 ? 100 : UINT64_MAX};
    return index % 5 != 0;
  }
  const std::vector<std::string>& classes() const override { return none; }
  const std::vector<BadSample>& damage() const override { return whole; }

  TemporaryFolder folder;
  std::vector<std::string> none;
  std::vector<BadSample> whole;
};

class ReadAheadOf : public ::testing::TestWithParam<ReadAhead::Way> {};

TEST_P(ReadAheadOf, BringsInWhatIsWantedAndEndsAmidIt) {
  const Files files;
  ReadAhead ahead(files, GetParam());
  EXPECT_EQ(ahead.state().way, "");
  std::vector<uint64_t> all(100);
  std::iota(all.begin(), all.end(), uint64_t{0});
  ahead.want(all);
  while (ahead.state().done < 80 || ahead.state().waiting > 0) std::this_thread::sleep_for(1ms);
  EXPECT_NE(ahead.state().way, "");
  EXPECT_TRUE(GetParam() == ReadAhead::Way::kBest || ahead.state().way == "threads");
  ahead.stop();
  EXPECT_EQ(ahead.state().threads, 0U);
  // Again, and ended while much is wanted.
  for (int i = 0; i < 50; ++i) ahead.want(all);
  EXPECT_GE(ahead.state().threads, 1U);
  EXPECT_LE(ahead.state().threads, ReadAhead::kMostThreads);
  ahead.stop();
  EXPECT_EQ(ahead.state().waiting, 0U);
}

INSTANTIATE_TEST_SUITE_P(Ways, ReadAheadOf,
                         ::testing::Values(ReadAhead::Way::kBest, ReadAhead::Way::kThreads));

// In a child, as its addresses are taken: each thread needs some for its stack.
TEST(StartThreadDeathTest, SaysWhenTheSystemAllowsNoMore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "lacks a limit on addresses";
#endif
  EXPECT_EXIT(
      {
        constexpr size_t kMany = 4096;
        std::vector<std::thread> threads;
        threads.reserve(kMany);
        rlimit limit{};
        ::getrlimit(RLIMIT_AS, &limit);
        limit.rlim_cur = size_t{1} << 30;
        ::setrlimit(RLIMIT_AS, &limit);
        while (threads.size() < kMany && start_thread(threads, "test", [] { ::pause(); })) continue;
        ::_exit(!threads.empty() && threads.size() < kMany ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

int threads_after(ThreadTuner& tuner, Nanos read, Nanos rest) {
  for (int i = 0; i < 2000; ++i) tuner.took(read, rest);
  return tuner.threads();
}

TEST(ThreadTuner, AddsThreadsForTheTimeThatReadsWaitAndTakesThemBack) {
  ThreadTuner tuner(4);
  EXPECT_EQ(tuner.threads(), 4);
  EXPECT_EQ(threads_after(tuner, 20us, 900us), 4);   // the page cache
  EXPECT_EQ(threads_after(tuner, 900us, 900us), 8);  // half of the time waits
  EXPECT_EQ(threads_after(tuner, 90ms, 900us), 16);  // there is an end
  EXPECT_EQ(threads_after(tuner, 20us, 900us), 4);
}

}  // namespace
}  // namespace flatout::feed
