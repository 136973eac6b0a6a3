/* A stand-in for libnvidia-ml.so.1, for machines without a GPU: answers from a script, the file
 * that $NVML_STAND_IN names. Lines "KEY VALUE" for the system and "INDEX KEY VALUE" for a device; a
 * key that the script lacks is "not supported". The script is read anew at each question, so a test
 * can change it. Keys: devices, driver, cuda, init (a return code); name, uuid, capability ("8.6"),
 * util, mem_util, mem_total, mem_used, clock_sm, clock_mem, clock_sm_max (MHz), power, power_limit
 * (mW), temperature, throttle, pcie_tx, pcie_rx (KB/s), ecc, error (a return code for every
 * question), process_N "PID BYTES" (BYTES -1: not available). A device with "mig 1" is divided: its
 * instances are the devices 100 + 10 * INDEX and on, each with gpu_instance, compute_instance and
 * what else it shall tell. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "probe/testing/stand_in_script.h"

enum {
  kOk = 0,
  kInvalid = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficient = 7,
  kNoDriver = 9,
  kLost = 15
};

#define API __attribute__((visibility("default")))

static int look_up(int index, const char* key, char* out, size_t size) {
  return script_value("NVML_STAND_IN", index, key, out, size);
}

static int number(int index, const char* key, unsigned long long* out) {
  char text[64];
  if (index >= 0 && look_up(index, "error", text, sizeof text)) return atoi(text);
  if (!look_up(index, key, text, sizeof text)) return kNotSupported;
  *out = (unsigned long long)strtoll(text, NULL, 10);
  return kOk;
}

static int small(void* device, const char* key, unsigned* out) {
  unsigned long long value = 0;
  const int code = number((int)(size_t)device - 1, key, &value);
  if (code == kOk) *out = (unsigned)value;
  return code;
}

static int text_of(int index, const char* key, char* out, unsigned size) {
  return look_up(index, key, out, size) ? kOk : kNotSupported;
}

API int nvmlInit_v2(void) {
  unsigned long long code = kOk;
  if (getenv("NVML_STAND_IN") == NULL) return kNoDriver;
  return number(-1, "init", &code) == kOk ? (int)code : kOk;
}
API int nvmlShutdown(void) { return kOk; }
API const char* nvmlErrorString(int code) {
  return code == kLost ? "GPU is lost" : code == kNoDriver ? "Driver Not Loaded" : "Stand-in error";
}
API int nvmlDeviceGetCount_v2(unsigned* count) {
  unsigned long long value = 0;
  number(-1, "devices", &value);
  *count = (unsigned)value;
  return kOk;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = (void*)(size_t)(index + 1);
  return kOk;
}
API int nvmlSystemGetDriverVersion(char* out, unsigned size) {
  return text_of(-1, "driver", out, size);
}
API int nvmlSystemGetCudaDriverVersion(int* out) {
  unsigned long long value = 0;
  const int code = number(-1, "cuda", &value);
  *out = (int)value;
  return code;
}
API int nvmlDeviceGetName(void* device, char* out, unsigned size) {
  return text_of((int)(size_t)device - 1, "name", out, size);
}
API int nvmlDeviceGetUUID(void* device, char* out, unsigned size) {
  return text_of((int)(size_t)device - 1, "uuid", out, size);
}
API int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  char text[64];
  if (!look_up((int)(size_t)device - 1, "capability", text, sizeof text)) return kNotSupported;
  return sscanf(text, "%d.%d", major, minor) == 2 ? kOk : kInvalid;
}
API int nvmlDeviceGetUtilizationRates(void* device, unsigned* out) {
  const int code = small(device, "util", &out[0]);
  return code == kOk ? small(device, "mem_util", &out[1]) : code;
}
API int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* out) {
  const int index = (int)(size_t)device - 1;
  const int code = number(index, "mem_total", &out[0]);
  if (code != kOk) return code;
  number(index, "mem_used", &out[2]);
  out[1] = out[0] - out[2];
  return kOk;
}
API int nvmlDeviceGetClockInfo(void* device, unsigned type, unsigned* out) {
  return type == 1 ? small(device, "clock_sm", out) : small(device, "clock_mem", out);
}
API int nvmlDeviceGetMaxClockInfo(void* device, unsigned type, unsigned* out) {
  return type == 1 ? small(device, "clock_sm_max", out) : kNotSupported;
}
API int nvmlDeviceGetPowerUsage(void* device, unsigned* out) { return small(device, "power", out); }
API int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* out) {
  return small(device, "power_limit", out);
}
API int nvmlDeviceGetTemperature(void* device, unsigned sensor, unsigned* out) {
  return sensor == 0 ? small(device, "temperature", out) : kInvalid;
}
API int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* out) {
  return number((int)(size_t)device - 1, "throttle", out);
}
API int nvmlDeviceGetPcieThroughput(void* device, unsigned counter, unsigned* out) {
  return small(device, counter == 0 ? "pcie_tx" : "pcie_rx", out);
}
API int nvmlDeviceGetTotalEccErrors(void* device, unsigned type, unsigned counter,
                                    unsigned long long* out) {
  return type == 1 && counter == 0 ? number((int)(size_t)device - 1, "ecc", out) : kNotSupported;
}

API int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  const int code = small(device, "mig", current);
  if (code == kOk) *pending = *current;
  return code;
}
API int nvmlDeviceGetMaxMigDeviceCount(void* device, unsigned* count) {
  (void)device;
  *count = 7;
  return kOk;
}
API int nvmlDeviceGetMigDeviceHandleByIndex(void* device, unsigned index, void** out) {
  const int part = 100 + 10 * ((int)(size_t)device - 1) + (int)index;
  char text[64];
  if (!look_up(part, "gpu_instance", text, sizeof text)) return kNotFound;
  *out = (void*)(size_t)(part + 1);
  return kOk;
}
API int nvmlDeviceGetGpuInstanceId(void* device, unsigned* out) {
  return small(device, "gpu_instance", out);
}
API int nvmlDeviceGetComputeInstanceId(void* device, unsigned* out) {
  return small(device, "compute_instance", out);
}

struct process {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};
API int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count,
                                                struct process* out) {
  const int index = (int)(size_t)device - 1;
  char key[32], text[64];
  if (look_up(index, "error", text, sizeof text)) return atoi(text);
  unsigned have = 0;
  for (;; ++have) {
    snprintf(key, sizeof key, "process_%u", have);
    if (!look_up(index, key, text, sizeof text)) break;
    if (have >= *count) continue;
    long long bytes = 0;
    unsigned pid = 0;
    sscanf(text, "%u %lld", &pid, &bytes);
    out[have].pid = pid;
    out[have].memory = (unsigned long long)bytes;
    out[have].gpu_instance = out[have].compute_instance = 0xFFFFFFFF;
    small(device, "gpu_instance", &out[have].gpu_instance);
    small(device, "compute_instance", &out[have].compute_instance);
  }
  const int code = have > *count ? kInsufficient : kOk;
  *count = have;
  return code;
}
