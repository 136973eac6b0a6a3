#include "probe/thread_state.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <string>

namespace flatout::probe {
namespace {

using model::ThreadState;

std::optional<SyscallInfo> call(int number, uint64_t first = 1, uint64_t second = 1) {
  SyscallInfo info;
  info.number = number;
  info.args = {first, second, 0, 0, 0, 0};
  return info;
}

TEST(ThreadState, ReadsTheSystemCallAndItsArguments) {
  const auto info = parse_syscall(
      "202 0x7fdaa4000df0 0x189 0x0 0x0 0x0 0xffffffff 0x7fdab1fc0950 0x7fdab2ea3f16\n");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->number, 202);
  EXPECT_EQ(info->args[0], 0x7fdaa4000df0u);
  EXPECT_EQ(info->args[1], 0x189u);
  EXPECT_EQ(info->sp, 0x7fdab1fc0950u);
  EXPECT_EQ(info->pc, 0x7fdab2ea3f16u);
  const auto fault = parse_syscall("-1 0x7ffe1e98ecd8 0x7f24a623f2ad\n");
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->number, -1);
  EXPECT_FALSE(parse_syscall("running\n"));
  EXPECT_FALSE(parse_syscall(""));
  EXPECT_FALSE(parse_syscall("202 0x1 0x2\n"));
}

TEST(ThreadState, AWaitForAConditionOrASemaphoreIsNoneForALock) {
  SyscallInfo info;
  info.number = SYS_futex;
  info.args = {0x1000, 0x80, 2, 0, 0, 0};  // FUTEX_WAIT_PRIVATE, as glibc takes a mutex
  EXPECT_TRUE(may_wait_for_lock(info));
  info.args[2] = 0;  // a semaphore
  EXPECT_FALSE(may_wait_for_lock(info));
  info.args = {0x1000, 0x189, 2, 0, 0, 0xFFFFFFFF};  // FUTEX_WAIT_BITSET: a condition, a join
  EXPECT_FALSE(may_wait_for_lock(info));
  info.number = SYS_mmap;
  EXPECT_TRUE(may_wait_for_lock(info));
}

TEST(ThreadState, TellsTheInterpretersLockFromOtherLocks) {
  const AddressRange gil[] = {{0x1000, 0x1100}};
  EXPECT_EQ(blocked_state('S', call(SYS_futex, 0x1020), "futex_do_wait", gil),
            ThreadState::kGilWait);
  EXPECT_EQ(blocked_state('S', call(SYS_futex, 0x1100), "futex_do_wait", gil), ThreadState::kLock);
  EXPECT_EQ(blocked_state('S', call(SYS_flock), "", gil), ThreadState::kLock);
}

TEST(ThreadState, TellsSleepFromWaitingForOthers) {
  EXPECT_EQ(blocked_state('S', call(SYS_clock_nanosleep), "hrtimer_nanosleep", {}),
            ThreadState::kSleep);
  EXPECT_EQ(blocked_state('S', call(SYS_pselect6, 0), "", {}), ThreadState::kSleep);
  EXPECT_EQ(blocked_state('S', call(SYS_pselect6, 8), "", {}), ThreadState::kPoll);
  EXPECT_EQ(blocked_state('S', call(SYS_ppoll, 1, 0), "", {}), ThreadState::kSleep);
  EXPECT_EQ(blocked_state('S', call(SYS_ppoll, 1, 2), "", {}), ThreadState::kPoll);
  EXPECT_EQ(blocked_state('S', call(SYS_epoll_pwait), "", {}), ThreadState::kPoll);
  EXPECT_EQ(blocked_state('S', call(SYS_read), "anon_pipe_read", {}), ThreadState::kPoll);
  EXPECT_EQ(blocked_state('S', call(SYS_wait4), "do_wait", {}), ThreadState::kChild);
  EXPECT_EQ(blocked_state('S', call(SYS_read), "fuse_dev_do_read", {}), ThreadState::kDisk);
}

