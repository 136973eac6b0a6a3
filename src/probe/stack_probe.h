// Reads what every thread of the job is doing: its OS state and its Python stack, in the same tick.
//
// Nothing is stopped. Cost is kept low by reading only what can have changed: a thread whose
// schedstat stands still since it was found asleep is doing what it did then, and where that holds
// for all threads of a process its memory is not read at all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "model/sink.h"
#include "probe/job_tree.h"
#include "probe/native_stack.h"
#include "probe/probe.h"
#include "probe/python_native.h"
#include "probe/python_reader.h"
#include "probe/thread_files.h"
#include "probe/thread_state.h"

namespace flatout::probe {

class PlaceWatch;

class StackProbe {
 public:
  struct Cost {
    Nanos cpu{};            // our own CPU time
    Nanos native{};         // of it, for native code under Python and tables of names
    uint32_t threads = 0;   // threads of the job
    uint32_t looked = 0;    // of these, looked at
    uint32_t read = 0;      // of these, found changed and read
    uint32_t python = 0;    // processes whose Python stacks were read
    uint32_t torn = 0;      // Python stacks dropped because they changed under our hands
    uint32_t readings = 0;  // delivered
  };

  /// `once`: for a single look, in which cost does not matter: native code of all threads.
  explicit StackProbe(const Scope& scope, bool once = false);
  ~StackProbe();
  StackProbe(const StackProbe&) = delete;
  StackProbe& operator=(const StackProbe&) = delete;

  /// One reading of all threads. `weight`: the time that it stands for, as a rule the time since
  /// the last tick. Threads of idle pools are delivered about once a second with the weight of
  /// all ticks in between.
  void tick(TimePoint now, Nanos weight, model::Sink& sink);
  const Cost& last_cost() const { return cost_; }

  /// Whether the rounds of loops are counted (SignalId::kLoopRounds), in the main threads of the
  /// job's first processes. At first they are not.
  void count_loops(bool on) { count_loops_ = on; }

 private:
  struct ThreadEntry;
  struct ProcessEntry;

  void tick_process(const JobProcess& job, ProcessEntry& process, TimePoint now, Nanos weight,
                    model::Sink& sink);
  int32_t inner_number(const std::string& status_path, int32_t outer) const;
  void list_threads(ProcessEntry& process, TimePoint now);
  bool look(ProcessEntry& process, ThreadEntry& thread, TimePoint now);
  /// What sampling it costs the thread itself; too much, and it rests from that.
  void charge_switches(ProcessEntry& process, ThreadEntry& thread, uint64_t switches);
  void open_python(const JobProcess& job, ProcessEntry& process, TimePoint now, model::Sink& sink);
  void read_python(ProcessEntry& process, TimePoint now, model::Sink& sink);
  void join(ProcessEntry& process, model::Sink& sink);
  bool may_count_loops(const ProcessEntry& process) const;
  void tell_loops(ProcessEntry& process, TimePoint now, model::Sink& sink);
  void show_native_loop(ProcessEntry& process, bool trains, TimePoint now);
  void note_awaited(ProcessEntry& process, const std::optional<SyscallInfo>& call,
                    std::span<const symbols::NativeFrame> frames, TimePoint now);
  void follow_awaited(ProcessEntry& process, TimePoint now);
  void tell_native_loop(ProcessEntry& process, TimePoint now, model::Sink& sink);
  void read_state(ProcessEntry& process, ThreadEntry& thread, TimePoint now, model::Sink& sink);
  PlaceWatch* watch_places(ProcessEntry& process, TimePoint now);
  bool wants_native(const ProcessEntry& process, TimePoint now) const;
  void read_native(ProcessEntry& process, ThreadEntry& thread,
                   const std::optional<SyscallInfo>& call, TimePoint now, model::Sink& sink);
  bool may_look_under(const ProcessEntry& process, const ThreadEntry& thread) const;
  void read_under_python(ProcessEntry& process, ThreadEntry& thread,
                         const std::optional<SyscallInfo>& call, TimePoint now, model::Sink& sink);
  bool stood_still(const ProcessEntry& process, ThreadEntry& thread);
  bool has_same_frames(ProcessEntry& process, const ThreadEntry& thread);
  void deliver(ProcessEntry& process, ThreadEntry& thread, TimePoint now, model::Sink& sink);
  void give(ThreadEntry& thread, TimePoint at, Nanos weight, model::Sink& sink);

  Scope scope_;
  bool once_;
  FileBudget files_;
  PythonFinder finder_;
  std::unordered_map<int32_t, std::unique_ptr<ProcessEntry>> processes_;
  PythonReading reading_;
  std::vector<int32_t> tids_;
  bool count_loops_ = false;
  uint64_t ticks_ = 0;
  uint32_t budget_ = 0;   // threads that may still be looked at in this tick
  int opens_left_ = 0;    // processes whose maps may still be read in this tick
  int natives_left_ = 0;  // native stacks that may still be unwound in this tick
  FunctionNames names_;
  PythonReading check_;          // read again, after a sample
  double native_credit_ns_ = 0;  // that may be spent on native code under Python
  Cost cost_;
};

}  // namespace flatout::probe
