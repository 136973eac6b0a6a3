#include "screen/actions.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe/proc_files.h"
#include "probe/reading.h"
#include "probe/testing/fake_tree.h"

namespace flatout::screen {
namespace {

using Kind = Command::Kind;

// A child that sleeps until it is killed.
class ActionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    child = ::fork();
    if (child == 0) {
      ::setsid();  // with an autogroup of its own
      (void)!::write(ready[1], "x", 1);
      for (;;) ::pause();
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
    const auto stat = fs::Root().read(probe::proc_path(child, "stat"));
    ASSERT_TRUE(stat.ok());
    start = probe::parse_pid_stat(*stat)->start_ticks;
  }
  void TearDown() override {
    if (child <= 0) return;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  Command command(Kind kind, int value) const {
    Command out;
    out.kind = kind;
    out.value = value;
    out.targets = {{child, child, start, "child"}};
    return out;
  }
  pid_t child = 0;
  uint64_t start = 0;
};

TEST_F(ActionsTest, SendsASignal) {
  EXPECT_EQ(act(fs::Root(), command(Kind::kSignal, SIGTERM)), "done to 1 process");
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
  child = 0;
}

TEST_F(ActionsTest, LeavesAProcessAloneThatOnlyHasTheNumber) {
  Command wrong = command(Kind::kSignal, SIGKILL);
  wrong.targets[0].start_ticks += 1;
  EXPECT_NE(act(fs::Root(), wrong).find("has ended"), std::string::npos);
  wrong.kind = Kind::kNice;
  EXPECT_NE(act(fs::Root(), wrong).find("has ended"), std::string::npos);
  EXPECT_EQ(::kill(child, 0), 0);
  EXPECT_EQ(::waitpid(child, nullptr, WNOHANG), 0) << "it lives";
}

TEST_F(ActionsTest, SetsNiceValueIoPriorityAndCores) {
  EXPECT_EQ(act(fs::Root(), command(Kind::kNice, 7)), "done to 1 process");
  EXPECT_EQ(::getpriority(PRIO_PROCESS, static_cast<id_t>(child)), 7);
  EXPECT_EQ(act(fs::Root(), command(Kind::kIoPriority, 3 << 13)), "done to 1 process");
  EXPECT_EQ(::syscall(SYS_ioprio_get, 1, child) >> 13, 3);
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(child, sizeof allowed, &allowed), 0);
  int core = 0;
  while (!CPU_ISSET(core, &allowed)) ++core;
  Command cores = command(Kind::kCores, 0);
  cores.cores = {core};
  EXPECT_EQ(act(fs::Root(), cores), "done to 1 process");
  ASSERT_EQ(::sched_getaffinity(child, sizeof allowed, &allowed), 0);
  EXPECT_EQ(CPU_COUNT(&allowed), 1);
}

TEST_F(ActionsTest, SetsTheShareOfASessionOnce) {
  const auto group = [&] {
    return fs::Root().read(probe::proc_path(child, "autogroup")).value_or("");
  };
  if (group().empty()) GTEST_SKIP() << "lacks autogroups (kernel.sched_autogroup_enabled)";
  Command command = this->command(Kind::kAutogroup, 5);
  command.targets.push_back(command.targets[0]);  // of the same session
  EXPECT_EQ(act(fs::Root(), command), "done to 2 processes");
  EXPECT_TRUE(group().ends_with(" nice 5\n")) << group();
  command.targets[0].start_ticks += 1;
  command.targets.pop_back();
  command.value = 7;
  EXPECT_NE(act(fs::Root(), command).find("has ended"), std::string::npos);
  EXPECT_TRUE(group().ends_with(" nice 5\n")) << "it is another's by now";
}

TEST_F(ActionsTest, ASessionWithoutAnAutogroupIsTold) {
  probe::FakeTree tree;
  tree.task({.pid = 7, .start = 99});
  Command command = this->command(Kind::kAutogroup, 5);
  command.targets = {{7, 7, 99, "job"}};
  EXPECT_NE(act(tree.root(), command).find("no autogroup"), std::string::npos);
  tree.write("proc/7/autogroup", "/autogroup-3 nice 0\n");
  EXPECT_EQ(act(tree.root(), command), "done to 1 process");
  EXPECT_EQ(tree.root().read("proc/7/autogroup").value_or(""), "5autogroup-3 nice 0\n");
}

TEST_F(ActionsTest, SaysWhatCouldNotBeDone) {
  Command cores = command(Kind::kCores, 0);
  cores.cores = {1 << 19};  // there is no such core
  EXPECT_NE(act(fs::Root(), cores).find("Invalid argument"), std::string::npos);
}

}  // namespace
}  // namespace flatout::screen
