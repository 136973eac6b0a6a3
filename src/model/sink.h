// Where probes put what they read.
#pragma once

#include <string_view>

#include "model/run.h"

namespace flatout::model {

/// Implemented by the recorder (run folder and live Run) and by tests.
class Sink {
 public:
  virtual ~Sink() = default;
  /// The id of an entity, made on first use. Equal (kind, key, name) give the same id.
  virtual EntityId entity(EntityKind kind, int64_t key, std::string_view name, EntityId parent) = 0;
  virtual void reading(SignalId signal, EntityId entity, TimePoint at, double value) = 0;
  /// Said once per signal name; repeats are dropped.
  virtual void missing(const Missing& missing) = 0;
  virtual void process(const Process& process) = 0;  // seen first, or changed (exec)
  virtual void process_end(int32_t pid, int wait_status, TimePoint at) = 0;
  virtual ThreadId thread(int32_t pid, int32_t tid, std::string_view name) = 0;
  virtual FrameId frame(std::string_view function, std::string_view file, uint32_t line,
                        FrameKind kind) = 0;
  virtual StackId stack(StackId parent, FrameId frame) = 0;
  virtual void stack_reading(const StackReading& reading) = 0;
  virtual void fact(std::string_view key, std::string_view value) = 0;
};

}  // namespace flatout::model
