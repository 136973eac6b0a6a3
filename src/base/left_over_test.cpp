#include "base/left_over.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace flatout::fs {
namespace {

TEST(LeftOver, GoesUnlessAProcessHasItOrItIsNew) {
  std::string folder = testing::TempDir() + "left_over_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string x = folder + "/x.tmp";
  for (const char* name :
       {"x.tmp12", "x.tmp13", "x.tmp14", "x.tmp", "x.tmp.gz", "x.tmpold", "y.tmp12"})
    std::ofstream(folder + "/" + name).put('.');
  const auto there = [&](const char* name) { return std::filesystem::exists(folder + "/" + name); };
  remove_left_over(x, kDigits, std::chrono::hours(1));
  EXPECT_TRUE(there("x.tmp12")) << "it is new";

  const int opened = ::open((x + "13").c_str(), O_RDONLY | O_CLOEXEC);
  const int fd = ::open((x + "14").c_str(), O_RDWR | O_CLOEXEC);
  void* const mapped = ::mmap(nullptr, 1, PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  remove_left_over(x, kDigits, std::chrono::seconds(0));
  EXPECT_TRUE(there("x.tmp13"));
  EXPECT_TRUE(there("x.tmp14"));
  EXPECT_TRUE(there("x.tmp") && there("x.tmp.gz") && there("x.tmpold") && there("y.tmp12"))
      << "other names";
  if (there("x.tmp12")) GTEST_SKIP() << "this file system gives no leases";

  ::close(opened);
  ::munmap(mapped, 1);
  remove_left_over(x, kDigits, std::chrono::seconds(0));
  EXPECT_FALSE(there("x.tmp13"));
  EXPECT_FALSE(there("x.tmp14"));
  std::filesystem::remove_all(folder);
  remove_left_over(x, kDigits, std::chrono::seconds(0));  // no folder, no error
}

}  // namespace
}  // namespace flatout::fs
