#include <gtest/gtest.h>

#include <map>
#include <string>

#include "advise/testing/healthy_machine.h"

namespace flatout::advise {
namespace {

// A machine that hides nothing.
class CheckSelf : public ::testing::Test, protected MachineTree {
 protected:
  void SetUp() override {
    tree.write("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
    tree.write("proc/self/schedstat", "1 2 3\n");
    tree.write("proc/self/syscall", "running\n");
    tree.write("proc/sys/kernel/task_delayacct", "1\n");
    tree.write("proc/sys/kernel/sched_autogroup_enabled", "1\n");
    tree.write("proc/sys/kernel/yama/ptrace_scope", "1\n");
    tree.write("proc/sys/kernel/perf_event_paranoid", "2\n");
    tree.task({.pid = 1, .ppid = 0, .name = "systemd"});  // of root; we are user 1000
    tree.write("proc/1/maps", "");
    tree.write("proc/1/io", "rchar: 1\n");
    tree.write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    tree.write("proc/self/cgroup", "0::/outer/inner\n");
    tree.write("sys/fs/cgroup/outer/cgroup.controllers", "cpuset cpu io memory hugetlb pids\n");
    tree.write("sys/fs/cgroup/outer/inner/cgroup.controllers", "memory pids\n");
  }
  Machine look() const {
    MachineOptions options;
    options.access = true;
    options.pythons = {{11, {"opt/packages"}}};
    Machine m = read(options);
    m.root = false;
    m.gpus = healthy().gpus;
    m.cupti = "/opt/libcupti.so.12";
    return m;
  }
};

TEST_F(CheckSelf, AMachineThatHidesNothingHasNoGap) {
  const model::CheckUp found = check_self(look());
  for (const model::Problem& p : found.problems) ADD_FAILURE() << p.id << ": " << p.text;
  EXPECT_TRUE(found.about_flatout);
  std::map<std::string, std::string> facts(found.machine.begin(), found.machine.end());
  EXPECT_EQ(facts["cgroup"], "v2: cpu memory io pids");
  EXPECT_EQ(facts["python"], "3.11");
  EXPECT_EQ(facts["perf_event_paranoid"], "2");
  EXPECT_EQ(facts["other_users_io"], "yes");
}

TEST_F(CheckSelf, SaysWhatEachGapWouldTake) {
  struct Gap {
    const char* id;
    const char* file;
    const char* text;  // nullptr: it may not be read, or is not there
  };
  for (const Gap& gap :
       {Gap{"self.pressure", "proc/pressure/cpu", nullptr},
        Gap{"self.schedstat", "proc/self/schedstat", nullptr},
        Gap{"self.syscall", "proc/self/syscall", nullptr},
        Gap{"self.delay_accounting", "proc/sys/kernel/task_delayacct", "0\n"},
        Gap{"self.autogroup", "proc/sys/kernel/sched_autogroup_enabled", "0\n"},
        Gap{"self.ptrace", "proc/sys/kernel/yama/ptrace_scope", "2\n"},
        Gap{"self.perf", "proc/sys/kernel/perf_event_paranoid", "4\n"},
        Gap{"self.perf", "proc/sys/kernel/perf_event_paranoid", nullptr},
        Gap{"self.other_users", "proc/1/maps", nullptr},
        Gap{"self.other_users_io", "proc/1/io", nullptr},
        Gap{"self.cgroup", "proc/self/cgroup", nullptr},
        Gap{"self.controllers", "sys/fs/cgroup/outer/cgroup.controllers", "memory pids\n"}}) {
    SetUp();
    if (gap.text != nullptr) {
      tree.write(gap.file, gap.text);
    } else {
      tree.forbid(gap.file);
    }
    const model::CheckUp found = check_self(look());
    ASSERT_EQ(found.problems.size(), 1u) << gap.id;
    EXPECT_EQ(found.problems[0].id, gap.id);
    EXPECT_FALSE(found.problems[0].fails || found.problems[0].hint.empty()) << gap.id;
    tree.remove(gap.file);
  }
}

TEST_F(CheckSelf, SaysWhichPythonsStacksCanBeRead) {
  Machine m = look();
  for (const auto& [minor, known] : {std::pair{8, true}, std::pair{15, true}, std::pair{7, false},
                                     std::pair{16, false}, std::pair{0, false}}) {
    m.python_minor = minor;
    const model::CheckUp found = check_self(m);
    EXPECT_EQ(find(found, "self.python") == nullptr, known) << minor;
  }
}

TEST_F(CheckSelf, SaysWhatTheGpusLack) {
  Machine m = look();
  m.cupti.clear();
  const model::CheckUp no_trace = check_self(m);
  EXPECT_NE(find(no_trace, "self.cupti"), nullptr);
  m.gpus.clear();
  m.gpu_error = "no driver";
  const model::CheckUp none = check_self(m);
  ASSERT_NE(find(none, "self.gpu"), nullptr);
  EXPECT_NE(find(none, "self.gpu")->text.find("no driver"), std::string::npos);
  EXPECT_EQ(find(none, "self.cupti"), nullptr);  // without a GPU nobody misses it
}

}  // namespace
}  // namespace flatout::advise
