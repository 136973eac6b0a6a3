// GPUs by NVML. The library is asked in a thread of its own, since a call may take long (waking a
// device, measuring PCIe for 40 ms, a device that is lost).
#pragma once

#include <memory>
#include <string>

#include "probe/nvml.h"
#include "probe/probe.h"

namespace flatout::probe {

std::unique_ptr<Probe> make_nvml_probe(const Scope& scope,
                                       const std::string& library = "libnvidia-ml.so.1");

/// Delivers one look at a GPU.
void deliver_gpu(const GpuReading& gpu, const GpuFacts& facts, TimePoint at, model::Sink& sink);

}  // namespace flatout::probe
