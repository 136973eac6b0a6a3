#include "probe/thread_state.h"

#include <linux/futex.h>
#include <sys/syscall.h>

#include <charconv>

#include "base/contains.h"
#include "base/text.h"

namespace flatout::probe {

using model::ThreadState;

namespace {

std::optional<uint64_t> parse_hex(std::string_view s) {
  if (s.substr(0, 2) == "0x") s.remove_prefix(2);
  uint64_t value = 0;
  const auto [end, err] = std::from_chars(s.data(), s.data() + s.size(), value, 16);
  if (err != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return value;
}

// Parts of kernel function names, which change a little from version to version.
constexpr std::string_view kReclaimNames[] = {"reclaim",     "shrink_",        "compact",
                                              "try_to_free", "throttle_vm",    "kswapd",
                                              "swap_read",   "mem_cgroup_oom", "out_of_memory"};
constexpr std::string_view kFrozenNames[] = {"refrigerator", "freezer"};
constexpr std::string_view kForkNames[] = {"kernel_clone", "_do_fork", "do_fork", "vfork"};
constexpr std::string_view kLockNames[] = {"futex",    "rwsem", "mutex_lock",
                                           "rt_mutex", "flock", "locks_lock"};
constexpr std::string_view kSleepNames[] = {"nanosleep", "do_select_tv"};
constexpr std::string_view kPollNames[] = {
    "poll",     "do_select",    "pipe_",      "wait_for_partner",
    "recv",     "accept",       "sk_wait",    "wait_woken",
    "skb_",     "tty_",         "sock",       "unix_",
    "epoll",    "ep_",          "inotify",    "eventfd",
    "signalfd", "sigtimedwait", "sigsuspend", "msg",
    "connect"};
constexpr std::string_view kDiskNames[] = {"fuse",          "request_wait_answer",
                                           "io_schedule",   "folio_wait",
                                           "wait_on_page",  "nfs",
                                           "rpc_wait",      "blk",
                                           "jbd2",          "read_events",
                                           "io_cqring_wait"};

ThreadState from_wchan(std::string_view wchan) {
  if (wchan.empty() || wchan == "0") return ThreadState::kUnknown;
  if (contains_any(wchan, kReclaimNames)) return ThreadState::kReclaim;
  if (contains_any(wchan, kFrozenNames)) return ThreadState::kStopped;
  if (contains_any(wchan, kForkNames) || wchan == "do_wait") return ThreadState::kChild;
  if (contains_any(wchan, kSleepNames)) return ThreadState::kSleep;
  if (contains_any(wchan, kDiskNames)) return ThreadState::kDisk;
  if (contains_any(wchan, kLockNames)) return ThreadState::kLock;
  if (contains_any(wchan, kPollNames)) return ThreadState::kPoll;
  return ThreadState::kUnknown;
}

ThreadState from_syscall(const SyscallInfo& call, std::string_view wchan,
                         std::span<const AddressRange> gil) {
  switch (call.number) {
    case SYS_futex:
#ifdef SYS_futex_waitv
    case SYS_futex_waitv:
#endif
      for (const AddressRange& range : gil) {
        if (call.args[0] >= range.begin && call.args[0] < range.end) return ThreadState::kGilWait;
      }
      return ThreadState::kLock;
    case SYS_flock:
    case SYS_fcntl:
    case SYS_semop:
    case SYS_semtimedop:
      return ThreadState::kLock;
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
      return ThreadState::kSleep;
#ifdef SYS_poll
    case SYS_poll:
      return call.args[1] == 0 ? ThreadState::kSleep : ThreadState::kPoll;
#endif
    case SYS_ppoll:
      return call.args[1] == 0 ? ThreadState::kSleep : ThreadState::kPoll;
#ifdef SYS_select
    case SYS_select:
#endif
    case SYS_pselect6:
      return call.args[0] == 0 ? ThreadState::kSleep : ThreadState::kPoll;
    case SYS_wait4:
    case SYS_waitid:
#ifdef SYS_vfork
    case SYS_vfork:
#endif
    case SYS_clone:
#ifdef SYS_clone3
    case SYS_clone3:
#endif
      return ThreadState::kChild;
    case SYS_io_getevents:
#ifdef SYS_io_uring_enter
    case SYS_io_uring_enter:
#endif
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_sync:
    case SYS_syncfs:
    case SYS_sync_file_range:
    case SYS_msync:
      return ThreadState::kDisk;
    default:
      break;
  }
  // A read or write that sleeps interruptibly waits for a pipe, socket or terminal; a file behind
  // FUSE is told by the wait channel.
  const ThreadState where = from_wchan(wchan);
  return where == ThreadState::kUnknown ? ThreadState::kPoll : where;
}

}  // namespace

std::optional<SyscallInfo> parse_syscall(std::string_view text) {
  SyscallInfo info;
  const auto number = parse_number<int32_t>(next_word(text));
  if (!number || *number < -1) return std::nullopt;
  info.number = *number;
  if (info.number >= 0) {
    for (uint64_t& arg : info.args) {
      const auto value = parse_hex(next_word(text));
      if (!value) return std::nullopt;
      arg = *value;
    }
  }
  const auto sp = parse_hex(next_word(text));
  const auto pc = parse_hex(trim(text));
  if (!sp || !pc) return std::nullopt;
  info.sp = *sp;
  info.pc = *pc;
  return info;
}

bool may_wait_for_lock(const SyscallInfo& call) {
  if (call.number != SYS_futex) return true;
  const uint64_t operation = call.args[1] & static_cast<uint64_t>(FUTEX_CMD_MASK);
  const bool bits = operation == FUTEX_WAIT_BITSET;
  return !bits && !(operation == FUTEX_WAIT && call.args[2] == 0);
}

std::optional<int32_t> awaited_thread(const SyscallInfo& call) {
  if (call.number != SYS_futex || call.args[2] == 0 || call.args[2] > INT32_MAX)
    return std::nullopt;
  return static_cast<int32_t>(call.args[2]);
}

ThreadState blocked_state(char state, const std::optional<SyscallInfo>& call,
                          std::string_view wchan, std::span<const AddressRange> gil) {
  switch (state) {
    case 'T':
    case 't':
      return ThreadState::kStopped;
    case 'D': {
      const ThreadState where = from_wchan(wchan);
      if (where == ThreadState::kReclaim || where == ThreadState::kStopped ||
          where == ThreadState::kChild || where == ThreadState::kLock) {
        return where;
      }
      // Waiting for a child that shares our memory (vfork) is uninterruptible too.
      if (call && from_syscall(*call, "", gil) == ThreadState::kChild) return ThreadState::kChild;
      return ThreadState::kDisk;
    }
    case 'S':
      if (contains_any(wchan, kFrozenNames)) return ThreadState::kStopped;
      return call && call->number >= 0 ? from_syscall(*call, wchan, gil) : from_wchan(wchan);
    default:
      return ThreadState::kUnknown;
  }
}

void RunnableShare::update(TimePoint at, uint64_t on_cpu_ns, uint64_t run_delay_ns, bool runnable) {
  // A running thread's time is booked at the scheduler's tick, up to 10 ms late: shorter windows
  // would say "waiting" of a thread that runs.
  constexpr Nanos kShortest = std::chrono::milliseconds(12);
  if (!started_) {
    started_ = true;
  } else if (at - last_ < kShortest) {
    return;
  } else {
    const double ran = static_cast<double>(on_cpu_ns) - static_cast<double>(on_cpu_);
    const double waited = static_cast<double>(run_delay_ns) - static_cast<double>(delay_);
    // Waiting is booked when it ends: a thread that was runnable all along and got nothing waits.
    if (ran + waited > 0) {
      waiting_share_ = waited / (ran + waited);
    } else if (runnable) {
      waiting_share_ = 1;
    }
  }
  last_ = at;
  on_cpu_ = on_cpu_ns;
  delay_ = run_delay_ns;
}

void RunnableShare::update_modes(uint64_t user_ticks, uint64_t system_ticks) {
  if (modes_started_ && user_ticks >= user_ && system_ticks >= system_) {
    // A tick is 10 ms: remember the last half second or so of CPU time.
    const double fresh = static_cast<double>(user_ticks - user_ + system_ticks - system_);
    const double keep = fresh >= 50 ? 0 : 1 - fresh / 50;
    recent_user_ = recent_user_ * keep + static_cast<double>(user_ticks - user_);
    recent_system_ = recent_system_ * keep + static_cast<double>(system_ticks - system_);
  }
  modes_started_ = true;
  user_ = user_ticks;
  system_ = system_ticks;
}

bool RunnableShare::take_waiting() {
  waiting_debt_ += waiting_share_;
  if (waiting_debt_ < 0.5) return false;
  waiting_debt_ -= 1;
  return true;
}

bool RunnableShare::take_kernel() {
  const double all = recent_user_ + recent_system_;
  if (all <= 0) return false;
  kernel_debt_ += recent_system_ / all;
  if (kernel_debt_ < 0.5) return false;
  kernel_debt_ -= 1;
  return true;
}

}  // namespace flatout::probe
