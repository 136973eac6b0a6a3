// Run: everything known about one recording of one job, as plain data.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "model/device.h"
#include "model/series.h"
#include "model/slice.h"
#include "model/stack.h"
#include "model/step.h"

namespace flatout::model {

/// What could not be measured, why, and how to allow it.
struct Missing {
  std::string signal;
  std::string reason;
  std::string hint;
};

using ProcessId = uint32_t;  // Run::processes
inline constexpr uint32_t kNone = 0xFFFFFFFF;

struct Process {
  int32_t pid = 0;
  int32_t ppid = 0;
  uint64_t start_time_ticks = 0;
  TimePoint start, end;  // end: last seen while it lives
  bool in_job = false;
  bool main = false;  // the command itself
  bool python = false;
  bool ended = false;
  int wait_status = -1;  // as waitpid; -1 not known
  std::string name, exe, command;
};

struct Thread {
  ProcessId process = kNone;
  int32_t tid = 0;
  std::string name;
  bool is_main = false;        // tid == pid
  ThreadId continues = kNone;  // its events are that one's (timeline/successors.h)
};

/// Events of [begin, end) were dropped to keep the recording small (not: nothing happened).
struct Gap {
  TimePoint begin, end;
};

struct Run {
  // Facts, by key: see docs/run-folder.md. "host.name", "command", "torch.version", "exit_code",
  // "loader.num_workers", "agent.python", ...
  std::map<std::string, std::string> info;
  std::vector<std::string> training_facts;  // keys of these that the training process's agent told
  ProcessId training_process = kNone;       // that is whose
  TimePoint begin, end;
  bool finished = false;  // the job has ended
  int wait_status = -1;   // of the command itself, as waitpid

  std::vector<std::string> strings{""};
  std::vector<Frame> frames{Frame{}};
  std::vector<StackNode> stacks{StackNode{}};
  std::vector<Process> processes;
  std::vector<Thread> threads;
  std::vector<Entity> entities;
  std::vector<Series> series;
  std::vector<StackReading> readings;  // by time
  std::vector<Slice> slices;           // by end time
  std::vector<Gap> gaps;
  std::vector<Missing> missing;

  std::vector<DeviceWindow> device_windows;  // by end

  StepSet steps;                   // filled in by timeline
  std::vector<DeviceUse> devices;  // the same; of the training process, by number

  std::string_view string(StringId id) const {
    return id < strings.size() ? strings[id] : strings[0];
  }
  /// The series of a signal for an entity; nullptr if there is none.
  const Series* find(SignalId signal, EntityId entity) const;
  /// The first series of a signal, for signals of the one host, and so on.
  const Series* find(SignalId signal) const;
  std::vector<const Series*> all(SignalId signal) const;
  EntityId entity(EntityKind kind, int64_t key) const;  // kNoEntity if there is none
  std::string_view fact(const std::string& key) const;  // "" if there is none
  std::string damage() const;  // what of the recording could not be read; "" where it is whole
  const Process* main_process() const;
};

}  // namespace flatout::model
