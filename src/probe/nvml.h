// NVML opened at run time (dlopen): what it says about each GPU. No header or library of NVIDIA's
// is needed to build; names and layouts as in its public nvml.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace flatout::probe {

struct GpuProcess {
  int32_t pid = 0;  // as the driver names it: of the host, also within a container
  std::optional<uint64_t> memory_bytes;
  std::optional<uint32_t> gpu_instance, compute_instance;  // where the GPU is divided (MIG)
};

/// A part of a GPU that is divided (MIG): a compute instance within a GPU instance, which has the
/// memory. The driver tells neither its utilisation nor its clocks.
struct MigInstance {
  uint32_t gpu_instance = 0, compute_instance = 0;
  std::string profile;  // "1g.10gb"
  std::optional<uint64_t> mem_used_bytes, mem_total_bytes;

  bool has(const GpuProcess& process) const {
    return process.gpu_instance == gpu_instance && process.compute_instance == compute_instance;
  }
};

/// One look at one GPU. What the device or driver cannot tell stays unset.
struct GpuReading {
  uint32_t index = 0;
  std::optional<double> util_ratio, mem_util_ratio;
  std::optional<uint64_t> mem_used_bytes, mem_total_bytes;
  std::optional<double> clock_sm_hz, clock_sm_max_hz, clock_mem_hz;
  std::optional<double> power_w, power_limit_w, temperature_c;
  std::optional<uint64_t> throttle_reasons, ecc_errors;
  std::optional<double> pcie_tx_bytes_per_s, pcie_rx_bytes_per_s;
  std::vector<GpuProcess> processes;   // those of its instances, too
  std::vector<MigInstance> instances;  // empty where it is not divided
  std::string error;  // why the device does not answer any more ("GPU is lost"), else empty
};

struct GpuFacts {
  std::string name, uuid;
  int compute_major = 0, compute_minor = 0;  // its compute capability; 0: not told
};

class Nvml {
 public:
  /// Loads and initialises the library. Takes up to seconds where the driver has to wake the
  /// devices. Errors: kNotFound (no library), kUnsupported (no driver, no device).
  static Result<std::unique_ptr<Nvml>> open(const std::string& library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  uint32_t count() const;
  GpuFacts facts(uint32_t index) const;
  std::string driver_version() const;
  std::string cuda_version() const;  // "12.8": the newest that the driver supports
  /// `pcie`: also measure the PCIe rates, for which the driver waits 40 ms.
  GpuReading read(uint32_t index, bool pcie) const;

 private:
  struct Api;
  explicit Nvml(std::unique_ptr<Api> api);
  std::unique_ptr<Api> api_;
};

}  // namespace flatout::probe
