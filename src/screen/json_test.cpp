#include "screen/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "screen/sampler.h"
#include "screen/testing/fake_machine.h"

namespace flatout::screen {
namespace {

std::vector<int32_t> pids(const Snapshot& s, UserNames& users, int32_t only_pid) {
  std::vector<int32_t> out;
  const auto json = nlohmann::json::parse(snapshot_json(s, users, only_pid));
  for (const auto& process : json.at("processes")) out.push_back(process.at("pid"));
  return out;
}

TEST(SnapshotJson, HasAllProcessesOrOneWithWhatDescendsFromIt) {
  FakeMachine machine;
  Sampler sampler(machine.options());
  UserNames users(machine.tree.root());
  const auto s = sampler.look({.threads = true});
  EXPECT_EQ(pids(*s, users, 0),
            (std::vector<int32_t>{1, 2, 900, 4000, 4100, 4101, 4102, 5000, 6666}));
  EXPECT_EQ(pids(*s, users, FakeMachine::kJob), (std::vector<int32_t>{4100, 4101, 4102}));
  EXPECT_EQ(pids(*s, users, 77), std::vector<int32_t>{}) << "it has ended";
}

}  // namespace
}  // namespace flatout::screen
