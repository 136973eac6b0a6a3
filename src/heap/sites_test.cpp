#include "heap/sites.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace flatout::heap {
namespace {

constexpr uint64_t kBlock = 1 << 20;

// A Python job: `grows` at train.py:12 below torch's own code, `steady` at model.py:5.
Record job() {
  Record r;
  r.interval = 512 << 10;
  r.places = {{1, {"zeros", "/venv/lib/python3.11/site-packages/torch/_tensor.py", 99}},
              {2, {"step", "/job/train.py", 12}},
              {3, {"forward", "/job/model.py", 5}},
              {4, {"main", "/job/train.py", 40}}};
  RecordStack grows, steady;
  grows.python = {1, 2, 4};
  steady.python = {3, 2, 4};
  for (uint64_t i = 0; i < 16; ++i) {
    r.moments_ns.push_back(1000 * (i + 1));
    grows.at_moment.push_back(2 * i * kBlock);
    steady.at_moment.push_back(100 * kBlock);
  }
  grows.live_bytes = grows.peak_bytes = grows.total_bytes = 30 * kBlock;
  grows.samples = 60;
  grows.sample_bytes = steady.sample_bytes = r.interval;
  steady.live_bytes = steady.peak_bytes = 100 * kBlock;
  steady.total_bytes = 9000 * kBlock;
  steady.samples = 9000;
  r.stacks = {grows, steady};
  return r;
}

TEST(Sites, NameTheUsersLine) {
  const auto sites = find_sites(job(), nullptr, {});
  ASSERT_EQ(sites.size(), 2u);
  EXPECT_EQ(sites[0].file, "/job/model.py");
  EXPECT_EQ(sites[1].file, "/job/train.py");
  EXPECT_EQ(sites[1].line, 12u);
  EXPECT_EQ(sites[1].function, "step");
}

TEST(Sites, FramesOfTheAgentAreNobodysLine) {
  const Frame agent{"install", "/src/python/flatout/agent/torch_hooks.py", 12, true};
  const Frame importing{"_load", "<frozen importlib._bootstrap>", 241, true};
  const Frame user{"<module>", "/job/train.py", 1, true};
  EXPECT_EQ(blamed_frame({agent, importing, user}), 2u);
  EXPECT_EQ(blamed_frame({agent, importing, agent}), 1u)
      << "nothing of the user's: not ours either";
  EXPECT_EQ(blamed_frame({agent}), 0u);
}

TEST(Sites, KnowTheLeakAndWhatAStepAdds) {
  // Two steps between moments.
  std::vector<uint64_t> steps;
  for (uint64_t i = 1; i <= 40; ++i) steps.push_back(500 * i - 100);
  const auto sites = find_sites(job(), nullptr, steps);
  const auto leaks = leaks_of(sites);
  ASSERT_EQ(leaks.size(), 1u);
  EXPECT_EQ(leaks[0]->line, 12u);
  ASSERT_TRUE(leaks[0]->bytes_per_step);
  EXPECT_NEAR(*leaks[0]->bytes_per_step, kBlock, 1);
  EXPECT_FALSE(find_sites(job(), nullptr, {})[1].bytes_per_step);
}

// Python frees the lists of its modules before it ends, and allocates a little meanwhile.
TEST(Sites, WhatIsFreedAsTheProgramEndsWasKeptUntilThen) {
  Record r = job();
  const auto end_with = [&](uint64_t grows) {
    r.moments_ns.push_back(1000 * (r.moments_ns.size() + 1));
    r.stacks[0].at_moment.push_back(grows * kBlock);
    r.stacks[1].at_moment.push_back(90 * kBlock);
  };
  end_with(0);
  r.stacks[0].live_bytes = 0;
  r.stacks[0].total_bytes = 30 * kBlock;
  std::vector<uint64_t> steps;
  for (uint64_t i = 1; i <= 40; ++i) steps.push_back(500 * i - 100);
  const auto sites = find_sites(r, nullptr, steps);
  const auto leaks = leaks_of(sites);
  ASSERT_EQ(leaks.size(), 1u);
  EXPECT_EQ(leaks[0]->line, 12u);
  EXPECT_NEAR(*leaks[0]->bytes_per_step, kBlock, 1);
  // What the program itself lets go of and then works on without is no leak.
  for (int i = 0; i < 4; ++i) end_with(0);
  EXPECT_TRUE(leaks_of(find_sites(r, nullptr, steps)).empty());
}

// Most of a short job's allocations are its imports: what these leave behind grew before its steps.
TEST(Sites, KnowTheLeakOfTheStepsFromWhatIsLoadedBefore) {
  Record r = job();
  for (uint64_t i = 0; i < 16; ++i) {
    r.stacks[0].at_moment[i] = i < 7 ? 0 : 2 * (i - 6) * kBlock;        // a leak in the steps
    r.stacks[1].at_moment[i] = std::min<uint64_t>(i, 7) * 14 * kBlock;  // and the imports
  }
  r.stacks[0].live_bytes = 18 * kBlock;
  std::vector<uint64_t> steps;
  for (uint64_t i = 0; i < 90; ++i) steps.push_back(7500 + 100 * i);
  EXPECT_EQ(first_moment(r, steps), 7u);
  const auto sites = find_sites(r, nullptr, steps);
  const auto leaks = leaks_of(sites);
  ASSERT_EQ(leaks.size(), 1u);
  EXPECT_EQ(leaks[0]->line, 12u);
  EXPECT_NEAR(*leaks[0]->bytes_per_step, kBlock / 5.0, kBlock / 50.0);
  EXPECT_TRUE(leaks_of(sites, false).empty());
}

// What the parent had before says nothing of a worker, and takes nothing from what grows in it.
TEST(Sites, AForkedProcesssLeakIsLookedForSinceTheFork) {
  Record r = job();
  for (RecordStack& s : r.stacks) s.at_moment.insert(s.at_moment.begin(), 200, s.at_moment[0]);
  std::vector<uint64_t> before(200);
  for (uint64_t i = 0; i < before.size(); ++i) before[i] = 500 * i;
  for (uint64_t& ns : r.moments_ns) ns += 100'000;
  r.moments_ns.insert(r.moments_ns.begin(), before.begin(), before.end());
  EXPECT_TRUE(leaks_of(find_sites(r, nullptr, {})).empty());
  r.forked_ns = 100'000;
  EXPECT_EQ(first_moment(r, {}), 200u);
  const auto sites = find_sites(r, nullptr, {});
  ASSERT_EQ(leaks_of(sites).size(), 1u);
  EXPECT_EQ(leaks_of(sites)[0]->line, 12u);
}

TEST(Sites, AnImportIsNoLeakHoweverLongItTakes) {
  Record r = job();
  r.places[5] = {"_load_unlocked", "<frozen importlib._bootstrap>", 690};
  r.stacks[0].python = {1, 5, 2, 4};  // train.py:12 imports torch, whose loading grows and grows
  EXPECT_TRUE(leaks_of(find_sites(r, nullptr, {})).empty());
  EXPECT_EQ(find_sites(r, nullptr, {})[1].at_moment[15], 30 * kBlock) << "it is told all the same";
  r.stacks[0].python = {1, 2, 5, 4};  // train.py is a module that main imports
  EXPECT_EQ(leaks_of(find_sites(r, nullptr, {})).size(), 1u);
}

TEST(Sites, LibraryFilesAreNotTheUsers) {
  for (const char* file :
       {"/usr/include/c++/12/bits/new_allocator.h", "<frozen importlib._bootstrap>",
        "/venv/lib/python3.11/site-packages/torch/x.py", "/opt/lib/python3.12/re.py"}) {
    EXPECT_TRUE(is_library_file(file)) << file;
  }
  for (const char* file :
       {"/job/train.py", "train.cpp", "<string>", "/home/usr/x.py", "/usr/src/app/train.py"}) {
    EXPECT_FALSE(is_library_file(file)) << file;
  }
}

TEST(Sites, AStackWithoutAnyFrameIsStillCounted) {
  Record r;
  r.stacks.resize(1);
  r.stacks[0].peak_bytes = 5;
  const auto sites = find_sites(r, nullptr, {});
  ASSERT_EQ(sites.size(), 1u);
  EXPECT_EQ(sites[0].peak_bytes, 5u);
}

}  // namespace
}  // namespace flatout::heap
