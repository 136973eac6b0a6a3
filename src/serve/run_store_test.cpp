#include "serve/run_store.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "report/json.h"
#include "serve/testing/fake_runs.h"

namespace flatout::serve {
namespace {

using Json = nlohmann::json;
using testing::FakeRun;
using testing::FakeRuns;

constexpr Nanos kSecond = std::chrono::seconds(1);

class RunStoreTest : public ::testing::Test {
 protected:
  RunStore& store(const StoreLimits& limits = {}) {
    store_ =
        std::make_unique<RunStore>(std::vector<std::string>{runs.folder()}, runs, "0.1.0", limits);
    return *store_;
  }
  // So many rounds of the store's own thread, a minute apart: nothing waits for its turn.
  void look(int rounds = 1) {
    for (int i = 0; i < rounds; ++i) store_->look(now_ += std::chrono::minutes(1));
  }
  Json listed() { return Json::parse(store_->runs_json())["runs"]; }

  FakeRuns runs;
  std::unique_ptr<RunStore> store_;
  TimePoint now_ = MonotonicClock::now();
};

TEST_F(RunStoreTest, ListsTheRunsOfAFolderNewestFirst) {
  runs.add("20250101-a", false);
  runs.add("20250102-b", true);
  std::filesystem::create_directories(runs.path("notes"));
  std::filesystem::create_directory_symlink("20250102-b", runs.path("latest"));
  store();
  look(4);
  const Json list = listed();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["id"], "20250102-b");
  EXPECT_EQ(list[0]["live"], true);
  EXPECT_EQ(list[1]["id"], "20250101-a");
  EXPECT_EQ(list[1]["verdict"], "input.decode_cpu");
  EXPECT_EQ(list[1]["median_ms"], 61.3);
}

TEST_F(RunStoreTest, ARunThatWasNotReadYetIsListedAsSuch) {
  runs.add("train", false);
  store();
  look();  // finds it, and reads it
  EXPECT_EQ(listed()[0]["read"], true);
  runs.add("another", false);
  runs.add("third", false);
  look();  // one of them is read in a round
  size_t unread = 0;
  for (const Json& run : listed()) {
    if (run["read"]) continue;
    ++unread;
    EXPECT_TRUE(run["begin_unix_s"].is_null());
    EXPECT_EQ(run["verdict"], "");
  }
  EXPECT_EQ(unread, 1u);
  look();
  for (const Json& run : listed()) EXPECT_EQ(run["read"], true);
}

// The list says what the end of the run has left, until its recording is opened.
TEST_F(RunStoreTest, WhatWasDamagedSinceIsListedAsItsPageSays) {
  FakeRun& fake = runs.add("train", false);
  model::Diagnosis left;
  left.verdict = "healthy";
  std::ofstream(runs.path("train") + "/run.json") << report::run_json(fake.run);
  std::ofstream(runs.path("train") + "/findings.json") << report::findings_json(fake.run, left);
  store();
  look();
  EXPECT_EQ(listed()[0]["verdict"], "healthy");
  EXPECT_EQ(Json::parse(*store_->findings_json("train"))["verdict"], "input.decode_cpu");
  EXPECT_EQ(listed()[0]["verdict"], "healthy");  // a newer version may judge otherwise

  store();
  look();
  fake.run.missing.push_back({"recording", "one damaged place was skipped", ""});
  EXPECT_EQ(Json::parse(*store_->findings_json("train"))["verdict"], "input.decode_cpu");
  EXPECT_EQ(listed()[0]["verdict"], "input.decode_cpu");
}

TEST_F(RunStoreTest, AnIdIsSafeInAPathWhateverTheFolderIsCalled) {
  runs.add("my run <ü>", false);
  runs.add("my_run_____", false);
  runs.add("..hidden", false);
  store();
  look();
  std::set<std::string> ids;
  for (const Json& run : listed()) {
    const std::string id = run["id"];
    EXPECT_TRUE(ids.insert(id).second);
    EXPECT_EQ(id.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                   "-_."),
              std::string::npos)
        << id;
    EXPECT_NE(id[0], '.');
  }
  EXPECT_EQ(ids.size(), 3u);
}

TEST_F(RunStoreTest, FollowsALiveRunToItsEnd) {
  auto& fake = runs.add("train", true);
  store();
  look();
  const auto first = store_->report("train");
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->state.live);
  look(2);
  EXPECT_EQ(store_->wait("train", 0, Nanos(0))->revision, first->state.revision);  // nothing new

  fake.run.steps.summary.count = 61;
  fake.changed = true;
  look();  // nobody has asked for a minute
  EXPECT_EQ(store_->wait("train", 0, Nanos(0))->revision, first->state.revision);
  now_ = MonotonicClock::now();
  look();
  fake.changed = true;
  store_->look_at_all();
  const auto second = store_->wait("train", first->state.revision, Nanos(0));
  EXPECT_GT(second->revision, first->state.revision);
  EXPECT_EQ(listed()[0]["steps"], 61);

  fake.run.finished = true;
  fake.run.wait_status = 0;
  fake.run.info["run.end_ns"] = "1";  // and the lock is still held
  fake.changed = true;
  store_->look_at_all();
  const auto last = store_->wait("train", second->revision, Nanos(0));
  EXPECT_FALSE(last->live);
  look();
  EXPECT_EQ(listed()[0]["live"], false);
  EXPECT_EQ(listed()[0]["exit"], "exit code 0");
  EXPECT_FALSE(store_->report("train")->state.live);
}