TEST(ThreadState, TellsDiskFromReclaimInUninterruptibleSleep) {
  EXPECT_EQ(blocked_state('D', call(SYS_read), "folio_wait_bit_common", {}), ThreadState::kDisk);
  EXPECT_EQ(blocked_state('D', call(-1), "", {}), ThreadState::kDisk);
  EXPECT_EQ(blocked_state('D', call(-1), "reclaim_throttle", {}), ThreadState::kReclaim);
  EXPECT_EQ(blocked_state('D', std::nullopt, "shrink_inactive_list", {}), ThreadState::kReclaim);
  EXPECT_EQ(blocked_state('D', std::nullopt, "compact_zone", {}), ThreadState::kReclaim);
  EXPECT_EQ(blocked_state('D', std::nullopt, "kernel_clone", {}), ThreadState::kChild);
  EXPECT_EQ(blocked_state('D', std::nullopt, "rwsem_down_read_slowpath", {}), ThreadState::kLock);
  EXPECT_EQ(blocked_state('D', std::nullopt, "__refrigerator", {}), ThreadState::kStopped);
}

TEST(ThreadState, FallsBackToTheWaitChannelWithoutPermission) {
  EXPECT_EQ(blocked_state('S', std::nullopt, "futex_wait_queue", {}), ThreadState::kLock);
  EXPECT_EQ(blocked_state('S', std::nullopt, "do_epoll_wait", {}), ThreadState::kPoll);
  EXPECT_EQ(blocked_state('S', std::nullopt, "hrtimer_nanosleep", {}), ThreadState::kSleep);
  EXPECT_EQ(blocked_state('S', std::nullopt, "0", {}), ThreadState::kUnknown);
  EXPECT_EQ(blocked_state('T', std::nullopt, "", {}), ThreadState::kStopped);
}

TimePoint at_ms(int64_t ms) { return time_point_ns(ms * 1'000'000); }

TEST(RunnableShare, SharesReadingsAsTheTimesSay) {
  // 20 ms apart; of each, the thread waits 15 and runs 5.
  RunnableShare share;
  int waiting = 0;
  for (int i = 0; i < 400; i++) {
    share.update(at_ms(i * int64_t{20}), static_cast<uint64_t>(i) * 5'000'000,
                 static_cast<uint64_t>(i) * 15'000'000, true);
    waiting += share.take_waiting();
  }
  EXPECT_NEAR(waiting, 300, 2);
}

TEST(RunnableShare, AThreadThatNeverGetsACoreWaits) {
  RunnableShare share;
  share.update(at_ms(0), 100, 100, false);
  share.update(at_ms(20), 100, 100, true);
  EXPECT_TRUE(share.take_waiting());
}

TEST(SyscallInfo, TellsWhichThreadIsAwaited) {
  SyscallInfo call;
  call.number = SYS_futex;
  call.args = {0x7f00, 265, 4121};
  EXPECT_EQ(awaited_thread(call), 4121);
  call.args[2] = 0;
  EXPECT_FALSE(awaited_thread(call));
  call = {};
  call.number = SYS_read;
  call.args[2] = 4096;
  EXPECT_FALSE(awaited_thread(call));
}

TEST(RunnableShare, AThreadThatNeverWaitsRuns) {
  RunnableShare share;
  for (int i = 0; i < 50; i++) {
    share.update(at_ms(i * int64_t{20}), static_cast<uint64_t>(i) * 20'000'000, 5, true);
    EXPECT_FALSE(share.take_waiting());
  }
}

TEST(RunnableShare, AThreadThatJustWokeIsNotSaidToWait) {
  RunnableShare share;
  share.update(at_ms(0), 100, 100, false);
  share.update(at_ms(20), 100, 100, false);
  EXPECT_FALSE(share.take_waiting());
}

TEST(RunnableShare, GivesTheKernelItsShare) {
  RunnableShare share;
  int kernel = 0;
  for (uint64_t i = 0; i < 400; i++) {
    share.update_modes(i * 3, i);
    kernel += share.take_kernel();
  }
  EXPECT_NEAR(kernel, 100, 3);
}

}  // namespace
}  // namespace flatout::probe
