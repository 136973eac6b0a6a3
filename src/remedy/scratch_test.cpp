#include "remedy/scratch.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace flatout::remedy {
namespace {

namespace files = std::filesystem;

class ScratchTest : public ::testing::Test {
 protected:
  ScratchTest() {
    std::string path = ::testing::TempDir() + "/scratch-test-XXXXXX";
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    parent_ = path;
  }
  ~ScratchTest() override { remove_all(parent_); }

  /// As a killed flatout leaves it: an overlay's work folder has no rights.
  std::string abandoned(const std::string& name) {
    std::string path = parent_ + "/" + name;
    files::create_directories(path + "/1/layers/0/work/work");
    std::ofstream(path + "/1/output") << "steps\n";
    ::chmod((path + "/1/layers/0/work/work").c_str(), 0);
    return path;
  }

  std::string parent_;
};

TEST_F(ScratchTest, WhatNobodyOwnsIsRemoved) {
  const std::string path = abandoned("flatout-fix-aB3dE6");
  EXPECT_EQ(remove_stale_scratch(parent_), 1);
  EXPECT_FALSE(files::exists(path));
}

TEST_F(ScratchTest, WhatIsInUseStays) {
  auto mine = Scratch::make({parent_});
  ASSERT_TRUE(mine.ok());
  const std::string path = (*mine)->path();
  EXPECT_EQ(remove_stale_scratch(parent_), 0);
  EXPECT_TRUE(files::exists(path));
  mine->reset();
  EXPECT_FALSE(files::exists(path));
}

TEST_F(ScratchTest, OtherNamesAndLinksAndFilesStay) {
  const std::string other = abandoned("flatout-fix-of-mine");
  const std::string target = abandoned("kept");
  files::create_directory_symlink(target, parent_ + "/flatout-fix-abcdef");
  std::ofstream(parent_ + "/flatout-fix-123456") << "a file\n";
  // A link within what is removed is not followed.
  const std::string stale = abandoned("flatout-fix-stale1");
  files::create_directory_symlink(target, stale + "/1/link");
  EXPECT_EQ(remove_stale_scratch(parent_), 1);
  EXPECT_FALSE(files::exists(stale));
  EXPECT_TRUE(files::exists(other + "/1/output"));
  EXPECT_TRUE(files::exists(target + "/1/output"));
  EXPECT_TRUE(files::exists(parent_ + "/flatout-fix-abcdef"));
  EXPECT_TRUE(files::exists(parent_ + "/flatout-fix-123456"));
}

TEST_F(ScratchTest, AnotherUsersStays) {
  if (::geteuid() != 0) GTEST_SKIP() << "lacks root, to make a folder of another user's";
  const std::string path = abandoned("flatout-fix-theirs");
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  EXPECT_EQ(remove_stale_scratch(parent_), 0);
  EXPECT_TRUE(files::exists(path + "/1/output"));
}

TEST_F(ScratchTest, ThePlaceThatCannotHoldOneIsNamed) {
  const auto none = Scratch::make({parent_ + "/missing"});
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("missing"), std::string::npos);
}

}  // namespace
}  // namespace flatout::remedy
