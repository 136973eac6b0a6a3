// Signals: everything that can be measured over time, in one table (signals.def).
#pragma once

#include <cstdint>
#include <string_view>

namespace flatout::model {

enum class SignalKind : uint8_t {
  kGauge,    // the value now
  kCounter,  // a total since some start: only differences mean something
  kRatio,    // 0..1
};

/// What a signal belongs to.
enum class EntityKind : uint16_t {
  kHost,         // key 0
  kCpu,          // key: core number
  kDisk,         // key: makedev(major, minor); name "vda"
  kMount,        // key: index; name: mount point
  kCgroup,       // key: 0 the job's own, 1 its parent, ...; name: path
  kProcess,      // key: pid; a process of the job
  kThread,       // key: tid; parent: its process
  kOther,        // key: pid; a process outside the job (only those that use something)
  kGpu,          // key: index
  kGpuProcess,   // key: pid; parent: the GPU
  kUserCounter,  // key: number; name: the job's own (flatout_counter); parent: its process
  kLoop,  // key: pid, frames outside of it, place on the value stack (32, 16, 16 bits), without
          // Python pid and a number; name: the function that has it; parent: its process
};

enum class SignalId : uint16_t {
#define FLATOUT_SIGNAL(id, name, unit, kind, entity, text) id,
#include "model/signals.def"
#undef FLATOUT_SIGNAL
  kCount
};

struct SignalInfo {
  std::string_view name;  // "proc.cpu_user_ns"
  std::string_view unit;
  SignalKind kind;
  EntityKind entity;
  std::string_view text;
};

const SignalInfo& info(SignalId id);
std::string_view name(EntityKind kind);

}  // namespace flatout::model
