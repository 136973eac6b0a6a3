// The Python functions of one process over time: its stacks are read from outside some 50 times a
// second, in a thread of its own, and never stopped (probe/python_reader.h).
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/fs.h"
#include "probe/python_reader.h"
#include "probe/thread_files.h"
#include "screen/sampling_thread.h"
#include "screen/snapshot.h"

namespace flatout::screen {

/// Adds up readings. Separate from the thread that takes them, for tests. Stacks of native code
/// come in the same shape.
class FunctionTable {
 public:
  /// One reading, which stands for `weight` of time. `runs(tid)`: whether that thread was runnable.
  template <class Runs, class NameOf>
  void add(const probe::PythonReading& reading, Nanos weight, Runs runs, NameOf name_of);
  /// The functions by total_share, then total_s, `most` at the most; begins a new interval.
  PythonProfile take(size_t most);

 private:
  struct Sums {
    Function function;
    Nanos own{}, waiting{}, total{}, gil{};  // of this interval
    Nanos own_ever{}, total_ever{};
    uint64_t counted = 0;  // the last thread reading that counted it in its total
  };
  std::unordered_map<uint32_t, Sums> sums_;  // by PythonReader's code id
  Nanos interval_{}, gil_{};
  uint64_t readings_ = 0, thread_readings_ = 0;
};

class FunctionWatch {
 public:
  FunctionWatch(fs::Root root, int32_t pid);

  int32_t pid() const { return pid_; }
  /// What was seen since the last take().
  PythonProfile take();

 private:
  bool open();
  bool tick(Nanos weight);
  void read_once(Nanos weight);
  bool runs(int32_t tid);

  fs::Root root_;
  int32_t pid_;
  probe::PythonFinder finder_;
  std::unique_ptr<probe::PythonReader> reader_;
  probe::PythonReading reading_;
  probe::FileBudget files_;
  std::unordered_map<int32_t, probe::ThreadFiles> threads_;

  std::mutex mutex_;  // of what follows
  FunctionTable table_;
  std::string version_, trouble_;

  SamplingThread thread_;  // uses all of the above
};

template <class Runs, class NameOf>
void FunctionTable::add(const probe::PythonReading& reading, Nanos weight, Runs runs,
                        NameOf name_of) {
  ++readings_;
  interval_ += weight;
  bool held = false;
  for (const probe::PythonThread& thread : reading.threads) {
    held |= thread.holds_gil;
    if (thread.torn || thread.frames.empty()) continue;
    ++thread_readings_;
    const bool running = runs(thread.tid);
    bool innermost = true;
    for (const probe::PythonFrame& frame : thread.frames) {
      const auto [it, is_new] = sums_.try_emplace(frame.code);
      Sums& sums = it->second;
      if (is_new) name_of(frame.code, sums.function);
      if (innermost) {
        (running ? sums.own : sums.waiting) += weight;
        if (running) sums.own_ever += weight;
        if (thread.holds_gil) sums.gil += weight;
        innermost = false;
      }
      if (sums.counted == thread_readings_) continue;  // it calls itself
      sums.counted = thread_readings_;
      sums.total += weight;
      sums.total_ever += weight;
    }
  }
  if (held) gil_ += weight;
}

}  // namespace flatout::screen
