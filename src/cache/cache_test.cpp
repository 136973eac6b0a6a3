#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cache/data_set.h"
#include "cache/warm.h"
#include "probe/testing/fake_tree.h"

namespace flatout::cache {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// On a file system with pages that can go: /dev/shm's cannot.
class CacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = FLATOUT_BUILD_DIR "/cache-test-XXXXXX";
    dir = ::mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(dir); }
  std::string write(const std::string& name, uint64_t bytes) const {
    std::string path = dir + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    const int fd = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    const std::string data(bytes, 'x');
    EXPECT_EQ(::write(fd, data.data(), data.size()), static_cast<ssize_t>(bytes));
    EXPECT_EQ(::fsync(fd), 0);
    ::close(fd);
    return path;
  }
  // False where the file system keeps its pages whatever is asked.
  bool cold(const std::vector<std::string>& files) const {
    return drop(files, true).after_bytes == 0;
  }
  std::string dir;
};

TEST_F(CacheTest, ListsFilesInOrderAndEachOnce) {
  write("b/2", 10);
  write("a/1", 10);
  write("a/3", 10);
  std::filesystem::create_hard_link(dir + "/a/1", dir + "/b/again");
  std::filesystem::create_symlink(dir, dir + "/a/link");
  ::mkfifo((dir + "/a/pipe").c_str(), 0600);
  const Listed listed = list_files({dir, dir + "/a/1"});
  EXPECT_EQ(listed.files, (std::vector<std::string>{dir + "/a/1", dir + "/a/3", dir + "/b/2"}));
  EXPECT_TRUE(listed.skipped.empty());
  EXPECT_FALSE(listed.lacks_named);
}

// As the cache of Hugging Face has it: the names are links into a store beside them.
TEST_F(CacheTest, GoesWhereTheLinksOfADataSetLead) {
  write("store/one", 10);
  write("store/more/two", 10);
  std::filesystem::create_directories(dir + "/set");
  std::filesystem::create_symlink("../store/one", dir + "/set/a");
  std::filesystem::create_symlink("../store/more", dir + "/set/b");
  std::filesystem::create_symlink("../store/one", dir + "/set/c");
  std::filesystem::create_symlink("nowhere", dir + "/set/d");
  std::filesystem::create_symlink("..", dir + "/store/more/up");
  const Listed listed = list_files({dir + "/set"});
  EXPECT_EQ(listed.files, (std::vector<std::string>{dir + "/set/a", dir + "/set/b/two"}));
  ASSERT_EQ(listed.skipped.size(), 1u);
  EXPECT_EQ(listed.skipped[0].reason, dir + "/set/d is a link that leads nowhere");
  EXPECT_FALSE(listed.lacks_named);
}

TEST_F(CacheTest, WhatIsNamedAndNoFileIsSkippedAndTheRestIsNot) {
  const std::string there = write("there", 10), pipe = dir + "/pipe", gone = dir + "/gone";
  ::mkfifo(pipe.c_str(), 0600);
  const Listed listed = list_files({pipe, gone, there});
  EXPECT_EQ(listed.files, std::vector{there});
  ASSERT_EQ(listed.skipped.size(), 2u);
  EXPECT_EQ(listed.skipped[0].reason, pipe + " is no regular file");
  EXPECT_EQ(listed.skipped[1].reason, "cannot look at " + gone + ": No such file or directory");
  EXPECT_TRUE(listed.lacks_named);
}

