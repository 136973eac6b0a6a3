// What a big machine costs, in work rather than in time: reads of files, which are most of it.
#include <gtest/gtest.h>

#include <string>

#include "base/fs.h"
#include "probe/kernel_files.h"
#include "probe/proc_files.h"
#include "probe/testing/fake_tree.h"
#include "screen/render.h"
#include "screen/sampler.h"
#include "screen/session.h"

namespace flatout::screen {
namespace {

// How often this process has read, as the kernel counts; 0 where it does not tell.
uint64_t reads() {
  const auto text = fs::Root().read("proc/self/io", 1024);
  return text.ok() ? probe::find_field(*text, "syscr").value_or(0) : 0;
}

class ManyProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    if (reads() == 0) GTEST_SKIP() << "lacks /proc/self/io: the kernel does not count reads";
  }
  // Threads share their process's folder: three each, the process's own among them.
  static void fill(const probe::FakeTree& tree, int processes) {
    tree.write("proc/stat", "cpu  1 0 1 1 0 0 0 0 0 0\ncpu0 1 0 1 1 0 0 0 0 0 0\n");
    for (int i = 0; i < processes; ++i) {
      const int pid = 1000 + i * 3;
      const std::string dir = "proc/" + std::to_string(pid) + "/";
      tree.task({.pid = pid, .name = "worker", .start = pid});
      tree.write(dir + "cmdline", "train.py");
      tree.write(dir + "status", "Uid:\t1000\t1000\t1000\t1000\n");
      for (int t = 1; t < 3; ++t) {
        tree.write(dir + "task/" + std::to_string(pid + t) + "/stat",
                   probe::FakeTree::stat_line({.pid = pid + t}));
      }
    }
  }
  static SamplerOptions options(const probe::FakeTree& tree) {
    SamplerOptions out;
    out.root = tree.root();
    out.nvml = "";
    return out;
  }
  // Of a look at a machine that has been looked at before, and on which nothing has changed.
  static double reads_of_a_look(int processes, bool threads) {
    const probe::FakeTree tree;
    fill(tree, processes);
    Sampler sampler(options(tree));
    const Wanted wanted{.threads = threads};
    for (int i = 0; i < 2; ++i) sampler.look(wanted);
    const uint64_t before = reads();
    const auto snapshot = sampler.look(wanted);
    const uint64_t after = reads();
    EXPECT_EQ(snapshot->task_list.size(), static_cast<size_t>(processes * (threads ? 3 : 1)));
    return static_cast<double>(after - before);
  }
};

TEST_F(ManyProcesses, ALookReadsFewFilesOfEachProcessAndOneOfEachThread) {
  const double each = (reads_of_a_look(60, false) - reads_of_a_look(20, false)) / 40;
  EXPECT_GE(each, 1);
  EXPECT_LE(each, 4);
  const double with_threads = (reads_of_a_look(60, true) - reads_of_a_look(20, true)) / 40;
  EXPECT_LE(with_threads - each, 2 * 3) << "its folder and two files, each until its end";
}

TEST_F(ManyProcesses, KeysAndDrawingReadNothing) {
  const probe::FakeTree tree;
  fill(tree, 60);
  Sampler sampler(options(tree));
  Session session(tree.root(), 0, 1);
  session.resize(200, 60);
  session.add(sampler.look({.threads = true}));
  (void)render(session, true);  // looks up the users' names, once
  const uint64_t idle = reads();
  const uint64_t counting = reads() - idle;  // what it takes to know
  const uint64_t before = reads();
  for (const char c : std::string_view("tHKPMTNIpF*\\work\r/10\r cUZ{}Zu")) {
    session.key(c == '\r' ? key::kEnter : static_cast<Key>(c));
    (void)render(session, true);
  }
  EXPECT_EQ(reads() - before, counting);
}

}  // namespace
}  // namespace flatout::screen
