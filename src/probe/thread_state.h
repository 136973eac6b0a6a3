// What a thread is doing, told from the kernel's files about it: /proc/PID/task/TID/stat (state),
// syscall and wchan (kernel: Documentation/filesystems/proc.rst), schedstat
// (scheduler/sched-stats.rst). Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "model/stack.h"

namespace flatout::probe {

/// /proc/PID/task/TID/syscall of a thread that is not running.
struct SyscallInfo {
  int32_t number = -1;  // -1: blocked outside of a system call (a page fault)
  std::array<uint64_t, 6> args{};
  uint64_t sp = 0, pc = 0;
  bool operator==(const SyscallInfo&) const = default;
};
/// nullopt where the thread runs, or the text makes no sense.
std::optional<SyscallInfo> parse_syscall(std::string_view text);

/// Whether a thread that is blocked there may wait for a lock. A condition is waited for by a bit
/// set or until some time, a semaphore while it is zero; the word of a lock that is held is not.
bool may_wait_for_lock(const SyscallInfo& call);

/// The thread whose end a thread awaits that is blocked there, in pthread_join(): as the job sees
/// it. glibc waits at the word that holds that thread's number. Meaningless in other functions.
std::optional<int32_t> awaited_thread(const SyscallInfo& call);

/// A range of addresses in the job: the interpreter's lock with its condition variables.
struct AddressRange {
  uint64_t begin = 0, end = 0;
};

/// The state of a thread that does not run. `state`: the letter of stat. `call` may be missing (no
/// permission), `wchan` empty or "0".
model::ThreadState blocked_state(char state, const std::optional<SyscallInfo>& call,
                                 std::string_view wchan, std::span<const AddressRange> gil);

/// The kernel says "R" for a thread on a core and for one that waits for a core, and nothing tells
/// them apart at one moment. Over a window schedstat does: so each reading in which the thread was
/// runnable is given to one of the two such that their sums follow the times measured.
class RunnableShare {
 public:
  /// Totals as schedstat gives them, at each reading of the thread, whatever its state.
  /// `runnable`: it was runnable in the reading before, and is now.
  void update(TimePoint at, uint64_t on_cpu_ns, uint64_t run_delay_ns, bool runnable);
  /// Time in the kernel and in user mode, as stat gives them.
  void update_modes(uint64_t user_ticks, uint64_t system_ticks);
  /// For a reading in state R: true if it counts as waiting for a core.
  bool take_waiting();
  /// For a reading on a core: true if it counts as time in the kernel.
  bool take_kernel();

 private:
  TimePoint last_{};
  uint64_t on_cpu_ = 0, delay_ = 0, user_ = 0, system_ = 0;
  bool started_ = false, modes_started_ = false;
  double waiting_share_ = 0, waiting_debt_ = 0;
  double recent_user_ = 0, recent_system_ = 0, kernel_debt_ = 0;
};

}  // namespace flatout::probe
