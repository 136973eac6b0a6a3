// A job for tests of the limit across processes, by what its first word says:
//   stress OPERATIONS THREADS JOBS
//       once so many jobs have their context, takes and frees memory in every way; all of it is
//       free at the end
//   hold BYTES
//       takes so much, says "held", and waits to be killed; "refused" if not
//   info
//       what CUDA and NVML say of device 0: "TOTAL FREE NVML_TOTAL NVML_USED"
//   nvml
//       what NVML says of both cards before CUDA is used: "TOTAL_OF_0 TOTAL_OF_1"
//   contexts ROUNDS THREADS
//       threads that retain and release the primary context at once: "MOST LEFT" of what is
//       charged with one context, and with none
//   heap ROUNDS
//       a context's heap of malloc raised and lowered, contexts with one made and ended: "RAISED
//       LOWERED LEFT" of what is charged
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "devlimit/testing/cuda_calls.h"

using namespace flatout::devlimit;
using fake::kMiB;

namespace {

Opaque g_context = nullptr;

void start() {
  if (cuda("cuDevicePrimaryCtxRetain", &g_context, CUdevice{0}) == CUDA_SUCCESS) return;
  puts("refused");
  exit(3);
}

// Something taken, by a number that says how.
struct Held {
  int how;
  uint64_t name;
  size_t bytes;
};

bool take(int how, size_t bytes, Opaque pool, Held& out) {
  const Opaque stream = nullptr;
  CUdeviceptr address = 0;
  Opaque handle = nullptr;
  size_t pitch = 0;
  CUresult result = CUDA_SUCCESS;
  if (how == 0) result = cuda("cuMemAlloc_v2", &address, bytes);
  if (how == 1) result = cuda("cuMemAllocManaged", &address, bytes, 1u);
  if (how == 2)
    result = cuda("cuMemAllocPitch_v2", &address, &pitch, size_t{1000}, bytes / 1024 + 1, 4u);
  if (how == 3) result = cuda("cuMemAllocAsync", &address, bytes, stream);
  if (how == 4) result = cuda("cuMemAllocFromPoolAsync", &address, bytes, pool, stream);
  if (how == 5) {
    const CUDA_ARRAY_DESCRIPTOR d = {1024, bytes / 4096 + 1, 0x20, 1};
    result = cuda("cuArrayCreate_v2", &handle, &d);
  }
  if (how == 6) {  // created, mapped and released: the mapping alone keeps it
    bytes = (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
    const CUmemAllocationProp prop = on_device();
    CUmemGenericAllocationHandle physical = 0;
    result = cuda("cuMemCreate", &physical, bytes, &prop, 0ull);
    if (result == CUDA_SUCCESS) {
      cuda("cuMemAddressReserve", &address, bytes, size_t{0}, CUdeviceptr{0}, 0ull);
      cuda("cuMemMap", address, bytes, size_t{0}, physical, 0ull);
      cuda("cuMemRelease", physical);
    }
  }
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
    fprintf(stderr, "way %d: error %d\n", how, result);
    abort();
  }
  out = {how, how == 5 ? reinterpret_cast<uint64_t>(handle) : address, bytes};
  return result == CUDA_SUCCESS;
}

void release(const Held& held) {
  const Opaque stream = nullptr;
  CUresult result = CUDA_SUCCESS;
  if (held.how <= 2) result = cuda("cuMemFree_v2", held.name);
  if (held.how == 3 || held.how == 4) result = cuda("cuMemFreeAsync", held.name, stream);
  if (held.how == 5) result = cuda("cuArrayDestroy", reinterpret_cast<Opaque>(held.name));
  if (held.how == 6) result = cuda("cuMemUnmap", held.name, held.bytes);
  if (result != CUDA_SUCCESS) abort();
}

void stress_thread(int operations, uint64_t seed, Opaque pool) {
  cuda("cuCtxSetCurrent", g_context);
  std::mt19937_64 random(seed);
  std::vector<Held> held;
  for (int i = 0; i < operations; ++i) {
    if (!held.empty() && random() % 100 < 40) {
      std::swap(held[random() % held.size()], held.back());
      release(held.back());
      held.pop_back();
      continue;
    }
    Held one;
    if (take(static_cast<int>(random() % 7), 1 + random() % (32 * kMiB), pool, one)) {
      held.push_back(one);
    } else {
      ++fake::card().refused;
    }
  }
  for (const Held& one : held) release(one);
}

int stress(int operations, int threads, int jobs) {
  start();
  // A late one could be refused its context by what the others hold, and rightly so.
  for (++fake::card().ready; fake::card().ready < jobs;) ::usleep(1000);
  cuda("cuCtxSetCurrent", g_context);
  const CUmemPoolProps props = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
  Opaque pool = nullptr, default_pool = nullptr;
  cuda("cuMemPoolCreate", &pool, &props);
  std::vector<std::thread> all;
  all.reserve(static_cast<size_t>(threads));
  for (int t = 0; t < threads; ++t)
    all.emplace_back(stress_thread, operations,
                     static_cast<uint64_t>(::getpid()) * 100 + static_cast<uint64_t>(t), pool);
  for (std::thread& thread : all) thread.join();
  cuda("cuMemPoolDestroy", pool);
  cuda("cuDeviceGetDefaultMemPool", &default_pool, CUdevice{0});
  cuda("cuMemPoolTrimTo", default_pool, size_t{0});
  cuda("cuDevicePrimaryCtxRelease_v2", CUdevice{0});
  return 0;
}

int hold(size_t bytes) {
  start();
  cuda("cuCtxSetCurrent", g_context);
  CUdeviceptr address = 0;
  const CUresult result = cuda("cuMemAlloc_v2", &address, bytes);
  puts(result == CUDA_SUCCESS ? "held" : "refused");
  fflush(stdout);
  if (result != CUDA_SUCCESS) return 3;
  while (true) ::pause();
}

nvmlMemory nvml_of(unsigned card) {
  Opaque device = nullptr;
  nvmlMemory memory = {};
  call_in(nvml_library(), "nvmlDeviceGetHandleByIndex_v2", card, &device);
  call_in(nvml_library(), "nvmlDeviceGetMemoryInfo", device, &memory);
  return memory;
}

// Charged for device 0, as NVML is made to say.
unsigned long long charged() { return nvml_of(0).used; }

int nvml() {
  printf("%llu %llu\n", nvml_of(0).total, nvml_of(1).total);
  return 0;
}

int contexts(int rounds, int threads) {
  unsigned long long most = 0;
  std::barrier made(threads, [&]() noexcept { most = std::max(most, charged()); });
  const auto work = [&] {
    for (int round = 0; round < rounds; ++round) {
      Opaque context = nullptr;
      if (cuda("cuDevicePrimaryCtxRetain", &context, CUdevice{0}) != CUDA_SUCCESS) abort();
      made.arrive_and_wait();
      if (cuda("cuDevicePrimaryCtxRelease_v2", CUdevice{0}) != CUDA_SUCCESS) abort();
    }
  };
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) all.emplace_back(work);
  for (std::thread& thread : all) thread.join();
  printf("%llu %llu\n", most, charged());
  return 0;
}

