#include "screen/session.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <string_view>

#include "screen/testing/fake_machine.h"

namespace flatout::screen {
namespace {

using Kind = Command::Kind;

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() : sampler(machine.options()), session(machine.tree.root(), 0, 1) {
    session.resize(80, 24);
    session.set_table_height(10);
    look();
    machine.between_looks();
    look();
  }
  void look() { session.add(sampler.look(session.wanted())); }
  Command press(std::string_view keys) {
    Command last;
    for (const char c : keys) last = session.key(static_cast<Key>(c));
    return last;
  }
  std::vector<int32_t> tids() const {
    std::vector<int32_t> out;
    for (const Row& row : session.rows()) out.push_back(row.task->tid);
    return out;
  }
  int32_t at_cursor() const { return session.rows()[session.cursor()].task->tid; }

  FakeMachine machine;
  Sampler sampler;
  Session session;
};

using Tids = std::vector<int32_t>;

TEST_F(SessionTest, SortsByCpuAtFirstThenAsToldAndTheOtherWayRound) {
  EXPECT_EQ(tids(), (Tids{4100, 4101, 4102, 900, 6666, 1, 4000, 5000}));
  press("M");
  EXPECT_EQ(tids()[0], 4100);
  EXPECT_EQ(tids()[1], 4101) << "equal memory: by number";
  press("N");
  EXPECT_EQ(tids(), (Tids{1, 900, 4000, 4100, 4101, 4102, 5000, 6666}));
  press("I");
  EXPECT_EQ(tids()[0], 6666);
  press("K");
  EXPECT_EQ(tids().back(), 1) << "kernel threads are among them now";
  EXPECT_EQ(tids().size(), 9u);
}

TEST_F(SessionTest, TreePutsChildrenBelowTheirParentsAndCollapses) {
  press("Nt");
  EXPECT_EQ(tids(), (Tids{1, 900, 4000, 4100, 4101, 4102, 5000, 6666}));
  EXPECT_EQ(session.rows()[3].depth, 2);
  EXPECT_EQ(session.rows()[5].depth, 3);
  EXPECT_TRUE(session.rows()[5].last);
  press("4100");
  press("-");
  EXPECT_EQ(tids(), (Tids{1, 900, 4000, 4100, 5000, 6666}));
  EXPECT_EQ(session.rows()[3].hidden, 2u);
  press("+");
  EXPECT_EQ(tids().size(), 8u);
  press("*");
  EXPECT_EQ(tids(), (Tids{1}));
  EXPECT_EQ(session.rows()[0].hidden, 7u);
}

TEST_F(SessionTest, ThreadsStandBelowTheirProcess) {
  press("NtH");
  EXPECT_TRUE(session.wanted().threads);
  look();
  EXPECT_EQ(tids(), (Tids{1, 900, 4000, 4100, 4151, 4152, 4101, 4102, 5000, 6666}));
}

TEST_F(SessionTest, FilterKeepsWhatHoldsAnyOfTheWords) {
  press("\\train");
  EXPECT_EQ(tids(), (Tids{4100, 4101, 4102}));
  press("|UPDATEDB");
  EXPECT_EQ(tids(), (Tids{4100, 4101, 4102, 900}));
  session.key(key::kEnter);
  EXPECT_EQ(session.input(), Input::kNone);
  EXPECT_EQ(tids().size(), 4u);
  session.key(key::f(4));
  session.key(key::kEscape);
  EXPECT_EQ(tids().size(), 8u);
}

TEST_F(SessionTest, SearchGoesToTheNextThatHoldsTheText) {
  press("N/train");
  EXPECT_EQ(at_cursor(), 4100);
  session.key(key::kEnter);
  press("n");
  EXPECT_EQ(at_cursor(), 4101);
  press("nn");
  EXPECT_EQ(at_cursor(), 4100) << "round the end";
  press("/zzz");
  EXPECT_EQ(session.message(), "nobody is called that");
}

TEST_F(SessionTest, DigitsGoToAProcess) {
  press("66");
  EXPECT_EQ(at_cursor(), 6666);
  session.key(key::kUp);
  press("900");
  EXPECT_EQ(at_cursor(), 900);
}

TEST_F(SessionTest, ASignalNeedsTheMenuAndAYes) {
  press("4101");
  EXPECT_EQ(press("k").kind, Kind::kNone);
  ASSERT_EQ(session.menu().kind, Menu::Kind::kSignal);
  press("9");
  EXPECT_EQ(session.key(key::kEnter).kind, Kind::kNone) << "not yet";
  EXPECT_EQ(session.question(), "Send SIGKILL to 4101 pt_data_worker? y/n");
  const Command command = press("y");
  EXPECT_EQ(command.kind, Kind::kSignal);
  EXPECT_EQ(command.value, SIGKILL);
  ASSERT_EQ(command.targets.size(), 1u);
  EXPECT_EQ(command.targets[0].pid, 4101);
  EXPECT_EQ(command.targets[0].start_ticks, 1000u + 4101u);
  press("k");
  session.key(key::kEnter);
  EXPECT_EQ(press("n").kind, Kind::kNone);
  EXPECT_EQ(session.question(), "");
}

TEST_F(SessionTest, AMenuIsAboutWhatTheCursorWasOnWhenItOpened) {
  press("k");  // on 4100, which uses most
  machine.tree.remove("proc/4100");
  look();
  ASSERT_NE(at_cursor(), 4100);
  session.key(key::kEnter);
  const Command command = press("y");
  ASSERT_EQ(command.targets.size(), 1u);
  EXPECT_EQ(command.targets[0].pid, 4100) << "not who has come to stand there since";
}

TEST_F(SessionTest, TaggedProcessesAreMeantTogether) {
  press("N4100");
  press("c");
  EXPECT_EQ(session.tags(), 3u);
  press("900");
  press(" ");
  press("k");
  session.key(key::kEnter);
  const Command command = press("y");
  EXPECT_EQ(command.value, SIGTERM);
  EXPECT_EQ(command.targets.size(), 4u);
  press("U");
  EXPECT_EQ(session.tags(), 0u);
}

TEST_F(SessionTest, WhatHasEndedIsNotTaggedNorWhoHasItsNumberNow) {
  for (const char* pid : {"4101", "4102", "900"}) press(std::string(pid) + " ");
  machine.tree.remove("proc/4101");
  machine.tree.task({.pid = 4102, .name = "other", .start = 777777});
  look();
  EXPECT_EQ(session.tags(), 1u);
  press("k");
  session.key(key::kEnter);
  const Command command = press("y");
  ASSERT_EQ(command.targets.size(), 1u);
  EXPECT_EQ(command.targets[0].pid, 900);
  // Nobody is tagged any more: the one at the cursor is meant.
  machine.tree.remove("proc/900");
  look();
  press("4000k");
  session.key(key::kEnter);
  EXPECT_EQ(session.question(), "Send SIGTERM to 4000 bash? y/n");
}

TEST_F(SessionTest, FollowingEndsWhereTheNumberIsAnothersNow) {
  press("N4102");
  machine.tree.task({.pid = 4102, .name = "other", .start = 777777});
  look();
  EXPECT_FALSE(session.follows());
  EXPECT_EQ(session.message(), "4102 is not shown any more");
}

TEST_F(SessionTest, AUserWithAnyNumberIsChosenAlone) {
  machine.tree.write("proc/900/status", "Uid:\t0\t4294967294\t0\t0\n");
  for (int i = 0; i < 16; ++i) look();  // whose it is is read now and then
  press("u");
  session.key(key::kEnd);
  session.key(key::kEnter);
  EXPECT_EQ(tids(), (Tids{900}));
  press("u");
  session.key(key::kHome);
  session.key(key::kEnter);
  EXPECT_EQ(tids().size(), 8u);
}

TEST_F(SessionTest, DigitsOfAMenuAreNotThoseOfAProcess) {
  press("k9");
  session.key(key::kEscape);
  press("1");
  EXPECT_EQ(at_cursor(), 1);
}

TEST_F(SessionTest, NiceValuesAddUpBeforeTheYes) {
  press("4101");
  session.key(key::f(8));
  session.key(key::f(8));
  EXPECT_EQ(session.question(),
            "Set the nice value to 2 for 4101 pt_data_worker? y/n (F7 -, F8 +)");
  const Command command = press("y");
  EXPECT_EQ(command.kind, Kind::kNice);
  EXPECT_EQ(command.value, 2);
}

TEST_F(SessionTest, CoresAreTypedAsTheKernelWritesThem) {
  press("4101");
  press("a0-2,5");
  session.key(key::kEnter);
  const Command command = press("y");
  EXPECT_EQ(command.kind, Kind::kCores);
  EXPECT_EQ(command.cores, (std::vector<int32_t>{0, 1, 2, 5}));
  press("a0-x");
  session.key(key::kEnter);
  EXPECT_EQ(session.message(), "'0-x' is no list of cores: 0-3,7");
  EXPECT_EQ(session.question(), "");
}

TEST_F(SessionTest, AWholeSessionsShareNeedsTheMenuAndAYes) {
  press("4101");
  press("g");
  ASSERT_EQ(session.menu().kind, Menu::Kind::kAutogroup);
  session.key(key::kEnd);
  EXPECT_EQ(session.key(key::kEnter).kind, Kind::kNone) << "not yet";
  EXPECT_EQ(session.question(), "Set nice 19 for the whole session of 4101 pt_data_worker? y/n");
  const Command command = press("y");
  EXPECT_EQ(command.kind, Kind::kAutogroup);
  EXPECT_EQ(command.value, 19);
  ASSERT_EQ(command.targets.size(), 1u);
  EXPECT_EQ(command.targets[0].pid, 4101);
}

TEST_F(SessionTest, NativeFunctionsAreReadOnlyWhileTheyAreShown) {
  press("4101");
  session.key(key::kEnter);
  EXPECT_FALSE(session.wanted().native);
  session.key(key::kTab);
  EXPECT_EQ(session.tab(), Tab::kNative);
  EXPECT_TRUE(session.wanted().native);
  session.key(key::kTab);
  EXPECT_FALSE(session.wanted().native);
  press("b");
  EXPECT_TRUE(session.wanted().native);
  EXPECT_EQ(session.wanted().details_pid, 4101);
}

TEST_F(SessionTest, AProcessWhoseNumberWasTypedKeepsTheCursor) {
  press("N4102");
  press("P");
  EXPECT_EQ(at_cursor(), 4102);
  press("F");
  EXPECT_FALSE(session.follows());
}

TEST_F(SessionTest, FollowingTheCursorGoesWithItsProcess) {
  press("N4102");
  press("FF");
  press("P");
  EXPECT_EQ(at_cursor(), 4102);
  machine.tree.remove("proc/4102");
  look();
  EXPECT_FALSE(session.follows());
  EXPECT_EQ(session.message(), "4102 is not shown any more");
}

TEST_F(SessionTest, PausedItStaysAndGoesThroughThePast) {
  const TimePoint second = session.snapshot()->at;
  press("Z");
  machine.between_looks();
  look();
  EXPECT_EQ(session.snapshot()->at, second);
  EXPECT_DOUBLE_EQ(session.behind_s(), 1);
  press("{");
  EXPECT_DOUBLE_EQ(session.behind_s(), 2);
  EXPECT_EQ(session.snapshot()->interval_s, 0) << "the first look";
  press("{{{");
  EXPECT_DOUBLE_EQ(session.behind_s(), 2) << "there is nothing before it";
  press("}}");
  EXPECT_DOUBLE_EQ(session.behind_s(), 0);
  EXPECT_FALSE(session.paused()) << "the newest goes on";
}

TEST_F(SessionTest, GoesThroughThePastByTheMinute) {
  for (int i = 0; i < 150; ++i) {
    machine.between_looks();
    look();
  }
  press("((");
  EXPECT_DOUBLE_EQ(session.behind_s(), 120);
  press(")}");
  EXPECT_DOUBLE_EQ(session.behind_s(), 59);
  EXPECT_TRUE(session.paused());
  press(")");
  EXPECT_DOUBLE_EQ(session.behind_s(), 0);
  EXPECT_FALSE(session.paused());
  press("((((");
  EXPECT_DOUBLE_EQ(session.behind_s(), 151) << "the oldest";
}

TEST_F(SessionTest, TheProcessAtTheCursorIsTheOneWhoseControlGroupIsAskedFor) {
  const Wanted before = session.wanted();
  EXPECT_EQ(before.group_pid, session.rows()[0].task->pid);
  session.key(key::kDown);
  EXPECT_EQ(session.wanted().group_pid, session.rows()[1].task->pid);
  EXPECT_FALSE(session.wanted().differs(before)) << "no look before its time for that";
}

TEST_F(SessionTest, APaneAsksForDetailsOfTheProcessAtTheCursor) {
  EXPECT_EQ(session.wanted().details_pid, 0);
  press("4101");
  session.key(key::kEnter);
  EXPECT_EQ(session.wanted().details_pid, 4101);
  look();
  ASSERT_NE(session.snapshot()->details, nullptr);
  EXPECT_EQ(session.snapshot()->details->command,
            (std::vector<std::string>{"/usr/bin/python3", "train.py", "--epochs", "3"}));
  session.key(key::kEscape);
  EXPECT_EQ(session.wanted().details_pid, 0);
}

TEST_F(SessionTest, OfOneProcessOnlyItsFamily) {
  Session only(machine.tree.root(), FakeMachine::kJob, 1);
  only.add(sampler.look({}));
  ASSERT_EQ(only.rows().size(), 3u);
  EXPECT_EQ(only.rows()[0].task->pid, 4100);
}

TEST_F(SessionTest, QuitsAndSaves) {
  EXPECT_EQ(press("q").kind, Kind::kQuit);
  EXPECT_EQ(session.key(key::f(10)).kind, Kind::kQuit);
  EXPECT_EQ(press("S").kind, Kind::kSave);
}

TEST(History, KeepsTenMinutesAndGrowsCoarserWithinItsBound) {
  History history(std::chrono::minutes(10), 200 * sizeof(Snapshot));
  for (int i = 0; i < 1200; ++i) {
    auto s = std::make_shared<Snapshot>();
    s->at = time_point_ns(int64_t{i} * 1'000'000'000 + 1);
    history.add(std::move(s));
  }
  const auto& all = history.all();
  EXPECT_LE(history.size(), 201u);
  EXPECT_EQ(all.back()->at, time_point_ns(1199 * int64_t{1'000'000'000} + 1));
  EXPECT_LE(all.back()->at - all.front()->at, std::chrono::minutes(10));
  EXPECT_GT(all.back()->at - all.front()->at, std::chrono::minutes(8)) << "the past is not shorter";
  EXPECT_EQ(all.back()->at - all[all.size() - 2]->at, std::chrono::seconds(1));
  EXPECT_EQ(history.back(1000)->at, all.front()->at);
}

}  // namespace
}  // namespace flatout::screen
