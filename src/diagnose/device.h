// The GPU of a job as NVML sees it.
#pragma once

#include <optional>
#include <string>

#include "diagnose/view.h"

namespace flatout::diagnose {

/// Memory of a device at a time, in bytes.
struct DeviceMemory {
  double total = 0, used = 0;
  double job = 0, others = 0;  // of that, by processes of the job, by others; as far as told
  std::string other_name;      // of the largest other one, "" if there is none
  int64_t other_pid = 0;
  int64_t readings = 0;

  double free() const { return total - used; }
};

/// The one GPU of the machine, else the one on which the process holds most memory; kNoEntity where
/// that is not known: CUDA's numbers are not NVML's.
model::EntityId device_of(const RunView& view, model::ProcessId process);
std::optional<DeviceMemory> device_memory(const RunView& view, model::ProcessId process,
                                          TimePoint at);
/// Share of the time that the training's device computes; 0 where no device was watched.
double device_computes(const model::Run& run);

}  // namespace flatout::diagnose