int heap(int rounds) {
  start();
  cuda("cuCtxSetCurrent", g_context);
  size_t before = 0;
  constexpr int kHeap = CU_LIMIT_MALLOC_HEAP_SIZE;
  cuda("cuCtxGetLimit", &before, int{kHeap});
  unsigned long long raised = 0, lowered = 0;
  for (int round = 0; round < rounds; ++round) {
    cuda("cuCtxSetLimit", int{kHeap}, before + 100 * kMiB);
    raised = charged();
    cuda("cuCtxSetLimit", int{kHeap}, before);
    lowered = charged();
    Opaque other = nullptr;
    cuda("cuCtxCreate_v2", &other, 0u, CUdevice{0});
    cuda("cuCtxSetLimit", int{kHeap}, before + 100 * kMiB);
    cuda("cuCtxDestroy_v2", other);
    cuda("cuCtxSetCurrent", g_context);
  }
  cuda("cuCtxSetLimit", int{kHeap}, before + 100 * kMiB);
  cuda("cuDevicePrimaryCtxRelease_v2", CUdevice{0});
  printf("%llu %llu %llu\n", raised, lowered, charged());
  return 0;
}

int info() {
  start();
  cuda("cuCtxSetCurrent", g_context);
  size_t free_bytes = 0, total = 0;
  cuda("cuMemGetInfo_v2", &free_bytes, &total);
  const nvmlMemory memory = nvml_of(0);
  printf("%zu %zu %llu %llu\n", total, free_bytes, memory.total, memory.used);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (cuda_library() == nullptr) return 4;
  if (what == "stress" && argc == 5) return stress(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
  if (what == "hold" && argc == 3) return hold(strtoull(argv[2], nullptr, 10));
  if (what == "contexts" && argc == 4) return contexts(atoi(argv[2]), atoi(argv[3]));
  if (what == "heap" && argc == 3) return heap(atoi(argv[2]));
  if (what == "nvml") return nvml();
  return what == "info" ? info() : 2;
}
