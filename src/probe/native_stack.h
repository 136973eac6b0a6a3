// Native stacks of the threads of a process that is not Python's, without stopping it.
//
// Of a thread that is blocked, the kernel tells the stack pointer and program counter
// (/proc/PID/task/TID/syscall), and its stack stands still. Of a thread that runs, perf_event_open
// samples registers and the top of the stack (man 2 perf_event_open; needs perf_event_paranoid <= 2
// or CAP_PERFMON). Both are unwound by the program's own unwind tables.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fs.h"
#include "base/result.h"
#include "probe/code_map.h"
#include "probe/function_names.h"
#include "probe/native_loop.h"
#include "probe/thread_state.h"
#include "symbols/allocator_code.h"
#include "symbols/native_process.h"
#include "symbols/process_maps.h"

namespace flatout::probe {

/// Samples one thread's registers and stack while it is on a core.
class CpuSampler {
 public:
  enum When : uint8_t {
    kAlways,    // some 50 times a second of CPU
    kOnDemand,  // when ask() is called
  };
  /// `stack_bytes` of its stack come with each sample. Errors: kDenied, kGone, kUnsupported.
  static Result<std::unique_ptr<CpuSampler>> open(int32_t tid, uint32_t stack_bytes,
                                                  When when = kAlways);
  ~CpuSampler();
  CpuSampler(const CpuSampler&) = delete;
  CpuSampler& operator=(const CpuSampler&) = delete;

  /// Asks for a sample and waits for it: some 20 us of the thread's CPU time, or at most a
  /// millisecond if it has no core. False if none came.
  bool ask();
  /// The newest sample since the last call; false if there is none.
  bool take(symbols::NativeRegisters& registers, std::string& stack);

 private:
  CpuSampler(int fd, void* ring) : fd_(fd), ring_(ring) {}
  int fd_;
  void* ring_;
  bool asked_ = false;  // by ask(), and no sample came
};

/// What a thread's native code is, as far as that is cheap to tell.
enum class NativePlace : uint8_t { kElsewhere, kAllocator, kSpinWait };

/// Whether threads of a process are in its memory allocator or spin, where their whole native
/// stacks would cost too much.
class PlaceWatch {
 public:
  explicit PlaceWatch(int32_t pid);

  NativePlace blocked(const SyscallInfo& call);
  /// Of a thread that runs: by its newest sample, or as it was where there is no new one.
  NativePlace running(int32_t tid);
  void forget(int32_t tid) { samplers_.erase(tid); }

 private:
  struct Sampled {
    std::unique_ptr<CpuSampler> sampler;  // nullptr: it can't be had
    NativePlace place = NativePlace::kElsewhere;
  };
  int32_t pid_;
  symbols::AllocatorCode code_;
  std::map<int32_t, Sampled> samplers_;
  std::string buffer_;
};

/// The stacks of one process.
class NativeStacks {
 public:
  NativeStacks(fs::Root root, int32_t pid, FunctionNames& names)
      : root_(root), code_(std::move(root), pid), pid_(pid), names_(names) {}

  /// Frames, innermost first; empty where nothing could be read. Valid until the next call.
  const std::vector<symbols::NativeFrame>& blocked(int32_t tid, const SyscallInfo& call);
  /// The same of a thread that runs: what the newest sample says. A thread not seen before is asked
  /// for one, since it may be gone before the first comes by itself.
  const std::vector<symbols::NativeFrame>& running(int32_t tid);
  /// The last stack by functions alone; those that were inlined are named beside them.
  NativePath path();
  void forget(int32_t tid) { samplers_.erase(tid); }
  /// Whether the last stack is empty because the thread was not blocked there any more.
  bool went_on() const { return went_on_; }
  /// Whether the last stack is empty because names are still to be read.
  bool later() const { return later_; }
  /// Why running threads can't be sampled; ok() where they can.
  const Status& trouble() const { return trouble_; }

 private:
  struct Sampled {
    std::unique_ptr<CpuSampler> sampler;
    bool at_first = true;  // it samples on demand
  };
  bool ready();
  bool is_still_at(int32_t tid, const SyscallInfo& call);
  bool has_beginning() const;
  const std::vector<symbols::NativeFrame>* frames_at(uint64_t pc, bool caller);
  const std::string& called_from(uint64_t return_address, const symbols::NativeFrame& callee);
  void fill(const symbols::NativeRegisters& registers, std::string_view stack);

  fs::Root root_;
  CodeMap code_;
  uint64_t version_ = 0;  // of the code map that the names below are by
  int32_t pid_;
  FunctionNames& names_;
  std::unordered_map<uint64_t, std::vector<symbols::NativeFrame>> known_;  // by address
  std::unordered_map<uint64_t, std::string> callees_;                      // by return address
  bool later_ = false, went_on_ = false;
  std::map<int32_t, Sampled> samplers_;
  Status trouble_;
  std::string buffer_;
  std::vector<symbols::NativeFrame> frames_;
  std::vector<uint64_t> pcs_;
};

}  // namespace flatout::probe
