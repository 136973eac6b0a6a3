// The native functions of one process over time: what its busiest threads run, and where they wait.
// Nothing is stopped: the kernel samples what runs, and a blocked thread's stack stands still
// (probe/native_stack.h).
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fs.h"
#include "probe/native_stack.h"
#include "probe/python_reader.h"
#include "probe/thread_files.h"
#include "probe/thread_state.h"
#include "screen/functions.h"
#include "screen/sampling_thread.h"
#include "screen/snapshot.h"

namespace flatout::screen {

class NativeWatch {
 public:
  NativeWatch(fs::Root root, int32_t pid);

  /// What was seen since the last take().
  NativeProfile take();

 private:
  struct Thread {
    probe::ThreadFiles files;
    bool running = false;
    std::optional<probe::SyscallInfo> call;  // in which `codes` was read; of a blocked thread
    std::vector<probe::PythonFrame> frames;  // by their index into names_
  };

  bool tick(Nanos weight);
  void choose_threads();
  void read(int32_t tid, Thread& thread);
  void keep(const std::vector<symbols::NativeFrame>& frames, Thread& thread);
  std::string trouble() const;

  fs::Root root_;
  int32_t pid_;
  probe::FunctionNames function_names_;
  probe::NativeStacks stacks_;
  probe::FileBudget files_;
  std::map<int32_t, Thread> threads_;                // those that are watched
  std::unordered_map<int32_t, uint64_t> cpu_ticks_;  // of all, at the last choice
  TimePoint next_choice_{};
  bool calls_denied_ = false;
  std::map<std::pair<std::string, std::string>, uint32_t> codes_;  // by function and file
  std::vector<const std::pair<std::string, std::string>*> names_;
  probe::PythonReading reading_;

  std::mutex mutex_;  // of what follows
  FunctionTable table_;
  std::string trouble_;
  uint32_t all_threads_ = 0, watched_ = 0;

  SamplingThread thread_;  // uses all of the above
};

}  // namespace flatout::screen
