#include "recorder/folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "recorder/block_file.h"
#include "recorder/test_folder.h"

namespace flatout::recorder {
namespace {

namespace stdfs = std::filesystem;

void make_run(const std::string& path) {
  stdfs::create_directories(path);
  std::ofstream(path + "/series.bin").flush();
  std::ofstream(path + "/events.bin").flush();
  std::ofstream(path + "/report.html") << std::string(10'000, 'x');
}

TEST(Folder, NamesTheJobByItsScript) {
  EXPECT_EQ(short_name({"python", "train.py"}), "train");
  EXPECT_EQ(short_name({"/usr/bin/python3.11", "-u", "-W", "ignore", "src/my train.py", "-x"}),
            "my_train");
  EXPECT_EQ(short_name({"python", "-m", "torch.distributed.run", "x.py"}), "torch.distributed.run");
  EXPECT_EQ(short_name({"python", "-c", "print(1)"}), "python");
  EXPECT_EQ(short_name({"./train.sh"}), "train");
  EXPECT_EQ(short_name({"/opt/a b/\x1b[31mx"}), "__31mx");
  EXPECT_EQ(short_name({".."}), "job");
}

TEST(Folder, NameSortsByTimeAndEndsWithThePid) {
  const std::string name = folder_name({{"python", "train.py"}, {"RANK=2"}, ""}, 0, 4121);
  EXPECT_EQ(name.substr(8, 1), "-");
  EXPECT_EQ(name.substr(15, 7), "-train-");
  EXPECT_TRUE(name.ends_with("-r2-4121")) << name;
}

TEST(Folder, ChosenFolderIsPrivateAndIgnoredByGit) {
  const TestFolder root;
  const auto made = make_run_folder({{"x"}, {}, root / "a/b"});
  ASSERT_TRUE(made.ok());
  struct stat info;
  ASSERT_EQ(::stat(made->path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_TRUE(stdfs::exists(made->path + "/.gitignore"));
}

TEST(Folder, ChosenFolderMustNotHoldSomethingElse) {
  const TestFolder root;
  std::ofstream(root / "thesis.tex") << "years";
  const auto made = make_run_folder({{"x"}, {}, root.path()});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, Code::kBadInput);
  EXPECT_TRUE(stdfs::exists(root / "thesis.tex"));
}

TEST(Folder, ChosenFolderOfAnEarlierRunIsUsedAgainAndThatIsSaid) {
  const TestFolder root;
  make_run(root / "run");
  const auto made = make_run_folder({{"x"}, {}, root / "run"});
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made->replaced);
  EXPECT_FALSE(stdfs::exists(root / "run/report.html"));
}

TEST(Folder, ChosenFolderIsOneRunsAtATime) {
  const TestFolder root;
  auto first = make_run_folder({{"x"}, {}, root / "run"});
  ASSERT_TRUE(first.ok());
  make_run(first->path);
  const auto second = make_run_folder({{"x"}, {}, root / "run"});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("is in use"), std::string::npos) << second.error().message;
  EXPECT_TRUE(stdfs::exists(root / "run/report.html"));
  first->held.reset();
  EXPECT_TRUE(make_run_folder({{"x"}, {}, root / "run"}).ok());
}

TEST(Folder, ChosenFolderIsNoLiveRunsOfAnotherParent) {
  const TestFolder root;
  make_run(root / "run");
  const auto held = BlockFile::create(root / "run/series.bin");
  ASSERT_TRUE(held.ok());
  const auto made = make_run_folder({{"x"}, {}, root / "run"});
  ASSERT_FALSE(made.ok());
  EXPECT_TRUE(stdfs::exists(root / "run/report.html"));
}

TEST(Folder, SaysWhatIsInTheWayOfTheChosenFolder) {
  const TestFolder root;
  std::ofstream(root / "train.py") << "pass";
  const auto file = make_run_folder({{"x"}, {}, root / "train.py"});
  ASSERT_FALSE(file.ok());
  EXPECT_TRUE(file.error().message.ends_with("train.py: it is a file")) << file.error().message;
  const auto below = make_run_folder({{"x"}, {}, root / "train.py/runs/one"});
  ASSERT_FALSE(below.ok());
  EXPECT_NE(below.error().message.find("Not a directory"), std::string::npos);
}

TEST(Folder, SaysThatTheChosenFolderMayNotBeMade) {
  const TestFolder root;
  if (::geteuid() == 0) GTEST_SKIP() << "lacks an ordinary user: root may write everywhere";
  stdfs::create_directories(root / "closed");
  stdfs::permissions(root / "closed", stdfs::perms::owner_read | stdfs::perms::owner_exec);
  const auto closed = make_run_folder({{"x"}, {}, root / "closed/runs/one"});
  ASSERT_FALSE(closed.ok());
  EXPECT_NE(closed.error().message.find("Permission denied"), std::string::npos);
}

TEST(Folder, PruningTakesTheOldestOfOurOwnOnly) {
  const TestFolder root;
  const std::string stamp = "-train-host-";
  for (int i = 1; i <= 5; ++i) {
    make_run(root / ("20250101-00000" + std::to_string(i) + stamp + "1"));
  }
  stdfs::create_directories(root / "20240101-000000-not-a-run");  // not made by us
  std::ofstream(root / "20240101-000000-not-a-run/data") << "mine";
  make_run(root / "my-own-copy");  // renamed by the user: kept
  std::ofstream(root / ("20250101-000001" + stamp + "1/notes.txt")) << "keep me";
  EXPECT_EQ(prune_runs(root.path(), 3, 1 << 30), 2u);
  EXPECT_TRUE(stdfs::exists(root / ("20250101-000005" + stamp + "1")));
  EXPECT_TRUE(stdfs::exists(root / ("20250101-000003" + stamp + "1")));
  EXPECT_FALSE(stdfs::exists(root / ("20250101-000002" + stamp + "1")));
  EXPECT_TRUE(stdfs::exists(root / ("20250101-000001" + stamp + "1/notes.txt")));
  EXPECT_FALSE(stdfs::exists(root / ("20250101-000001" + stamp + "1/report.html")));
  EXPECT_TRUE(stdfs::exists(root / "20240101-000000-not-a-run/data"));
  EXPECT_TRUE(stdfs::exists(root / "my-own-copy/report.html"));
}

TEST(Folder, PruningKeepsTheNewestOfOneSecond) {
  const TestFolder root;
  const std::string second = "20250101-000001-";
  for (const char* name : {"zebra-host-9", "ant-host-1", "mouse-host-5"}) {
    make_run(root / (second + name));
    std::ofstream(root / (second + name + "/.gitignore")) << "*";
    const auto now = stdfs::last_write_time(root / (second + name + "/.gitignore"));
    const int age = name[0] == 'z' ? 3 : name[0] == 'm' ? 2 : 1;
    stdfs::last_write_time(root / (second + name + "/.gitignore"),
                           now - std::chrono::milliseconds(100 * age));
  }
  EXPECT_EQ(prune_runs(root.path(), 1, 1 << 30), 2u);
  EXPECT_TRUE(stdfs::exists(root / (second + "ant-host-1")));
}

TEST(Folder, PruningBySizeKeepsTheNewest) {
  const TestFolder root;
  make_run(root / "20250101-000001-train-host-1");
  make_run(root / "20250101-000002-train-host-1");
  EXPECT_EQ(prune_runs(root.path(), 10, 1), 1u);
  EXPECT_TRUE(stdfs::exists(root / "20250101-000002-train-host-1"));
}

TEST(Folder, PruningLeavesALiveRunAlone) {
  const TestFolder root;
  const std::string live = root / "20250101-000001-train-host-1";
  make_run(live);
  make_run(root / "20250101-000002-train-host-1");
  const auto held = BlockFile::create(live + "/series.bin");
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(prune_runs(root.path(), 1, 1 << 30), 0u);
  EXPECT_TRUE(stdfs::exists(live + "/report.html"));
}

TEST(Folder, LatestPointsAtThePublishedRun) {
  const TestFolder root;
  stdfs::create_directories(root / "one");
  stdfs::create_directories(root / "two");
  publish({root / "one", root.path(), ""});
  publish({root / "two", root.path(), ""});
  EXPECT_EQ(stdfs::read_symlink(root / "latest"), "two");
  discard({root / "two", root.path(), ""});
  EXPECT_FALSE(stdfs::exists(root / "two"));
}

}  // namespace
}  // namespace flatout::recorder
