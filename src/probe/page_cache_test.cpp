#include "probe/page_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "probe/job_tree.h"
#include "probe/probes.h"
#include "probe/testing/fake_tree.h"
#include "probe/testing/record_sink.h"

namespace flatout::probe {
namespace {

using model::SignalId;

// A file of 2 MiB on a real file system, written out, removed at the end.
class DataFile {
 public:
  DataFile() {
    char name[] = "flatout-page-cache-XXXXXX";
    fd_ = ::mkstemp(name);
    path_ = std::filesystem::absolute(name);
    const std::string text(kSize, 'x');
    ok_ = fd_ >= 0 && ::write(fd_, text.data(), text.size()) == static_cast<ssize_t>(kSize);
  }
  ~DataFile() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  // Drops it from the cache; false where the file system keeps it (tmpfs).
  bool drop() const {
    if (::fdatasync(fd_) != 0 || ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED) != 0) return false;
    const auto left = cached_part(path_);
    return left.ok() && left->cached_bytes == 0;
  }
  static constexpr size_t kSize = 2 << 20;
  const std::string& path() const { return path_; }
  int fd() const { return fd_; }
  bool ok() const { return ok_; }

 private:
  int fd_ = -1;
  bool ok_ = false;
  std::string path_;
};

TEST(PageCache, SeesAFreshFileAsCachedInBothWays) {
  const DataFile file;
  ASSERT_TRUE(file.ok());
  const auto mincore = testing::cached_part_mincore(file.path());
  ASSERT_TRUE(mincore.ok()) << mincore.error().message;
  EXPECT_EQ(mincore->bytes, DataFile::kSize);
  EXPECT_EQ(mincore->cached_bytes, DataFile::kSize);
  EXPECT_FALSE(mincore->sampled);
  const auto cachestat = testing::cached_part_cachestat(file.path());
  if (!cachestat.ok()) GTEST_SKIP() << "this kernel lacks cachestat (Linux 6.5)";
  EXPECT_EQ(cachestat->cached_bytes, DataFile::kSize);
}

TEST(PageCache, SeesWhatWasDropped) {
  const DataFile file;
  if (!file.drop()) GTEST_SKIP() << "this file system cannot drop a file from the cache";
  char byte;
  ASSERT_EQ(::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_RANDOM), 0);  // no read-ahead
  ASSERT_EQ(::pread(file.fd(), &byte, 1, 0), 1);
  const auto part = cached_part(file.path());
  ASSERT_TRUE(part.ok());
  EXPECT_GT(part->cached_bytes, 0u);
  EXPECT_LT(part->cached_bytes, DataFile::kSize);
}

TEST(PageCache, RefusesWhatIsNoRegularFile) {
  EXPECT_FALSE(cached_part("/dev/null").ok());
  EXPECT_FALSE(cached_part("/no/such/file").ok());
  EXPECT_FALSE(cached_part("/").ok());
  EXPECT_TRUE(cached_part("/proc/self/exe").ok() || ::geteuid() != 0);
}

TEST(FileProbe, FollowsPositionsAndResidencyOfDataFiles) {
  const DataFile file;
  FakeTree tree;
  tree.task({.pid = 100, .ppid = 50});
  tree.newest_pid(100);
  tree.link("proc/100/fd/5", file.path());
  tree.link("proc/100/fd/6", "socket:[1]");
  tree.link("proc/100/fd/7", "/usr/lib/libc.so.6");
  tree.write("proc/100/mountinfo", "77 1 8:1 / / rw - ext4 /dev/sda rw\n");
  const auto position = [&](int64_t bytes) {
    tree.write("proc/100/fdinfo/5",
               "pos:\t" + std::to_string(bytes) + "\nflags:\t0100000\nmnt_id:\t77\n");
  };
  RecordSink sink;
  JobTree job(tree.root(), 100, 50);
  job.update(time_point_ns(1'000'000'000), sink);
  const auto probe = make_file_probe({.root = tree.root(), .job = &job});
  int64_t now = 10'000'000'000;
  for (const int64_t bytes : {0, 100, 50, 50, 200, 150}) {
    position(bytes);
    probe->read(time_point_ns(now += 2'000'000'000), sink);
  }
  probe->read(time_point_ns(now + 2'000'000'000), sink);
  EXPECT_EQ(sink.last(SignalId::kProcFilesSeen, 100), 1);
  EXPECT_EQ(sink.last(SignalId::kProcFileMoves, 100), 4);
  EXPECT_EQ(sink.last(SignalId::kProcFileJumps, 100), 2);
  EXPECT_EQ(sink.last(SignalId::kProcOpenDataBytes, 100), static_cast<double>(DataFile::kSize));
  EXPECT_EQ(sink.facts["data.file.0.path"], file.path());
  EXPECT_EQ(sink.facts["data.file.0.fs"], "ext4");
  EXPECT_FALSE(sink.facts.contains("data.file.1.path"));
}

TEST(FileProbe, DoesNotOpenFilesOnOtherMachines) {
  const DataFile file;
  FakeTree tree;
  tree.task({.pid = 100, .ppid = 50});
  tree.newest_pid(100);
  tree.link("proc/100/fd/5", file.path());
  tree.write("proc/100/fdinfo/5", "pos:\t0\nflags:\t0100000\nmnt_id:\t77\n");
  tree.write("proc/100/mountinfo", "77 1 0:9 / / rw - nfs4 server:/x rw\n");
  RecordSink sink;
  JobTree job(tree.root(), 100, 50);
  job.update(time_point_ns(1'000'000'000), sink);
  const auto probe = make_file_probe({.root = tree.root(), .job = &job});
  for (int i = 0; i < 4; ++i) probe->read(time_point_ns((10 + i * 2) * 1'000'000'000LL), sink);
  EXPECT_EQ(sink.last(SignalId::kProcFilesSeen, 100), 1);
  EXPECT_FALSE(sink.last(SignalId::kProcOpenDataBytes, 100));
}

}  // namespace
}  // namespace flatout::probe
