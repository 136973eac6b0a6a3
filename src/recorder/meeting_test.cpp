#include "recorder/meeting.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <random>
#include <thread>

#include "base/fs.h"
#include "recorder/rank_place.h"
#include "recorder/test_folder.h"

namespace flatout::recorder {
namespace {

const std::string kToken = "abcdefgh-0123456789";

class MeetingTest : public ::testing::Test {
 protected:
  MeetingTest() {
    std::filesystem::create_directory(home / "runs");
    auto opened = Meeting::open({"127.0.0.1", 0}, kToken, home / "runs");
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    meeting = std::move(opened).value();
    place = {"127.0.0.1", meeting->port()};
  }
  // A rank's run folder on another machine.
  std::string rank(int number, size_t bytes = 100) {
    std::string folder = away / ("train-r" + std::to_string(number));
    std::filesystem::create_directories(folder);
    RankPlace launched;
    launched.launcher = "torchrun";
    launched.job = "j";
    launched.rank = number;
    launched.world = 4;
    write(folder + "/rank.json", rank_file(launched, 12, 1'000'000'000 + number));
    write(folder + "/events.bin", std::string(bytes, static_cast<char>('a' + number)));
    write(folder + "/series.bin", std::string(bytes / 2, 's'));
    write(folder + "/report.html", "not wanted");
    return folder;
  }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::vector<std::string> arrived() const { return fs::Root(home / "runs").list("").value_or({}); }
  std::string arrived(const std::string& file) const {
    return fs::Root(home / "runs").read(file, 64 << 20).value_or("none");
  }
  // What is answered to some bytes; "" where the line is cut.
  std::string say(const std::string& text) const {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(place.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    (void)!::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    ::shutdown(fd, SHUT_WR);
    std::string out;
    char buffer[4096];
    pollfd poll{fd, POLLIN, 0};
    for (ssize_t got = 1; got > 0 && ::poll(&poll, 1, 20'000) == 1;) {
      got = ::recv(fd, buffer, sizeof buffer, 0);
      if (got > 0) out.append(buffer, static_cast<size_t>(got));
    }
    ::close(fd);
    return out;
  }

  TestFolder home, away;
  std::unique_ptr<Meeting> meeting;
  MeetingPlace place;
};

TEST_F(MeetingTest, ARankBringsItsRecordingWhole) {
  const auto brought = bring_to_meeting(rank(1, 5 << 20), place, kToken);
  ASSERT_TRUE(brought.ok()) << brought.error().message;
  EXPECT_TRUE(*brought);
  EXPECT_EQ(arrived(), std::vector<std::string>{"train-r1"});
  EXPECT_EQ(arrived("train-r1/events.bin"), std::string(5 << 20, 'b'));
  EXPECT_EQ(arrived("train-r1/series.bin").size(), (5u << 20) / 2);
  EXPECT_EQ(arrived("train-r1/report.html"), "none");
  EXPECT_EQ(read_rank_file(home / "runs/train-r1").place.rank, 1);
}

TEST_F(MeetingTest, ManyComeAtOnce) {
  std::vector<std::string> folders;
  for (int i = 1; i < 20; ++i) folders.push_back(rank(i));
  std::vector<std::thread> ranks;
  ranks.reserve(folders.size());
  std::atomic<int> fine = 0;
  for (const std::string& folder : folders) {
    ranks.emplace_back([&, folder] {
      const auto brought = bring_to_meeting(folder, place, kToken);
      fine += brought.ok() && *brought ? 1 : 0;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(fine, 19);
  EXPECT_EQ(arrived().size(), 19u);
}

TEST_F(MeetingTest, WhatLiesThereAlreadyIsNotSent) {
  const std::string folder = rank(2);
  std::filesystem::copy(folder, home / "runs/seen", std::filesystem::copy_options::recursive);
  const auto brought = bring_to_meeting(folder, place, kToken);
  ASSERT_TRUE(brought.ok());
  EXPECT_FALSE(*brought);
  EXPECT_EQ(arrived(), std::vector<std::string>{"seen"});
}

TEST_F(MeetingTest, AnEarlierRunOfThatNameIsKept) {
  std::filesystem::create_directory(home / "runs/train-r3");
  write(home / "runs/train-r3/events.bin", "older");
  ASSERT_TRUE(bring_to_meeting(rank(3), place, kToken).ok());
  EXPECT_EQ(arrived("train-r3/events.bin"), "older");
  EXPECT_EQ(arrived("train-r3-2/events.bin"), std::string(100, 'd'));
}

TEST_F(MeetingTest, WithoutTheTokenNothingIsTaken) {
  const auto brought = bring_to_meeting(rank(1), place, "another-token-123456");
  ASSERT_FALSE(brought.ok());
  EXPECT_EQ(brought.error().code, Code::kGone);
  EXPECT_TRUE(arrived().empty());
  meeting.reset();
  EXPECT_FALSE(bring_to_meeting(rank(1), place, kToken).ok()) << "nobody listens any more";
}

TEST_F(MeetingTest, NothingIsWrittenOutsideOfItsPlace) {
  const std::string hello = "flatout-meet 1 " + kToken + " ";
  const std::string json = fs::Root(rank(1)).read("rank.json").value_or("");
  const std::string place_file = "rank.json " + std::to_string(json.size()) + "\n" + json;
  const std::vector<std::string> texts = {
      hello + "../evil\n" + place_file + "end\n",
      hello + ".hidden\n" + place_file + "end\n",
      hello + "a/b\n" + place_file + "end\n",
      hello + "\n" + place_file + "end\n",
      hello + "x\n" + place_file + "../evil 4\nevilend\n",
      hello + "x\n" + place_file + "/etc/evil 4\nevilend\n",
      hello + "x\n" + place_file + "rank.json 4\nevilend\n",
      hello + "x\n" + place_file + "events.bin 99999999999999\nevil",
      hello + "x\nevents.bin 4\nevilend\n",
      hello + "x\nrank.json 4\nevilend\n",
      hello + "x\n" + place_file + "events.bin 100\ncut off"};
  for (const std::string& text : texts) {
    const std::string answer = say(text);
    EXPECT_TRUE(answer.empty() || answer == "go\n") << text << "\n" << answer;
  }
  EXPECT_TRUE(arrived().empty()) << arrived()[0];
  EXPECT_EQ(fs::Root(home.path()).list("").value_or({}), std::vector<std::string>{"runs"});
  EXPECT_EQ(say(hello + "x\n" + place_file + "end\n"), "go\nok\n") << "and this is what is wanted";
}

// Pieces of what is said in any order: whatever comes, the next rank is served.
TEST_F(MeetingTest, SurvivesSpoiltGuests) {
  const std::string json = fs::Root(rank(1)).read("rank.json").value_or("");
  const std::vector<std::string> pieces = {
      "flatout-meet 1 ",
      kToken,
      " ",
      "name",
      "\n",
      "rank.json ",
      std::to_string(json.size()),
      json,
      "events.bin 3\nabc",
      "series.bin ",
      "end\n",
      "-1",
      "0x10",
      "99999999999999999999",
      std::string(2000, 'x'),
      std::string(3, '\0'),
      "\xff\xfe",
      "..",
      "/",
      "\r\n",
      "flatout-meet 1 " + kToken + " name\nrank.json " + std::to_string(json.size()) + "\n" + json};
  std::mt19937 random(11);
  const auto pick = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (size_t n = 1 + pick(10); n > 0; --n) text += pieces[pick(pieces.size())];
    const std::string answer = say(text);
    EXPECT_TRUE(answer.empty() || answer == "go\n" || answer == "go\nok\n" || answer == "have\n")
        << answer;
  }
  EXPECT_TRUE(bring_to_meeting(rank(2), place, kToken).ok());
}

// More guests than are served at once say nothing at all: that must not keep rank 0 from its end,
// which would wait ten seconds for the silence of each.
TEST_F(MeetingTest, EndsAtOnceWhateverSilentGuestsThereAre) {
  std::vector<int> guests;
  for (int i = 0; i < 80; ++i) {
    guests.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(place.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(guests.back(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  auto gone = std::async(std::launch::async, [this] { meeting.reset(); });
  EXPECT_EQ(gone.wait_for(std::chrono::seconds(8)), std::future_status::ready);
  for (const int guest : guests) ::close(guest);
}

TEST(MeetingPlaces, AreReadAsTheyAreWritten) {
  EXPECT_EQ(parse_meeting_place("node0:8611")->host, "node0");
  EXPECT_EQ(parse_meeting_place("10.0.0.1:80")->port, 80);
  EXPECT_EQ(parse_meeting_place("[::1]:8611")->host, "::1");
  for (const char* text : {"", "node0", ":8611", "node0:", "node0:x", "node0:70000", "::1:8611"}) {
    EXPECT_FALSE(parse_meeting_place(text)) << text;
  }
}

}  // namespace
}  // namespace flatout::recorder