TEST_F(CacheTest, WarmsWhatIsColdAndDropsItAgain) {
  const std::string big = write("big", 8 * kMiB), small = write("small", 5000);
  const std::vector<std::string> files{big, small};
  if (!cold(files)) GTEST_SKIP() << "lacks a file system that lets pages go";
  const auto modified = std::filesystem::last_write_time(big);
  EXPECT_EQ(look_at(files, 0).cached_bytes, 0u);
  const Warmed warmed = warm(files, {});
  EXPECT_EQ(warmed.read_bytes, 8 * kMiB + 5000);
  EXPECT_FALSE(warmed.stopped);
  const DataSet set = look_at(files, 16);
  EXPECT_EQ(set.cached_bytes, 8 * kMiB + 5000);
  ASSERT_EQ(set.map.size(), 16u);
  for (const double part : set.map) EXPECT_NEAR(part, 1, 0.01);
  EXPECT_EQ(warm(files, {}).read_bytes, 0u);  // nothing is left to read
  const Dropped dropped = drop(files, false);
  EXPECT_EQ(dropped.before_bytes, 8 * kMiB + 5000);
  EXPECT_EQ(dropped.after_bytes, 0u);
  EXPECT_EQ(std::filesystem::last_write_time(big), modified);
  EXPECT_EQ(std::filesystem::file_size(big), 8 * kMiB);
}

TEST_F(CacheTest, StopsWhereTheRoomEnds) {
  const std::string big = write("big", 8 * kMiB);
  if (!cold({big})) GTEST_SKIP() << "lacks a file system that lets pages go";
  WarmOptions options;
  options.room = [] { return std::optional<uint64_t>(3 * kMiB); };
  const Warmed warmed = warm({big}, options);
  EXPECT_TRUE(warmed.stopped);
  EXPECT_LE(warmed.read_bytes, 3 * kMiB);
  EXPECT_GT(warmed.read_bytes, 0u);
}

TEST_F(CacheTest, MappedPagesStayAndAreTold) {
  const std::string kept = write("kept", 2 * kMiB);
  if (!cold({kept})) GTEST_SKIP() << "lacks a file system that lets pages go";
  const int fd = ::open(kept.c_str(), O_RDONLY);
  void* at = ::mmap(nullptr, 2 * kMiB, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  ASSERT_NE(at, MAP_FAILED);
  const Dropped dropped = drop({kept}, false);
  ::munmap(at, 2 * kMiB);
  ::close(fd);
  ASSERT_EQ(dropped.stayed.size(), 1u);
  EXPECT_FALSE(dropped.stayed[0].in_memory);
  EXPECT_EQ(dropped.stayed[0].cached_bytes, 2 * kMiB);
  EXPECT_EQ(dropped.after_bytes, 2 * kMiB);
}

TEST_F(CacheTest, FilesInMemoryStayForThatReason) {
  std::string name = "/dev/shm/flatout-cache-test-XXXXXX";
  const int fd = ::mkstemp(name.data());
  if (fd < 0) GTEST_SKIP() << "lacks /dev/shm";
  ASSERT_EQ(::ftruncate(fd, 1), 0);
  ASSERT_EQ(::pwrite(fd, "x", 1, 0), 1);
  ::close(fd);
  const Dropped dropped = drop({name}, false);
  ::unlink(name.c_str());
  ASSERT_EQ(dropped.stayed.size(), 1u);
  EXPECT_TRUE(dropped.stayed[0].in_memory);
}

TEST_F(CacheTest, TheMapShowsWhichPartIsCached) {
  const std::string first = write("1", 4 * kMiB), second = write("2", 4 * kMiB);
  if (!cold({first, second})) GTEST_SKIP() << "lacks a file system that lets pages go";
  warm({second}, {});
  const DataSet set = look_at({first, second}, 8);
  ASSERT_EQ(set.map.size(), 8u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(set.map[i], 0) << i;
  for (size_t i = 4; i < 8; ++i) EXPECT_EQ(set.map[i], 1) << i;
}

TEST_F(CacheTest, DirtyPagesStayAndAreToldAndGoWithSync) {
  if (!cold({write("probe", kMiB)})) GTEST_SKIP() << "lacks a file system that lets pages go";
  const std::string fresh = dir + "/fresh";
  const std::string data(32 * kMiB, 'x');
  // The kernel may write all of it in time: once it did not is enough.
  Dropped dropped;
  for (int i = 0; i < 20 && dropped.stayed.empty(); ++i) {
    std::ofstream(fresh, std::ios::binary | std::ios::trunc) << data;
    dropped = drop({fresh}, false);
  }
  ASSERT_EQ(dropped.stayed.size(), 1u);
  EXPECT_EQ(dropped.stayed[0].path, fresh);
  EXPECT_EQ(dropped.stayed[0].cached_bytes, dropped.after_bytes);
  const auto dirty = dropped.stayed[0].dirty_bytes;
  if (dirty) {
    EXPECT_GT(*dirty, 0u);
  }
  EXPECT_EQ(drop({fresh}, true).after_bytes, 0u);
}

TEST_F(CacheTest, ProgressGoesFromNothingToAll) {
  const std::vector<std::string> files{write("1", 3 * kMiB), write("2", 5000)};
  cold(files);
  uint64_t last = 0;
  WarmOptions options;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, 3 * kMiB + 5000);
    EXPECT_GE(done, last);
    last = done;
  };
  warm(files, options);
  EXPECT_EQ(last, 3 * kMiB + 5000);
}

class RoomTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tree.write("proc/meminfo",
               "MemTotal: 10000000 kB\nMemFree: 4000000 kB\nMemAvailable: 9000000 kB\n");
  }
  probe::FakeTree tree;
};

TEST_F(RoomTest, IsFreeMemoryLessAReserve) {
  EXPECT_EQ(room(tree.root()), (uint64_t{4000000} - 10000000 / 50) * 1024);
  tree.remove("proc/meminfo");
  EXPECT_FALSE(room(tree.root()));
}

// A job of Slurm or systemd: the limit is its own group's or an ancestor's, not the root's.
TEST_F(RoomTest, IsWhatTheTightestGroupLeaves) {
  tree.write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  tree.write("proc/self/cgroup", "0::/system.slice/job_7/step\n");
  const std::string job = "sys/fs/cgroup/system.slice/job_7/";
  tree.write(job + "memory.max", "1000000\n");
  tree.write(job + "memory.high", "max\n");
  tree.write(job + "memory.current", "900000\n");
  tree.write(job + "step/memory.max", "max\n");
  tree.write(job + "step/memory.current", "900000\n");
  EXPECT_EQ(room(tree.root()), 100000u);
  tree.write(job + "memory.high", "950000\n");  // there reclaim begins
  EXPECT_EQ(room(tree.root()), 50000u);
  tree.write(job + "step/memory.max", "800000\n");  // less than it uses
  EXPECT_EQ(room(tree.root()), 0u);
}

TEST_F(RoomTest, IsWhatAGroupOfVersionOneLeaves) {
  tree.write("proc/self/mountinfo",
             "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  tree.write("proc/self/cgroup", "4:memory:/slurm/job_7\n");
  tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  tree.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "5000000\n");
  tree.write("sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", "1000000\n");
  tree.write("sys/fs/cgroup/memory/slurm/job_7/memory.usage_in_bytes", "400000\n");
  EXPECT_EQ(room(tree.root()), 600000u);
}

TEST(DropAll, AsksTheKernelForCleanPages) {
  probe::FakeTree tree;
  EXPECT_FALSE(drop_all(tree.root()).ok());
  tree.write("proc/sys/vm/drop_caches", "");
  EXPECT_TRUE(drop_all(tree.root()).ok());
  EXPECT_EQ(tree.root().read("proc/sys/vm/drop_caches").value_or(""), "1\n");
}

TEST(DropAll, CountsWhatCanGo) {
  probe::FakeTree tree;
  EXPECT_FALSE(machine_cache(tree.root()));
  tree.write("proc/meminfo", "Buffers: 100 kB\nCached: 5000 kB\nShmem: 2000 kB\n");
  EXPECT_EQ(machine_cache(tree.root()), uint64_t{3100} * 1024);
}

}  // namespace
}  // namespace flatout::cache
