#include "devlimit/measure.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include <atomic>

#include "devlimit/real.h"

namespace flatout::devlimit {

extern "C" {
nvmlReturn nvmlInit_v2(void);
nvmlReturn nvmlDeviceGetHandleByUUID(const char* uuid, Opaque* device);
nvmlReturn nvmlDeviceGetComputeRunningProcesses(Opaque device, unsigned* count,
                                                nvmlProcessInfo* out);
}

namespace {

std::atomic_flag g_busy = ATOMIC_FLAG_INIT;
std::atomic<bool> g_listed{false};  // NVML knows this process by its number

bool open_nvml() {
  static std::atomic<int> state{0};  // 1: open; -1: not there
  int now = state.load(std::memory_order_acquire);
  if (now == 0) {
    // Opening and initialising twice does no harm: both are counted.
    const bool open = ::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr &&
                      FLATOUT_REAL(nvmlInit_v2, nvmlInit_v2) == NVML_SUCCESS;
    now = open ? 1 : -1;
    state.store(now, std::memory_order_release);
  }
  return now == 1;
}

}  // namespace

uint64_t own_bytes(const CUuuid& uuid) {
  if (!open_nvml()) return kUnknown;
  char name[64];
  int n = snprintf(name, sizeof name, "GPU-");
  for (int i = 0; i < 16; ++i)
    n += snprintf(name + n, sizeof name - static_cast<size_t>(n), "%s%02x",
                  i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid.bytes[i]);
  Opaque device = nullptr;
  if (FLATOUT_REAL(nvmlDeviceGetHandleByUUID, nvmlDeviceGetHandleByUUID, name, &device) !=
      NVML_SUCCESS)
    return kUnknown;
  constexpr unsigned kMost = 1024;
  static nvmlProcessInfo list[kMost];
  if (g_busy.test_and_set(std::memory_order_acquire))
    return kUnknown;  // another thread asks right now
  unsigned count = kMost;
  nvmlReturn got = FLATOUT_REAL(nvmlDeviceGetComputeRunningProcesses,
                                nvmlDeviceGetComputeRunningProcesses_v3, device, &count, list);
  if (got == CUDA_ERROR_NOT_FOUND) {
    got = FLATOUT_REAL(nvmlDeviceGetComputeRunningProcesses,
                       nvmlDeviceGetComputeRunningProcesses_v2, device, &count, list);
  }
  uint64_t bytes = got == NVML_SUCCESS && g_listed.load() ? 0 : kUnknown;
  const auto me = static_cast<unsigned>(::getpid());
  for (unsigned i = 0; got == NVML_SUCCESS && i < count && i < kMost; ++i)
    if (list[i].pid == me) bytes = list[i].usedGpuMemory;  // all ones where it is not available
  if (bytes != kUnknown) g_listed.store(true);
  g_busy.clear(std::memory_order_release);
  return bytes;
}

void forget_measurements() {
  g_busy.clear();
  g_listed.store(false);
}

}  // namespace flatout::devlimit
