#include "timeline/import_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/bytes.h"
#include "timeline/steps.h"
#include "timeline/test_packets.h"

namespace flatout::timeline {
namespace {

using testing::Packets;

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/flatout-timeline-XXXXXX";
    path = ::mkdtemp(name);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path + "/" + name, std::ios::binary) << bytes;
  }
  std::string path;
};

std::string block(const std::string& packets, uint32_t version = FLATOUT_WIRE_VERSION) {
  std::string out;
  put(out, flatout_block{FLATOUT_BLOCK_MAGIC, version, static_cast<uint32_t>(packets.size()),
                         crc32(packets)});
  return out + packets;
}

std::string step(int64_t i) {
  Packets p;
  const uint64_t begin = 2'000'000'000 + static_cast<uint64_t>(i) * 10'000'000;
  p.slice(FLATOUT_SLICE_INPUT_WAIT, begin, begin + 4'000'000);
  p.slice(FLATOUT_SLICE_BACKWARD, begin + 6'000'000, begin + 9'000'000);
  p.slice(FLATOUT_SLICE_OPTIMIZER, begin + 9'000'000, begin + 10'000'000, 0, i + 1);
  return p.bytes;
}

std::string definitions() {
  Packets p;
  p.process(100, 1, FLATOUT_PROCESS_MAIN, "python").run_info("command", "python train.py");
  return p.bytes;
}

// Something of the recorder's, 10 s later.
std::string long_series() {
  Packets p;
  p.at(2'000'000'000).entity(1, 0, 0, "host").reading(1, 0, 1);
  p.at(12'000'000'000).reading(1, 0, 1);
  return p.bytes;
}

TEST(ReadRunFolder, MergesBothFilesAndFindsTheSteps) {
  const Folder folder;
  std::string events;
  for (int i = 0; i < 10; ++i) events += block(step(i));
  folder.write("events.bin", events);
  folder.write("series.bin", block(definitions()));
  FolderDamage damage;
  const auto run = read_run_folder(folder.path, &damage);
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run->steps.summary.count, 10);
  EXPECT_EQ(run->fact("command"), "python train.py");
  EXPECT_EQ(run->processes.size(), 1u);
  EXPECT_EQ(run->processes[0].name, "python");
  EXPECT_EQ(damage.blocks, 11u);
  EXPECT_EQ(damage.bad, 0u);
  EXPECT_TRUE(run->missing.empty());
}

TEST(ReadRunFolder, SkipsADamagedBlockAndOneThatIsCutOff) {
  const Folder folder;
  std::string broken = block(step(3));
  broken[40] = static_cast<char>(broken[40] ^ 1);
  const std::string last = block(step(9));
  folder.write("series.bin", block(definitions()));
  folder.write("events.bin", block(step(1)) + broken + block(step(4)) + "noise" + block(step(5)) +
                                 last.substr(0, last.size() - 7));
  FolderDamage damage;
  const auto run = read_run_folder(folder.path, &damage);
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(damage.blocks, 4u);
  EXPECT_EQ(damage.bad, 3u);
  EXPECT_EQ(run->slices.size(), 9u);
  ASSERT_EQ(run->missing.size(), 1u);
  EXPECT_EQ(run->missing[0].signal, "recording");
}

TEST(ReadRunFolder, SaysWhatIsNoRunFolder) {
  const Folder folder;
  const auto run = read_run_folder(folder.path);
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.error().code, Code::kNotFound);
  EXPECT_EQ(read_run_folder(folder.path + "/none").error().code, Code::kNotFound);
}

TEST(ReadRunFolder, SaysThatAnotherVersionWroteIt) {
  const Folder folder;
  folder.write("series.bin", block(definitions(), FLATOUT_WIRE_VERSION + 1));
  folder.write("events.bin", block(step(0), FLATOUT_WIRE_VERSION + 1));
  const auto run = read_run_folder(folder.path);
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.error().code, Code::kUnsupported);
}

// A run without its events would look like one in which nothing happened.
TEST(ReadRunFolder, ALostFileIsAnError) {
  const std::string series = block(definitions() + long_series()), events = block(step(0));
  const auto error_of = [](const Folder& folder) {
    const auto run = read_run_folder(folder.path);
    return run.ok() ? "" : run.error().message;
  };
  for (const char* lost : {"series.bin", "events.bin"}) {
    const Folder folder;
    folder.write("series.bin", series);
    folder.write("events.bin", events);
    EXPECT_EQ(error_of(folder), "");
    const auto said = "the recording is incomplete: " + folder.path + "/" + lost;
    for (const std::string& bytes : {std::string(), events.substr(0, 30), std::string(9999, 'x')}) {
      folder.write(lost, bytes);
      EXPECT_TRUE(error_of(folder).starts_with(said)) << error_of(folder);
    }
    std::filesystem::remove(folder.path + "/" + lost);
    EXPECT_TRUE(error_of(folder).starts_with(said)) << error_of(folder);
  }
  const Folder emptied;
  emptied.write("series.bin", "");
  emptied.write("events.bin", "");
  EXPECT_NE(error_of(emptied), "");
}

// Nobody writes to it: who opened it would wait for ever.
TEST(ReadRunFolder, APipeIsNotWaitedFor) {
  const Folder folder;
  folder.write("series.bin", block(definitions() + long_series()));
  ASSERT_EQ(::mkfifo((folder.path + "/events.bin").c_str(), 0600), 0);
  const auto run = read_run_folder(folder.path);
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.error().message,
            "the recording is incomplete: " + folder.path + "/events.bin cannot be read");
}

