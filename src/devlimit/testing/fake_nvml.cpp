// A stand-in for libnvidia-ml.so.1 over the same card as fake_cuda.cpp.
#include <stdio.h>
#include <string.h>

#include <atomic>

#include "devlimit/cuda_abi.h"
#include "devlimit/testing/fake_card.h"

using namespace flatout::devlimit;

namespace {

using Listing = void (*)(int);
std::atomic<Listing> g_listing{nullptr};

int number(Opaque device) { return static_cast<int>(reinterpret_cast<intptr_t>(device)) - 1; }

void name_of(int card, char* out, size_t size) {
  int n = snprintf(out, size, ::getenv("FAKE_MIG") != nullptr ? "MIG-" : "GPU-");
  for (int i = 0; i < 16; ++i)
    n += snprintf(out + n, size - static_cast<size_t>(n), "%s%02x",
                  i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", 0x10 + card);
}

}  // namespace

extern "C" {

nvmlReturn nvmlInit_v2() { return NVML_SUCCESS; }
nvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned index, Opaque* device) {
  *device = reinterpret_cast<Opaque>(static_cast<intptr_t>(index) + 1);
  return NVML_SUCCESS;
}
nvmlReturn nvmlDeviceGetIndex(Opaque device, unsigned* index) {
  *index = static_cast<unsigned>(number(device));
  return NVML_SUCCESS;
}
nvmlReturn nvmlDeviceGetUUID(Opaque device, char* uuid, unsigned size) {
  name_of(number(device), uuid, size);
  return NVML_SUCCESS;
}
nvmlReturn nvmlDeviceGetHandleByUUID(const char* uuid, Opaque* device) {
  for (unsigned i = 0; i < fake::kCards; ++i) {
    char name[96];
    name_of(static_cast<int>(i), name, sizeof name);
    if (strcmp(name, uuid) == 0) return nvmlDeviceGetHandleByIndex_v2(i, device);
  }
  return NVML_ERROR_NOT_FOUND;
}
// What PyTorch looks up when memory runs out.
nvmlReturn nvmlDeviceGetHandleByPciBusId_v2(const char*, Opaque* device) {
  return nvmlDeviceGetHandleByIndex_v2(0, device);
}
nvmlReturn nvmlDeviceGetComputeRunningProcesses(Opaque, unsigned* count, void*) {
  *count = 0;
  return NVML_SUCCESS;
}
nvmlReturn nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return NVML_SUCCESS;
}
nvmlReturn nvmlDeviceGetGpuFabricInfoV(Opaque, void*) { return NVML_SUCCESS; }
nvmlReturn nvmlDeviceGetNvLinkRemotePciInfo_v2(Opaque, unsigned, void*) { return NVML_SUCCESS; }
nvmlReturn nvmlDeviceGetNvLinkRemoteDeviceType(Opaque, unsigned, unsigned* type) {
  constexpr unsigned kUnknown = 255;
  *type = kUnknown;
  return NVML_SUCCESS;
}
nvmlReturn nvmlDeviceGetMemoryInfo(Opaque device, nvmlMemory* out) {
  const uint64_t used = fake::card().used[number(device)];
  *out = {fake::kCapacity, fake::kCapacity - used, used};
  return NVML_SUCCESS;
}
nvmlReturn nvmlDeviceGetMemoryInfo_v2(Opaque device, nvmlMemory_v2* out) {
  const uint64_t used = fake::card().used[number(device)];
  *out = {out->version, fake::kCapacity, 0, fake::kCapacity - used, used};
  return NVML_SUCCESS;
}
nvmlReturn nvmlDeviceGetComputeRunningProcesses_v3(Opaque device, unsigned* count,
                                                   nvmlProcessInfo* out) {
  if (::getenv("FAKE_NO_PROCESSES") != nullptr) {  // as in a container
    *count = 0;
    return NVML_SUCCESS;
  }
  // A process without a context is not listed.
  unsigned n = 0;
  const Listing listing = g_listing;
  if (listing != nullptr) listing(0);
  for (const fake::Process& p : fake::card().processes)
    if (p.pid != 0 && p.used[number(device)] > 0 && n < *count)
      out[n++] = {static_cast<unsigned>(p.pid), p.used[number(device)], 0, 0};
  if (listing != nullptr) listing(1);
  *count = n;
  return NVML_SUCCESS;
}
/// Called before the processes are listed, with 0, and behind that, with 1.
void fakeListing(Listing listing) { g_listing = listing; }

}  // extern "C"