TEST_F(RunStoreTest, ARunWhoseRecorderWasKilledEndsToo) {
  auto& fake = runs.add("train", true);
  store();
  look();
  fake.live = false;
  look();
  EXPECT_EQ(listed()[0]["live"], false);
}

TEST_F(RunStoreTest, AnotherRecordingInTheSameFolderIsAnotherRun) {
  runs.add("train", false);
  store();
  look();
  const uint64_t before = runs.opened;
  std::filesystem::remove(runs.path("train") + "/series.bin");
  std::ofstream(runs.path("train") + "/series.bin") << "";
  look(2);
  EXPECT_EQ(listed().size(), 1u);
  EXPECT_GT(runs.opened, before);
}

TEST_F(RunStoreTest, ARunThatIsRemovedIsGone) {
  runs.add("train", false);
  store();
  look();
  ASSERT_TRUE(store_->report("train"));
  std::filesystem::remove_all(runs.path("train"));
  look();
  EXPECT_FALSE(store_->report("train"));
  EXPECT_FALSE(store_->wait("train", 0, kSecond));
  EXPECT_TRUE(listed().empty());
}

TEST_F(RunStoreTest, KeepsTheNewestWhereThereAreTooMany) {
  for (int i = 0; i < 20; ++i) {
    const std::string name = "run" + std::to_string(10 + i);
    runs.add(name, false);
    std::filesystem::last_write_time(
        runs.path(name), std::filesystem::file_time_type::clock::now() - std::chrono::hours(i));
  }
  StoreLimits limits;
  limits.runs = 5;
  store(limits);
  look();
  std::set<std::string> ids;
  for (const Json& run : listed()) ids.insert(run["id"]);
  EXPECT_EQ(ids, (std::set<std::string>{"run10", "run11", "run12", "run13", "run14"}));
}

TEST_F(RunStoreTest, FewAreOpenAtOnceHoweverManyAreAskedFor) {
  for (int i = 0; i < 12; ++i) runs.add("run" + std::to_string(10 + i), i < 8);
  StoreLimits limits;
  limits.live_sources = 3;
  store(limits);
  look();
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(store_->report("run" + std::to_string(10 + i)));
  store_->metrics(report::Exposition::kPrometheus);
  EXPECT_LE(runs.most_open, 5u);
  // What nobody asks for is closed.
  now_ = MonotonicClock::now() + std::chrono::hours(1);
  for (int i = 0; i < 12; ++i) runs.at("run" + std::to_string(10 + i)).live = false;
  look(20);
  EXPECT_EQ(runs.open_now, 0u);
}

TEST_F(RunStoreTest, APageIsRenderedOnceForAllWhoAsk) {
  runs.add("train", false);
  store();
  look();
  const auto first = store_->report("train");
  const auto second = store_->report("train");
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->html.get(), second->html.get());
}

TEST_F(RunStoreTest, MetricsAreOfLiveRunsAndThoseThatEndedJustNow) {
  runs.add("old", false);
  auto& fake = runs.add("new", true);
  store();
  look();
  std::string text = store_->metrics(report::Exposition::kPrometheus);
  EXPECT_EQ(text.find("run=\"old\""), std::string::npos);
  EXPECT_NE(text.find("flatout_run_live{run=\"new\"} 1\n"), std::string::npos);
  EXPECT_NE(text.find("flatout_steps_total{run=\"new\"} 60\n"), std::string::npos);

  // The counters go on to the end, and stay a while.
  fake.live = false;
  fake.changed = true;
  look();
  text = store_->metrics(report::Exposition::kPrometheus);
  EXPECT_NE(text.find("flatout_run_live{run=\"new\"} 0\n"), std::string::npos);
  EXPECT_NE(text.find("flatout_steps_total{run=\"new\"} 60\n"), std::string::npos);
}

TEST_F(RunStoreTest, WhoWaitsIsWokenByAChangeAndByTheEnd) {
  auto& fake = runs.add("train", true);
  store();
  look();
  const uint64_t seen = store_->wait("train", 0, Nanos(0))->revision;
  std::optional<RunState> told;
  std::thread waiting([&] { told = store_->wait("train", seen, std::chrono::minutes(1)); });
  fake.changed = true;
  store_->look_at_all();
  waiting.join();
  ASSERT_TRUE(told);
  EXPECT_GT(told->revision, seen);
  waiting =
      std::thread([&] { told = store_->wait("train", told->revision, std::chrono::minutes(1)); });
  store_->stop();
  waiting.join();
  EXPECT_FALSE(told);
}

TEST_F(RunStoreTest, ComparesTwoRuns) {
  runs.add("old", false);
  runs.add("new", false);
  store();
  look();
  const auto page = store_->comparison("old", "new");
  ASSERT_TRUE(page);
  EXPECT_NE(page->html->find("id=\"compare\""), std::string::npos);
  EXPECT_EQ(Json::parse(*store_->comparison_json("old", "new"))["old"]["name"], "old");
  EXPECT_FALSE(store_->comparison("old", "none"));
}

}  // namespace
}  // namespace flatout::serve
