#include "train/ranks.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <thread>

namespace flatout::train {
namespace {

using namespace std::chrono_literals;

std::function<const char*(const char*)> variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> const char* {
    const auto it = values.find(name);
    return it == values.end() ? nullptr : it->second.c_str();
  };
}

TEST(RankPlace, IsReadFromEachStartersVariables) {
  const auto alone = find_rank_place(variables({}));
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->size, 1);
  const auto mpi = find_rank_place(variables({{"OMPI_COMM_WORLD_RANK", "2"},
                                              {"OMPI_COMM_WORLD_SIZE", "4"},
                                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                              {"SLURM_STEP_NUM_TASKS", "1"}}));
  ASSERT_TRUE(mpi.ok());
  EXPECT_EQ(mpi->carrier, RankPlace::Carrier::kMpi);
  EXPECT_EQ(mpi->rank, 2);
  EXPECT_EQ(mpi->local, 2);
  std::map<std::string, std::string> set = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
  const auto torchrun = find_rank_place(variables(set));
  ASSERT_TRUE(torchrun.ok());
  EXPECT_EQ(torchrun->carrier, RankPlace::Carrier::kSockets);
  EXPECT_EQ(torchrun->address, "node1");
  EXPECT_EQ(torchrun->port, 29500);
  set["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // torchrun itself listens on 29500
  EXPECT_EQ(find_rank_place(variables(set))->port, 29501);
  const auto slurm = find_rank_place(variables({{"SLURM_PROCID", "3"},
                                                {"SLURM_STEP_NUM_TASKS", "4"},
                                                {"SLURM_JOB_ID", "40007"},
                                                {"SLURM_STEP_NODELIST", "gpu[07-09,12],cpu1"}}));
  ASSERT_TRUE(slurm.ok());
  EXPECT_EQ(slurm->rank, 3);
  EXPECT_EQ(slurm->address, "gpu07");
  EXPECT_EQ(slurm->port, 20007);
  std::map<std::string, std::string> by_hand{
      {"RANK", "5"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(find_rank_place(variables(by_hand))->local_rank, 5);
  by_hand["LOCAL_RANK"] = "1";
  EXPECT_EQ(find_rank_place(variables(by_hand))->local_rank, 1);
  // A batch script has no tasks of srun around it.
  EXPECT_EQ(find_rank_place(variables({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}))->size, 1);
}

TEST(RankPlace, NamesTheVariableThatIsWrong) {
  const auto bad = [](std::map<std::string, std::string> values) {
    const auto place = find_rank_place(variables(std::move(values)));
    return place.ok() ? std::string() : place.error().message;
  };
  EXPECT_NE(bad({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).find("RANK=2"), std::string::npos);
  EXPECT_NE(bad({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).find("RANK=x"), std::string::npos);
  EXPECT_NE(bad({{"RANK", "1"}, {"WORLD_SIZE", "2"}}).find("MASTER_ADDR"), std::string::npos);
  EXPECT_NE(bad({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}).find("MASTER_PORT"),
            std::string::npos);
  EXPECT_NE(bad({{"OMPI_COMM_WORLD_SIZE", "2"}}).find("OMPI_COMM_WORLD_RANK"), std::string::npos);
}

TEST(RankPlace, FindsTheFirstHostOfAList) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node1,node2"), "node1");
  EXPECT_EQ(first_host("node[07-09,12],other"), "node07");
  EXPECT_EQ(first_host("node[3,5]-ib"), "node3-ib");
  EXPECT_EQ(first_host("node[3"), "node3");
  EXPECT_EQ(first_host(""), "");
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

constexpr int kNone = -1;

std::vector<JobPart> a_job() {
  return {{"--batch", "32"}, {"--learning-rate", "0.02"}, {"weights", "1a"}};
}

/// work(rank, what join gave) in a thread for each of `size` ranks, less those in `absent`. The job
/// of `other` is `its` instead.
template <class Work>
void with_ranks(int size, Nanos patience, const Work& work, int absent = kNone, int other = kNone,
                bool nccl = false, const std::vector<JobPart>& its = {}) {
  RankPlace place;
  place.carrier = RankPlace::Carrier::kSockets;
  place.size = size;
  place.address = "127.0.0.1";
  place.port = free_port();
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    if (r == absent) continue;
    threads.emplace_back([&, r] {
      RankPlace mine = place;
      mine.rank = r;
      auto ranks = Ranks::join(mine, r == other ? its : a_job(), patience);
      const Status taken = nccl && ranks.ok() ? (*ranks)->take_nccl(r) : Status();
      work(r, taken.ok() ? std::move(ranks) : Result<std::unique_ptr<Ranks>>(taken.error()));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void average_the_same_bits_everywhere(bool nccl) {
  constexpr int kRanks = 4;
  constexpr size_t kCount = 300'001;  // more than a socket's buffer holds
  std::vector<std::vector<float>> values(kRanks);
  for (int r = 0; r < kRanks; ++r) {
    for (size_t i = 0; i < kCount; ++i) {
      values[static_cast<size_t>(r)].push_back(static_cast<float>((i * 31 + 7) % 1009) /
                                               static_cast<float>(r + 3));
    }
  }
  std::vector<float> wanted(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    for (const auto& v : values) wanted[i] += v[i];
    wanted[i] /= kRanks;
  }
  std::vector<std::vector<double>> gathered(kRanks, std::vector<double>(size_t{2} * kRanks));
  const auto work = [&](int r, Result<std::unique_ptr<Ranks>> ranks) {
    ASSERT_TRUE(ranks.ok()) << ranks.error().message;
    for (int round = 0; round < 2; ++round) {
      std::vector<float> mine = values[static_cast<size_t>(r)];
      ASSERT_TRUE((*ranks)->average(mine).ok());
      EXPECT_EQ(mine, wanted);
    }
    std::vector<float> three(3, static_cast<float>(r));  // fewer values than ranks
    ASSERT_TRUE((*ranks)->average(three).ok());
    EXPECT_EQ(three, std::vector<float>(3, 1.5F));
    const double mine[] = {r + 0.5, r * 10.0};
    ASSERT_TRUE((*ranks)->gather(mine, 2, gathered[static_cast<size_t>(r)].data()).ok());
  };
  with_ranks(kRanks, 60s, work, -1, kNone, nccl);
  for (const auto& all : gathered) {
    EXPECT_EQ(all, (std::vector<double>{0.5, 0, 1.5, 10, 2.5, 20, 3.5, 30}));
  }
}

TEST(Ranks, AverageTheSameBitsEverywhere) { average_the_same_bits_everywhere(false); }

TEST(Ranks, AverageFewerValuesThanThereAreRanks) {
  with_ranks(3, 60s, [](int r, Result<std::unique_ptr<Ranks>> ranks) {
    ASSERT_TRUE(ranks.ok()) << ranks.error().message;
    for (size_t count = 0; count < 6; ++count) {
      std::vector<float> mine(count, static_cast<float>(r));
      const Status status = (*ranks)->average(mine);
      ASSERT_TRUE(status.ok()) << status.error().message;
      EXPECT_EQ(mine, std::vector<float>(count, 1.0F));
    }
  });
}

TEST(Ranks, NameOneThatIsGone) {
  with_ranks(3, 60s, [](int r, Result<std::unique_ptr<Ranks>> ranks) {
    ASSERT_TRUE(ranks.ok());
    if (r == 1) return;  // its sockets close
    std::vector<float> values(1000);
    const Status status = (*ranks)->average(values);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::kGone);
    EXPECT_NE(status.error().message.find("rank 1 ("), std::string::npos) << status.error().message;
  });
}

TEST(Ranks, NameOneThatIsLate) {
  std::atomic<int> done{0};
  with_ranks(3, 1s, [&](int r, Result<std::unique_ptr<Ranks>> ranks) {
    ASSERT_TRUE(ranks.ok());
    if (r == 2) {
      while (done < 2) std::this_thread::sleep_for(1ms);
      return;
    }
    std::vector<float> values(1000);
    const Status status = (*ranks)->average(values);
    ASSERT_FALSE(status.ok());
    // The first to lose patience blames rank 2; the other does, too, or is told so.
    EXPECT_NE(status.error().message.find("rank 2 ("), std::string::npos) << status.error().message;
    ++done;
  });
}

TEST(Ranks, NameOneThatDoesNotCome) {
  with_ranks(
      3, 1s,
      [](int r, Result<std::unique_ptr<Ranks>> ranks) {
        ASSERT_FALSE(ranks.ok());
        EXPECT_EQ(ranks.error().code, Code::kTimeout);
        if (r == 0) {
          EXPECT_NE(ranks.error().message.find("rank 2 of 3"), std::string::npos)
              << ranks.error().message;
        }
      },
      2);
}

TEST(Ranks, NameTheOptionsInWhichOneDiffers) {
  const auto said = [](const std::vector<JobPart>& its) {
    std::vector<std::string> out(3);
    with_ranks(
        3, 60s,
        [&](int r, Result<std::unique_ptr<Ranks>> ranks) {
          ASSERT_FALSE(ranks.ok());
          EXPECT_EQ(ranks.error().code, Code::kBadInput);
          out[static_cast<size_t>(r)] = ranks.error().message;
        },
        kNone, 1, false, its);
    return out;
  };
  auto job = a_job();
  job[1].value = "0.1";
  EXPECT_EQ(said(job), (std::vector<std::string>{
                           "rank 1 was started with other options: --learning-rate (here 0.02)",
                           "rank 0 was started with other options: --learning-rate (here 0.1)",
                           "rank 1 was started with other options: --learning-rate (here 0.02)"}));
  job[2].value = "2b";  // as a consequence
  EXPECT_EQ(said(job)[0], "rank 1 was started with other options: --learning-rate (here 0.02)");
  job[0].value = "64";
  EXPECT_EQ(said(job)[0],
            "rank 1 was started with other options: --batch (here 32), --learning-rate (here "
            "0.02)");
  job = a_job();
  job[2].value = "2b";
  EXPECT_EQ(said(job)[0], "rank 1 was started with other options: weights (here 1a)");
}

TEST(Ranks, AreNotDisturbedByAStranger) {
  RankPlace place;
  place.carrier = RankPlace::Carrier::kSockets;
  place.size = 2;
  place.address = "127.0.0.1";
  place.port = free_port();
  std::thread first([&] { EXPECT_TRUE(Ranks::join(place, a_job(), 60s).ok()); });
  const sockaddr_in address = loopback(place.port);
  int fd = -1;
  do {
    if (fd >= 0) close(fd);
    fd = socket(AF_INET, SOCK_STREAM, 0);
  } while (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0);
  EXPECT_GT(write(fd, "GET / HTTP/1.1\r\n\r\n", 18), 0);
  close(fd);
  RankPlace other = place;
  other.rank = 1;
  EXPECT_TRUE(Ranks::join(other, a_job(), 60s).ok());
  first.join();
}

TEST(Ranks, SayThatNoDescriptorIsLeftForOneThatComes) {
  RankPlace place;
  place.carrier = RankPlace::Carrier::kSockets;
  place.size = 2;
  place.address = "127.0.0.1";
  place.port = free_port();
  const int comes = socket(AF_INET, SOCK_STREAM, 0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(comes);
  close(next);
  rlimit one_more = before;
  one_more.rlim_cur = static_cast<rlim_t>(next) + 1;  // that one listens
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one_more), 0);
  std::string said;
  std::atomic<bool> ended{false};
  std::thread first([&] {
    const auto ranks = Ranks::join(place, a_job(), 60s);
    if (!ranks.ok()) said = ranks.error().message;
    ended = true;
  });
  const sockaddr_in address = loopback(place.port);
  while (!ended &&
         connect(comes, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
  }
  first.join();
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  close(comes);
  EXPECT_EQ(said, "cannot take the connection of another rank: Too many open files");
}

/// NCCL and cards for it, of the stand-ins: found by their names from now on.
class OverNccl : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (const char* name : {"libcuda.so.1", "libnccl.so.2"}) {
      const std::string path = std::string(FLATOUT_BUILD_DIR "/nccl_stand_in/") + name;
      ASSERT_NE(dlopen(path.c_str(), RTLD_NOW), nullptr) << dlerror();
    }
  }
  void TearDown() override {
    unsetenv("NCCL_STAND_IN_FAILS");
    unsetenv("CUDA_STAND_IN_CARDS");
  }
  /// What two ranks say when they average while something fails. With `together` both are there
  /// until both have said it.
  static std::vector<std::string> errors(const char* fails, bool together = true) {
    setenv("NCCL_STAND_IN_FAILS", fails, 1);
    std::vector<std::string> out(2);
    std::atomic<int> ended{0};
    with_ranks(
        2, 1s,
        [&](int r, Result<std::unique_ptr<Ranks>> ranks) {
          std::vector<float> values(1000);
          const Status status = ranks.ok() ? (*ranks)->average(values) : Status(ranks.error());
          out[static_cast<size_t>(r)] = status.ok() ? "" : status.error().message;
          for (++ended; together && ended < 2;) std::this_thread::sleep_for(1ms);
        },
        -1, kNone, true);
    return out;
  }
};

TEST_F(OverNccl, AverageTheSameBitsEverywhere) { average_the_same_bits_everywhere(true); }

TEST_F(OverNccl, NameOneThatIsGone) {
  with_ranks(
      3, 60s,
      [](int r, Result<std::unique_ptr<Ranks>> ranks) {
        ASSERT_TRUE(ranks.ok()) << ranks.error().message;
        if (r == 1) return;
        std::vector<float> values(1000);
        const Status status = (*ranks)->average(values);
        ASSERT_FALSE(status.ok());
        EXPECT_EQ(status.error().code, Code::kGone);
        EXPECT_NE(status.error().message.find("rank 1 ("), std::string::npos)
            << status.error().message;
      },
      -1, kNone, true);
}

TEST_F(OverNccl, SayWhatFails) {
  for (const std::string& said : errors("init")) {
    EXPECT_EQ(said, "--nccl: ncclCommInitRank gives \"unhandled system error (of the stand-in)\"");
  }
  for (const std::string& said : errors("send")) {
    EXPECT_NE(said.find("send and receive gives \"unhandled system error"), said.npos) << said;
  }
  for (const std::string& said : errors("async")) {
    EXPECT_NE(said.find("an exchange gives \"remote process exited"), said.npos) << said;
  }
  // What NCCL never ends, in a call or on the card.
  for (const char* fails : {"connect", "late"}) {
    for (const std::string& said : errors(fails)) {
      EXPECT_EQ(said,
                "--nccl: NCCL has not moved the ranks' messages in 1.00 s, though all of them are "
                "there");
    }
  }
}

TEST_F(OverNccl, SayWhatFailsForOneOfThem) {
  for (const char* fails : {"init@1", "send@1", "async@1"}) {
    const std::vector<std::string> said = errors(fails, false);
    EXPECT_NE(said[0].find("rank 1 ("), said[0].npos) << fails << ": " << said[0];
    EXPECT_NE(said[0].find("of 2 is gone"), said[0].npos) << fails << ": " << said[0];
    EXPECT_NE(said[1].find(" gives \""), said[1].npos) << fails << ": " << said[1];
  }
}

TEST_F(OverNccl, TakeACardEach) {
  setenv("CUDA_STAND_IN_CARDS", "2", 1);
  // The one that has its own says the same: nobody waits for the others to end.
  with_ranks(
      3, 5s,
      [](int, Result<std::unique_ptr<Ranks>> ranks) {
        ASSERT_FALSE(ranks.ok());
        EXPECT_EQ(ranks.error().code, Code::kBadInput);
        EXPECT_EQ(ranks.error().message, "--nccl: ranks 0 and 2 have the same card");
      },
      -1, kNone, true);
  setenv("CUDA_STAND_IN_CARDS", "0", 1);
  with_ranks(
      2, 5s,
      [](int, Result<std::unique_ptr<Ranks>> ranks) {
        ASSERT_FALSE(ranks.ok());
        EXPECT_EQ(ranks.error().code, Code::kNotFound);
        EXPECT_EQ(ranks.error().message, "--nccl: there is no card");
      },
      -1, kNone, true);
}

}  // namespace
}  // namespace flatout::train