TEST(ReadRunFolder, AVeryShortJobHasNoEvents) {
  const Folder folder;
  folder.write("series.bin", block(definitions()));
  folder.write("events.bin", "");
  EXPECT_TRUE(read_run_folder(folder.path).ok());
}

// A recording that grows by a few bytes at a time: what is read at its end is what was written.
TEST(FolderFollower, ReadsWhatIsWrittenHoweverItIsCutUp) {
  const Folder folder;
  std::string events;
  for (int i = 0; i < 20; ++i) events += block(step(i));
  folder.write("series.bin", block(definitions()));
  folder.write("events.bin", "");
  auto follower = FolderFollower::open(folder.path, 16 << 20);
  ASSERT_TRUE(follower.ok());
  TimePoint now = time_point_ns(1);
  for (size_t size = 0; size <= events.size(); size += 37) {
    folder.write("events.bin", events.substr(0, size));
    (*follower)->read(now += std::chrono::seconds(10), false);
    find_steps((*follower)->run());
    const auto whole = static_cast<int64_t>(size / block(step(0)).size());
    EXPECT_EQ((*follower)->run().slices.size(), static_cast<size_t>(whole) * 3);
  }
  folder.write("events.bin", events);
  EXPECT_TRUE((*follower)->read(now, true));
  EXPECT_FALSE((*follower)->read(now, true));
  find_steps((*follower)->run());
  const auto at_once = read_run_folder(folder.path);
  EXPECT_EQ((*follower)->run().steps.summary.count, at_once->steps.summary.count);
  EXPECT_EQ((*follower)->run().fact("command"), "python train.py");
  EXPECT_EQ((*follower)->damage().blocks, 21u);
  EXPECT_EQ((*follower)->damage().bad, 0u);
}

TEST(FolderFollower, AnEventWaitsForItsDefinitionsButNotForEver) {
  const Folder folder;
  folder.write("series.bin", "");
  folder.write("events.bin", "");
  auto follower = FolderFollower::open(folder.path, 16 << 20);
  ASSERT_TRUE(follower.ok());
  Packets late;
  late.at(5'000'000'000).run_info("late", "yes");
  folder.write("events.bin", block(late.bytes));
  const TimePoint begin = time_point_ns(1);
  EXPECT_FALSE((*follower)->read(begin, false));
  EXPECT_FALSE((*follower)->read(begin + std::chrono::seconds(1), false));
  EXPECT_TRUE((*follower)->read(begin + std::chrono::seconds(4), false));
  EXPECT_EQ((*follower)->run().fact("late"), "yes");
}

TEST(FolderFollower, GoesOnBehindDamageThatIsFollowedByMore) {
  const Folder folder;
  std::string broken = block(step(0));
  broken[40] = static_cast<char>(broken[40] ^ 1);
  folder.write("series.bin", block(definitions()));
  folder.write("events.bin", broken + "noise");
  auto follower = FolderFollower::open(folder.path, 16 << 20);
  ASSERT_TRUE(follower.ok());
  TimePoint now = time_point_ns(1);
  for (int i = 0; i < 3; ++i) (*follower)->read(now += std::chrono::seconds(10), false);
  EXPECT_TRUE((*follower)->run().slices.empty());
  folder.write("events.bin", broken + "noise" + block(step(1)));
  EXPECT_TRUE((*follower)->read(now + std::chrono::seconds(10), false));
  EXPECT_EQ((*follower)->run().slices.size(), 3u);
  EXPECT_EQ((*follower)->damage().bad, 1u);
}

TEST(FolderFollower, OfAnEndedRunItSaysWhatIsLost) {
  const auto lost = [](const std::string& events, bool ended) {
    const Folder folder;
    folder.write("series.bin", block(definitions() + long_series()));
    folder.write("events.bin", events);
    auto follower = FolderFollower::open(folder.path, 16 << 20);
    (*follower)->read(time_point_ns(1), ended);
    (*follower)->read(time_point_ns(2), ended);
    const auto& missing = (*follower)->run().missing;
    EXPECT_LE(missing.size(), 1u);
    return missing.empty() ? "" : missing[0].reason;
  };
  EXPECT_EQ(lost("", false), "") << "it has only begun";
  EXPECT_EQ(lost("", true), "events.bin is empty");
  EXPECT_EQ(lost(block(step(0)) + "noise", true), "one damaged place was skipped");
  EXPECT_EQ(lost(block(step(0)), true), "");
}

TEST(FolderFollower, OpensNothingThroughALinkAndWaitsForNoPipe) {
  const Folder folder, elsewhere;
  elsewhere.write("series.bin", block(definitions()));
  elsewhere.write("events.bin", block(step(0)));
  for (const char* name : {"series.bin", "events.bin"}) {
    std::filesystem::create_symlink(elsewhere.path + "/" + name, folder.path + "/" + name);
  }
  EXPECT_FALSE(FolderFollower::open(folder.path, 1 << 20).ok());
  std::filesystem::create_directory_symlink(elsewhere.path, folder.path + "/run");
  EXPECT_FALSE(FolderFollower::open(folder.path + "/run", 1 << 20).ok());
  const Folder pipes;
  ASSERT_EQ(::mkfifo((pipes.path + "/events.bin").c_str(), 0600), 0);
  EXPECT_FALSE(FolderFollower::open(pipes.path, 1 << 20).ok());
  EXPECT_TRUE(FolderFollower::open(elsewhere.path, 1 << 20).ok());
}

}  // namespace
}  // namespace flatout::timeline
