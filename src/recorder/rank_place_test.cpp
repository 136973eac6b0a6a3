#include "recorder/rank_place.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "recorder/test_folder.h"

namespace flatout::recorder {
namespace {

using Environment = std::vector<std::string>;

struct Case {
  const char* launcher;
  int32_t rank, world, local, node;
  Environment environment;
};

TEST(RankPlace, IsToldByEveryLaunchersEnvironment) {
  const Case cases[] = {
      {"torchrun",
       3,
       8,
       1,
       1,
       {"RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1",
        "TORCHELASTIC_RUN_ID=none", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500"}},
      {"accelerate",
       0,
       2,
       0,
       0,
       {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "GROUP_RANK=0", "TORCHELASTIC_RUN_ID=none",
        "ACCELERATE_MIXED_PRECISION=no"}},
      {"deepspeed",
       5,
       8,
       1,
       1,
       {"RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "CROSS_RANK=1", "CROSS_SIZE=2", "LOCAL_SIZE=4"}},
      {"openmpi",
       7,
       16,
       3,
       -1,
       {"OMPI_COMM_WORLD_RANK=7", "OMPI_COMM_WORLD_SIZE=16", "OMPI_COMM_WORLD_LOCAL_RANK=3",
        "PMIX_NAMESPACE=prterun-n1-77@1", "PMIX_RANK=7"}},
      {"hydra", 2, 4, 2, -1, {"PMI_RANK=2", "PMI_SIZE=4", "MPI_LOCALRANKID=2"}},
      {"slurm",
       5,
       8,
       1,
       2,
       {"SLURM_JOB_ID=91", "SLURM_STEP_ID=0", "SLURM_PROCID=5", "SLURM_NTASKS=8", "SLURM_LOCALID=1",
        "SLURM_NODEID=2"}},
      {"kubernetes", 4, 0, -1, 4, {"JOB_COMPLETION_INDEX=4"}},
      // The innermost one gives the rank.
      {"torchrun",
       1,
       4,
       1,
       0,
       {"SLURM_JOB_ID=91", "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=2", "RANK=1",
        "WORLD_SIZE=4", "LOCAL_RANK=1", "GROUP_RANK=0", "TORCHELASTIC_RUN_ID=x"}},
      {"environment", 1, 2, -1, -1, {"RANK=1", "WORLD_SIZE=2"}},
  };
  for (const Case& c : cases) {
    const RankPlace place = rank_place(c.environment);
    EXPECT_EQ(place.launcher, c.launcher);
    EXPECT_EQ(place.rank, c.rank) << c.launcher;
    EXPECT_EQ(place.world, c.world) << c.launcher;
    EXPECT_EQ(place.local, c.local) << c.launcher;
    EXPECT_EQ(place.node, c.node) << c.launcher;
  }
}

TEST(RankPlace, MpiMayBeUsedWhereOneOfItsLaunchersIs) {
  EXPECT_TRUE(may_use_mpi({"/usr/bin/mpirun", "-n", "4", "python"}, {}));
  EXPECT_TRUE(may_use_mpi({"env", "A=b", "srun", "./train"}, {}));
  EXPECT_FALSE(may_use_mpi({"python", "mpirun.py", "--mpirun"}, {}));
  EXPECT_TRUE(may_use_mpi({"python"}, {"OMPI_COMM_WORLD_RANK=0"}));
  EXPECT_TRUE(may_use_mpi({"python"}, {"SLURM_STEP_ID=0"}));
  EXPECT_FALSE(may_use_mpi({"python"}, {"RANK=0", "TORCHELASTIC_RUN_ID=a", "SLURM_JOB_ID=3"}));
}

TEST(RankPlace, OneProcessAloneIsNoRank) {
  for (const Environment& environment :
       {Environment{}, Environment{"RANK=../x"}, Environment{"RANK=-1", "WORLD_SIZE=2"},
        Environment{"RANK=0", "WORLD_SIZE=1", "TORCHELASTIC_RUN_ID=none"},
        Environment{"SLURM_JOB_ID=9", "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=1"},
        // A batch script, which has yet to start its ranks.
        Environment{"SLURM_JOB_ID=9", "SLURM_PROCID=0", "SLURM_NTASKS=8"}}) {
    EXPECT_FALSE(rank_place(environment).is_rank());
  }
}

class LaunchOfRanks : public ::testing::Test {
 protected:
  void rank(const std::string& name, int32_t rank, int32_t launcher, int64_t begin_s,
            const std::string& port = "29500") {
    const RankPlace place = rank_place({"RANK=" + std::to_string(rank), "WORLD_SIZE=2",
                                        "TORCHELASTIC_RUN_ID=none", "MASTER_PORT=" + port});
    std::filesystem::create_directories(root_ / name);
    std::ofstream(root_ / (name + "/rank.json"))
        << rank_file(place, launcher, begin_s * 1'000'000'000);
  }
  TestFolder root_;
};

TEST_F(LaunchOfRanks, FindsItsRanksAndNoOthers) {
  rank("a-r0", 0, 10, 1000);
  rank("a-r1", 1, 10, 1002);
  rank("before-r1", 1, 9, 900);        // another launcher, same names
  rank("other-r1", 1, 10, 1001, "1");  // another job
  rank("a-r1-again", 1, 10, 1050);     // the rank was started again
  rank(".arriving-x", 2, 10, 1001);    // brought over the network, not all of it yet
  const std::vector<std::string> expected{root_ / "a-r0", root_ / "a-r1-again"};
  EXPECT_EQ(folders_of_launch(root_ / "a-r0"), expected);
}

TEST_F(LaunchOfRanks, TimesThatMakeNoSenseBreakNothing) {
  rank("a-r0", 0, 10, 1000);
  for (const char* begin : {"-9223372036854775808", "9223372036854775807", "-1"}) {
    std::ofstream(root_ / "a-r0/rank.json")
        << R"({"rank": 0, "launcher": "torchrun", "begin_unix_ns": )" << begin << "}";
    EXPECT_EQ(folders_of_launch(root_ / "a-r0").size(), 1u) << begin;
    EXPECT_GE(read_rank_file(root_ / "a-r0").begin_unix_ns, 0) << begin;
  }
}

TEST_F(LaunchOfRanks, AFileThatMakesNoSenseIsNoRank) {
  rank("a-r0", 0, 10, 1000);
  std::filesystem::create_directories(root_ / "bad");
  for (const char* text :
       {"", "[]", "{\"rank\": \"0\"}", "{\"rank\": -4}", "{", "{\"rank\": 1e99}"}) {
    std::ofstream(root_ / "bad/rank.json") << text;
    EXPECT_FALSE(read_rank_file(root_ / "bad").place.is_rank()) << text;
    EXPECT_EQ(folders_of_launch(root_ / "a-r0").size(), 1u) << text;
  }
}

}  // namespace
}  // namespace flatout::recorder
