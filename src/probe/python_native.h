// Native code under Python: what the innermost Python frame of a thread called, without stopping
// the thread. Used beside the stacks that PythonReader gives.
//
// Of a thread that is blocked the stack stands still. Of one that runs the kernel takes a sample
// when it is asked to (probe/native_stack.h): registers and the top of the stack. Whether the
// sample belongs to the Python line is for the caller to check, by reading that line before and
// after. Unwinding is done by the unwind tables of the job's own libraries; code without them
// (assembly kernels, code made at run time) ends a stack, which then says so.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fs.h"
#include "probe/code_map.h"
#include "probe/function_names.h"
#include "probe/native_stack.h"
#include "probe/thread_state.h"
#include "symbols/native_process.h"
#include "symbols/process_maps.h"

namespace flatout::probe {

/// Stands between a Python line and native code where it is not known how the one led to the other.
inline constexpr std::string_view kLostFrames = "[frames not known]";

/// Of one process.
class PythonNativeStacks {
 public:
  /// `runtime`: an address in the data of the interpreter (PythonPlace::runtime).
  PythonNativeStacks(fs::Root root, int32_t pid, uint64_t runtime, FunctionNames& names);

  /// Frames, innermost first, up to the innermost Python frame; empty where the thread is in the
  /// interpreter itself, or nothing could be read. Valid until the next call.
  const std::vector<symbols::NativeFrame>& blocked(const SyscallInfo& call);
  /// Takes a sample of a thread that runs; false if it could not be had.
  bool sample(int32_t tid);
  const std::vector<symbols::NativeFrame>& sampled();
  /// Whether the last stack could be followed and named. Where it could and has no frames, the
  /// thread is in the interpreter itself.
  bool certain() const { return certain_; }
  void forget(int32_t tid) { samplers_.erase(tid); }
  /// Why running threads can't be sampled; ok() where they can.
  const Status& trouble() const { return trouble_; }

 private:
  struct Place {
    symbols::NativeFrame frame;
    bool interpreter = false;  // of the interpreter's own
    bool evaluates = false;    // the function that runs Python code
    bool known = false;
  };
  bool ready();
  bool has_interpreter();
  const Place* place_at(uint64_t pc, bool caller);
  void fill(const symbols::NativeRegisters& registers, std::string_view stack);

  CodeMap code_;
  uint64_t version_ = 0;  // of the code map that the places are by
  int32_t pid_;
  uint64_t runtime_;
  FunctionNames& names_;
  std::pair<uint64_t, uint64_t> interpreter_{};  // device and inode of its file
  bool certain_ = false;
  std::unordered_map<uint64_t, Place> places_;  // by address
  std::map<int32_t, std::unique_ptr<CpuSampler>> samplers_;
  Status trouble_;
  symbols::NativeRegisters registers_;
  std::string buffer_;
  std::vector<symbols::NativeFrame> frames_;
};

}  // namespace flatout::probe
