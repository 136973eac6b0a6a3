// Stacks of the job's threads, each read together with what the thread was doing.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/clock.h"

namespace flatout::model {

using StringId = uint32_t;  // Run::strings; 0 is ""
using FrameId = uint32_t;   // Run::frames
using StackId = uint32_t;   // Run::stacks; 0: no stack could be read
using ThreadId = uint32_t;  // Run::threads

enum class FrameKind : uint8_t {
  kPython,
  kNative,
  kGenerator,    // Python's, of a generator or coroutine, where that can be told (3.11 and later)
  kUnderPython,  // native code that a Python frame called; seen in some of the readings only, so it
                 // is shown, and nothing is concluded from it
};

inline bool is_python(FrameKind kind) {
  return kind == FrameKind::kPython || kind == FrameKind::kGenerator;
}

/// The innermost frame of a thread that has a core, but only waits for others at a PAUSE.
inline constexpr std::string_view kSpinWaitFrame = "[spin-wait]";

/// Native code that runs is sampled so often, at an even beat; readings in between see the last
/// sample again.
inline constexpr int kNativeSamplesPerSecond = 49;

struct Frame {
  StringId function = 0;
  StringId file = 0;
  uint32_t line = 0;
  FrameKind kind = FrameKind::kPython;
};

/// A node of the tree of stacks: `frame`, called by the stack `parent` (0: outermost).
struct StackNode {
  StackId parent = 0;
  FrameId frame = 0;
};

/// What a thread was doing in one reading: its OS state and its stack, taken in the same tick.
enum class ThreadState : uint8_t {
  kUnknown,
  kOnCpuPython,  // running, innermost in the interpreter
  kOnCpuNative,  // running, innermost in native code that Python called (or no Python at all)
  kRunQueue,     // runnable, waiting for a core
  kGilWait,      // waiting for the interpreter lock
  kLock,         // waiting for another lock or condition (futex)
  kDisk,         // uninterruptible sleep: I/O, or a page fault that needs I/O
  kPoll,         // waiting for a pipe, socket, epoll, poll, select: for another process or thread
  kSleep,        // in a timed sleep (nanosleep, select without files)
  kChild,        // waiting for a child process
  kKernel,       // running inside the kernel (system call or fault)
  kStopped,      // stopped or traced
  kReclaim,      // waiting for memory: direct reclaim, compaction, swap
  kCount
};
std::string_view name(ThreadState state);

/// Flags of a reading.
inline constexpr uint8_t kHoldsGil = 1;
inline constexpr uint8_t kGcRunning = 2;   // the interpreter's collector was running
inline constexpr uint8_t kIdleWorker = 4;  // known to be parked: a thread pool without work

struct StackReading {
  TimePoint at;
  ThreadId thread = 0;
  StackId stack = 0;
  uint32_t weight_us = 0;  // the time this reading stands for
  ThreadState state = ThreadState::kUnknown;
  uint8_t flags = 0;
  int16_t syscall = -1;
};

}  // namespace flatout::model
