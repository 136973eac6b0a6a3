// Several processes under one limit, on one stand-in card; and the parts of the interposer by
// themselves.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "devlimit/array_bytes.h"
#include "devlimit/image_bytes.h"
#include "devlimit/ledger.h"
#include "devlimit/spec.h"
#include "devlimit/table.h"
#include "devlimit/testing/fake_card.h"

namespace flatout::devlimit {
namespace {

using fake::kMiB;

std::string temporary_file(const char* name) {
  std::string path = std::string("/tmp/flatout-") + name + "-XXXXXX";
  const int fd = ::mkstemp(path.data());
  if (fd >= 0) ::close(fd);
  return path;
}

class SharedLimit : public testing::Test {
 protected:
  SharedLimit() : card_file_(temporary_file("card")), ledger_file_(temporary_file("ledger")) {
    ::setenv("FAKE_CARD", card_file_.c_str(), 1);
    ::setenv("FLATOUT_DEVLIMIT_SHARED", ledger_file_.c_str(), 1);
    ::setenv("LD_LIBRARY_PATH", FLATOUT_FAKE_DRIVERS, 1);
    fake::card();
  }
  ~SharedLimit() override {
    ::unlink(card_file_.c_str());
    ::unlink(ledger_file_.c_str());
  }
  struct Job {
    pid_t pid = 0;
    std::string says;  // its first line, where asked for
  };
  static Job start(const std::string& words, bool wait_for_line) {
    int pipe_ends[2];
    EXPECT_EQ(::pipe(pipe_ends), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::dup2(pipe_ends[1], 1);
      ::close(pipe_ends[0]);
      ::close(pipe_ends[1]);
      ::setenv("LD_PRELOAD", FLATOUT_DEVLIMIT_LIBRARY, 1);
      ::execl("/bin/sh", "sh", "-c", ("exec " FLATOUT_DEVLIMIT_JOB " " + words).c_str(), nullptr);
      ::_exit(127);
    }
    ::close(pipe_ends[1]);
    Job job{pid, ""};
    char c = 0;
    while (wait_for_line && ::read(pipe_ends[0], &c, 1) == 1 && c != '\n') job.says += c;
    ::close(pipe_ends[0]);
    return job;
  }
  static int wait_for(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    fake::card().died(pid);
    return status;
  }
  std::string card_file_, ledger_file_;
};

TEST_F(SharedLimit, SixtyFourThreadsInEightProcessesNeverPassIt) {
  constexpr uint64_t kLimit = 3072 * kMiB;
  ::setenv("FLATOUT_DEVLIMIT", "3GiB", 1);
  std::vector<pid_t> pids;
  pids.reserve(8);
  for (int i = 0; i < 8; ++i) pids.push_back(start("stress 400 8 8", false).pid);
  for (const pid_t pid : pids) EXPECT_EQ(wait_for(pid), 0);
  EXPECT_LE(fake::card().peak[0], kLimit);
  EXPECT_GT(fake::card().peak[0], kLimit / 10 * 8) << "it was made use of";
  EXPECT_GT(fake::card().refused, 0u);
  EXPECT_EQ(fake::card().used[0], 0u);
  // And nothing stayed charged: all of it is there for the next.
  const Job last = start("hold " + std::to_string(kLimit - fake::kContextBytes), true);
  EXPECT_EQ(last.says, "held");
  ::kill(last.pid, SIGKILL);
  wait_for(last.pid);
}

TEST_F(SharedLimit, WhatAKilledProcessHeldIsThereForTheNext) {
  ::setenv("FLATOUT_DEVLIMIT", "1GiB", 1);
  const Job first = start("hold 600000000", true);
  ASSERT_EQ(first.says, "held");
  const Job refused = start("hold 600000000", true);
  EXPECT_EQ(refused.says, "refused");
  wait_for(refused.pid);
  ::kill(first.pid, SIGKILL);
  wait_for(first.pid);
  const Job second = start("hold 600000000", true);
  EXPECT_EQ(second.says, "held");
  ::kill(second.pid, SIGKILL);
  wait_for(second.pid);
}

TEST_F(SharedLimit, WithoutAMeasurementContextsAreGuessed) {
  ::setenv("FLATOUT_DEVLIMIT", "1GiB", 1);
  ::setenv("FAKE_NO_PROCESSES", "1", 1);
  const Job job = start("info", true);
  wait_for(job.pid);
  ::unsetenv("FAKE_NO_PROCESSES");
  EXPECT_EQ(job.says, "1073741824 " + std::to_string(724 * kMiB) + " 1073741824 " +
                          std::to_string(300 * kMiB));
}

// An instance of a card goes by another name, and NVML is asked in vain what a process holds of it.
TEST_F(SharedLimit, NvmlShowsTheLimitOfAnInstanceOfACard) {
  ::setenv("FLATOUT_DEVLIMIT", "1GiB", 1);
  ::setenv("FAKE_MIG", "1", 1);
  const Job job = start("info", true);
  wait_for(job.pid);
  ::unsetenv("FAKE_MIG");
  EXPECT_EQ(job.says, "1073741824 " + std::to_string(724 * kMiB) + " 1073741824 " +
                          std::to_string(300 * kMiB));
}

TEST_F(SharedLimit, BeforeCudaIsUsedNvmlShowsTheLimitsOfTheCardsThatTheJobSees) {
  ::setenv("FLATOUT_DEVLIMIT", "0=1GiB,1=2GiB", 1);
  const std::string gib = std::to_string(1024 * kMiB), two = std::to_string(2048 * kMiB),
                    all = std::to_string(fake::kCapacity);
  const auto says = [&](const char* visible) {
    if (visible != nullptr) ::setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    const Job job = start("nvml", true);
    wait_for(job.pid);
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    return job.says;
  };
  EXPECT_EQ(says(nullptr), gib + " " + two);
  EXPECT_EQ(says("1,0"), two + " " + gib);
  EXPECT_EQ(says("1"), all + " " + gib);
  EXPECT_EQ(says("GPU-11111111, GPU-10101010"), two + " " + gib);
  EXPECT_EQ(says("0,-1,1"), gib + " " + all) << "what stands behind an invalid one is not seen";
  EXPECT_EQ(says(""), all + " " + all);
}

// Neither is charged twice where threads make it at once, nor left charged where one makes it while
// another ends it.
TEST_F(SharedLimit, APrimaryContextThatThreadsShareIsGuessedOnce) {
  ::setenv("FLATOUT_DEVLIMIT", "8GiB", 1);
  ::setenv("FAKE_NO_PROCESSES", "1", 1);
  const Job job = start("contexts 2000 8", true);
  wait_for(job.pid);
  ::unsetenv("FAKE_NO_PROCESSES");
  EXPECT_EQ(job.says, std::to_string(300 * kMiB) + " 0");
}

TEST_F(SharedLimit, WithoutAMeasurementAHeapGoesWithItsContextAndWhereItIsLowered) {
  ::setenv("FLATOUT_DEVLIMIT", "8GiB", 1);
  ::setenv("FAKE_NO_PROCESSES", "1", 1);
  const Job job = start("heap 3", true);
  wait_for(job.pid);
  ::unsetenv("FAKE_NO_PROCESSES");
  EXPECT_EQ(job.says, std::to_string(400 * kMiB) + " " + std::to_string(300 * kMiB) + " 0");
}

TEST(DevlimitLedger, TwoRacersNeverBothFailNorBothPass) {
  Ledger* const ledger = Ledger::open(nullptr);
  const int row = ledger->device(7, 100);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> won{0}, ready{0};
    const auto race = [&] {
      ++ready;
      while (ready < 2) std::this_thread::yield();
      if (ledger->charge(row, 60)) ++won;
    };
    std::thread other(race);
    race();
    other.join();
    ASSERT_EQ(won, 1);
    ledger->give_back(row, 60);
    ASSERT_EQ(ledger->used(row), 0u);
  }
}

TEST(DevlimitLedger, TakesItsRoomAtOnceSoThatAFullDiskIsNoSignalLater) {
  const std::string path = temporary_file("ledger");
  ASSERT_NE(Ledger::open(path.c_str()), nullptr);
  struct stat s {};
  ASSERT_EQ(::stat(path.c_str(), &s), 0);
  ::unlink(path.c_str());
  EXPECT_GE(static_cast<size_t>(s.st_size), sizeof(Ledger));
  EXPECT_GE(static_cast<size_t>(s.st_blocks) * 512, sizeof(Ledger));
}

TEST(DevlimitLedger, RowsGoByTheCardAndTheFirstLimitCounts) {
  Ledger* const ledger = Ledger::open(nullptr);
  EXPECT_EQ(ledger->find(5), -1);
  const int row = ledger->device(5, 100);
  EXPECT_EQ(ledger->device(5, 900), row);
  EXPECT_EQ(ledger->find(5), row);
  EXPECT_EQ(ledger->limit(row), 100u);
  EXPECT_NE(ledger->device(6, 1), row);
  EXPECT_FALSE(ledger->charge(row, UINT64_MAX)) << "sums do not wrap round";
  ledger->charge_anyway(row, 150);
  EXPECT_EQ(ledger->room(row), 0u) << "nor do differences";
  EXPECT_FALSE(ledger->charge(row, 1));
}

TEST(DevlimitLedger, KnowsTheMostThatWasHeldWhileItWatched) {
  Ledger* const ledger = Ledger::open(nullptr);
  const int row = ledger->device(8, 1000);
  ASSERT_TRUE(ledger->charge(row, 500));
  ledger->give_back(row, 400);
  ledger->watch(row);
  EXPECT_EQ(ledger->most_own(row), 100u) << "what was before does not count";
  ledger->charge_anyway(row, 200);
  ledger->give_back(row, 250);
  ASSERT_TRUE(ledger->charge(row, 10));
  EXPECT_EQ(ledger->most_own(row), 300u);
  ledger->give_back(row, 60);
}

TEST(DevlimitSpec, SizesFractionsAndDevices) {
  constexpr uint64_t kTotal = 1000, kNone = UINT64_MAX;
  EXPECT_EQ(limit_of("8GiB", 3, kTotal), uint64_t{8} << 30);
  EXPECT_EQ(limit_of("1.5G", 0, kTotal), uint64_t{3} << 29);
  EXPECT_EQ(limit_of("512M", 0, kTotal), uint64_t{512} << 20);
  for (const char* words : {"8g", "8GB", "8gib", "8Gi", "8 GiB"})
    EXPECT_EQ(limit_of(words, 0, kTotal), uint64_t{8} << 30) << words;
  EXPECT_EQ(limit_of("4096", 0, kTotal), 4096u);
  EXPECT_EQ(limit_of("0.25", 0, kTotal), 250u);
  EXPECT_EQ(limit_of("0.500000000", 0, kTotal), 500u);
  EXPECT_EQ(limit_of(".5", 0, kTotal), 500u);
  EXPECT_EQ(limit_of("12.5%", 0, kTotal), 125u);
  EXPECT_EQ(limit_of("50%", 0, kTotal), 500u);
  EXPECT_EQ(limit_of("0=4K,1=0.5", 0, kTotal), 4096u);
  EXPECT_EQ(limit_of("0=4K,1=0.5", 1, kTotal), 500u);
  EXPECT_EQ(limit_of("0=4K,1=0.5", 2, kTotal), kNone);
  EXPECT_EQ(limit_of(nullptr, 0, kTotal), kNone);
  for (const char* bad :
       {"lots", "4X", "1.5", "200%", "-1", "4Kx", "0=", ".", "1.2.3", "1e3", "0x10"})
    EXPECT_EQ(limit_of(bad, 0, kTotal), 0u) << bad;
}

TEST(DevlimitTable, KeepsWhatItIsGivenThroughGrowthAndReuse) {
  Table table;
  for (uint64_t round = 0; round < 4; ++round) {
    for (uint64_t i = 0; i < 5000; ++i) ASSERT_TRUE(table.put({i * 64, Kind::kMemory, 0, i}));
    for (uint64_t i = 0; i < 5000; ++i) ASSERT_EQ(table.find(Kind::kMemory, i * 64)->bytes, i);
    EXPECT_EQ(table.find(Kind::kArray, 64), nullptr);
    for (uint64_t i = 0; i < 5000; ++i) ASSERT_EQ(table.take(Kind::kMemory, i * 64).bytes, i);
    EXPECT_EQ(table.take(Kind::kMemory, 64).kind, Kind::kNone);
  }
}

TEST(DevlimitSizes, ArraysAndImagesAreNotUnderrated) {
  EXPECT_EQ(array_bytes({1024, 1024, 0, 0x20, 4, 0}, 1), 16 * kMiB);
  EXPECT_EQ(array_bytes({1, 0, 0, 0x01, 1, 0}, 1), 64u << 10);
  EXPECT_EQ(array_bytes({1024, 1024, 6, 0x20, 1, 0x04}, 1), 24 * kMiB);
  EXPECT_EQ(array_bytes({1024, 1024, 0, 0x20, 1, CUDA_ARRAY3D_SPARSE}, 1), 0u);
  EXPECT_GE(array_bytes({512, 512, 0, 0x95, 4, 0}, 1), 512u * 512u)
      << "a format by a name of its own";
  EXPECT_EQ(image_bytes(nullptr), 0u);
  EXPECT_EQ(image_bytes(".version 8.0"), 2 * kMiB);
}

}  // namespace
}  // namespace flatout::devlimit
