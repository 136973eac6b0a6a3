// GPUs by NVML. The library is asked in a thread of its own, since a call may take long (waking a
// device, measuring PCIe for 40 ms, a device that is lost).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "probe/nvml.h"
#include "probe/probe.h"

namespace flatout::probe {

/// The library with the thread that asks it, twice a second.
class NvmlThread {
 public:
  struct Timed {
    TimePoint at;
    GpuReading gpu;
  };
  struct News {
    std::optional<Error> failed;  // it can't be had; nothing will come any more
    std::vector<GpuFacts> facts;  // by GpuReading::index
    std::string driver, cuda;
    std::vector<Timed> readings;  // since the last take(), oldest first
  };

  /// Starts the thread; returns at once.
  explicit NvmlThread(std::string library = "libnvidia-ml.so.1");
  /// Waits for the thread a moment; one that hangs in the driver is left to itself.
  ~NvmlThread();
  NvmlThread(const NvmlThread&) = delete;
  NvmlThread& operator=(const NvmlThread&) = delete;

  News take();
  /// Has all devices asked anew, and waits for that, but not for long.
  void ask_now();

 private:
  struct Shared;
  static void look_after(const std::shared_ptr<Shared>& shared, const std::string& library);
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

/// Why no GPU is measured, for people, with what to do.
model::Missing missing_gpu(const fs::Root& root, const Error& error);

std::unique_ptr<Probe> make_nvml_probe(const Scope& scope,
                                       const std::string& library = "libnvidia-ml.so.1");

/// Delivers one look at a GPU.
void deliver_gpu(const GpuReading& gpu, const GpuFacts& facts, TimePoint at, model::Sink& sink);

}  // namespace flatout::probe
