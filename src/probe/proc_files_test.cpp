#include "probe/proc_files.h"

#include <gtest/gtest.h>

#include "probe/testing/fake_tree.h"

namespace flatout::probe {
namespace {

TEST(PidStat, ReadsTheFieldsOfARealLine) {
  const std::string line =
      "8750 (cat) R 8738 8739 5484 34816 -1 4194304 100 1 2 3 4 5 6 7 20 -5 3 0 145264 3133440 388 "
      "18446744073709551615 94810895220736 94810895240617 140729075365296 0 0 0 0 0 0 0 0 0 17 1 0 "
      "0 9 0 0 94810895256624 94810895258240 94810904113152 140729075370613 140729075370654 "
      "140729075370654 140729075372011 256\n";
  const auto stat = parse_pid_stat(line);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->pid, 8750);
  EXPECT_EQ(stat->comm, "cat");
  EXPECT_EQ(stat->state, 'R');
  EXPECT_EQ(stat->ppid, 8738);
  EXPECT_EQ(stat->pgrp, 8739);
  EXPECT_EQ(stat->session, 5484);
  EXPECT_EQ(stat->minor_faults, 100u);
  EXPECT_EQ(stat->major_faults, 2u);
  EXPECT_EQ(stat->user_ticks, 4u);
  EXPECT_EQ(stat->system_ticks, 5u);
  EXPECT_EQ(stat->children_user_ticks, 6u);
  EXPECT_EQ(stat->children_system_ticks, 7u);
  EXPECT_EQ(stat->nice, -5);
  EXPECT_EQ(stat->threads, 3);
  EXPECT_EQ(stat->start_ticks, 145264u);
  EXPECT_EQ(stat->rss_pages, 388);
  EXPECT_EQ(stat->cpu, 1);
  EXPECT_EQ(stat->block_io_ticks, 9u);
  EXPECT_EQ(stat->exit_status, 256);
  EXPECT_FALSE(stat->kernel_thread());
}

TEST(PidStat, TakesHostileNamesWhole) {
  for (const std::string name : {") R 1 (x", "a\nb", "\x1b[31m", "((", "", " ", ") S 1 1 1 1"}) {
    FakeTree::Task task;
    task.pid = 42;
    task.ppid = 7;
    task.name = name;
    const std::string line = FakeTree::stat_line(task);
    const auto stat = parse_pid_stat(line);
    ASSERT_TRUE(stat) << name;
    EXPECT_EQ(stat->comm, name);
    EXPECT_EQ(stat->ppid, 7);
  }
}

TEST(PidStat, RefusesWhatIsCutOffOrMalformed) {
  FakeTree::Task task;
  task.pid = 42;
  const std::string line = FakeTree::stat_line(task);
  EXPECT_FALSE(parse_pid_stat(""));
  EXPECT_FALSE(parse_pid_stat("42"));
  EXPECT_FALSE(parse_pid_stat("42 (x"));
  EXPECT_FALSE(parse_pid_stat("x (y) S 1"));
  EXPECT_FALSE(parse_pid_stat(")42("));
  EXPECT_FALSE(parse_pid_stat(line.substr(0, 40)));
  EXPECT_FALSE(parse_pid_stat("42 (x) S 1 1 1 zero 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"));
}

TEST(PidStatus, LeavesUnsetWhatALineLacks) {
  const PidStatus status = parse_pid_status("Name:\tx\nVmRSS:\t  12 kB\nVmSwap:\tlots\nnoise\n");
  EXPECT_EQ(status.rss_bytes, 12u * 1024);
  EXPECT_FALSE(status.swap_bytes);
  EXPECT_FALSE(status.rss_anon_bytes);
  EXPECT_FALSE(status.allowed_cores);
}

TEST(PidStatus, CountsAllowedCoresAndSwitches) {
  const PidStatus status = parse_pid_status(
      "Tgid:\t5\nUid:\t1\t2\t3\t4\nCpus_allowed_list:\t0-3,8,10-11\n"
      "voluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t34\n");
  EXPECT_EQ(status.tgid, 5);
  EXPECT_EQ(status.uid, 2u);
  EXPECT_EQ(status.allowed_cores, 7);
  EXPECT_EQ(status.voluntary_switches, 12u);
  EXPECT_EQ(status.involuntary_switches, 34u);
}

TEST(PidIo, NeedsEveryField) {
  const std::string text =
      "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\n"
      "cancelled_write_bytes: 7\n";
  const auto io = parse_pid_io(text);
  ASSERT_TRUE(io);
  EXPECT_EQ(io->read_chars, 1u);
  EXPECT_EQ(io->write_chars, 2u);
  EXPECT_EQ(io->read_calls, 3u);
  EXPECT_EQ(io->write_calls, 4u);
  EXPECT_EQ(io->read_bytes, 5u);
  EXPECT_EQ(io->write_bytes, 6u);
  EXPECT_FALSE(parse_pid_io("rchar: 1\n"));
  EXPECT_FALSE(parse_pid_io("rchar: many\n"));
  EXPECT_FALSE(parse_pid_io(""));
}

TEST(CpuList, CountsAndListsTheSame) {
  EXPECT_EQ(count_cpu_list("0-1"), 2);
  EXPECT_EQ(count_cpu_list(""), 0);
  EXPECT_EQ(count_cpu_list("7\n"), 1);
  EXPECT_EQ(parse_cpu_list("0-2,5"), (std::vector<int32_t>{0, 1, 2, 5}));
  EXPECT_FALSE(count_cpu_list("3-1"));
  EXPECT_FALSE(count_cpu_list("1-"));
  EXPECT_FALSE(count_cpu_list("-1"));
  EXPECT_FALSE(count_cpu_list("a"));
  EXPECT_EQ(parse_cpu_list("0-1000000", 10)->size(), 10u);
}

TEST(Limits, ReadsTheSoftLimitOfFiles) {
  EXPECT_EQ(parse_inner_pid("Name:\ta\nNSpid:\t24119\t37\t1\nNSpgid:\t7\n"), 1);
  EXPECT_EQ(parse_inner_pid("NSpid:\t24119\n"), 24119) << "in the namespace of who reads it";
  EXPECT_FALSE(parse_inner_pid("NSpgid:\t7\n"));
  EXPECT_EQ(parse_fd_limit("Limit  Soft\nMax open files            1024     524288    files\n"),
            1024u);
  EXPECT_FALSE(parse_fd_limit("Max open files            unlimited  unlimited  files\n"));
  EXPECT_FALSE(parse_fd_limit("Max cpu time 1 2\n"));
}

TEST(CommandLine, JoinsWordsAndIsBounded) {
  EXPECT_EQ(join_command_line(std::string_view("python\0-c\0x\0", 12)), "python -c x");
  EXPECT_EQ(join_command_line(""), "");
  EXPECT_EQ(join_command_line(std::string(5000, 'a'), 10), "aaaaaaaaaa");
}

}  // namespace
}  // namespace flatout::probe
