// Drives PyTorch's own CUDA caching allocator (libc10_cuda) without a card: the CUDA runtime and
// the driver entry points it asks for are defined here; they hand out addresses and count bytes, as
// devmem's SimDriver does. usage: torch_oracle CAPACITY SETTINGS FRACTION [PASSES] < ops > outcomes
//   ops: "a ID SIZE STREAM" or "f ID" a line; outcomes: the offset of each "a", or x; then "peak
//   BYTES" and "calls N". With PASSES it times instead, as passes.h says.
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>

#include "passes.h"

namespace {

constexpr uint64_t kPage = uint64_t{2} << 20, kBase = uint64_t{1} << 40;
uint64_t capacity, used, peak, calls, next_address = kBase;
std::map<uint64_t, uint64_t> allocations;
std::unordered_map<uint64_t, uint64_t> handles;
uint64_t last_handle;

bool take(uint64_t size) {
  if (size > capacity - used) return false;
  used += size;
  if (used > peak) peak = used;
  return true;
}
uint64_t address(uint64_t size) {
  const uint64_t at = next_address;
  next_address += (size + kPage - 1) / kPage * kPage;
  return at;
}

CUresult device_get(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult reserve(CUdeviceptr* at, size_t size, size_t, CUdeviceptr, unsigned long long) {
  ++calls;
  *at = address(size);
  return CUDA_SUCCESS;
}
CUresult unreserve(CUdeviceptr, size_t) {
  ++calls;
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp*,
                unsigned long long) {
  ++calls;
  if (!take(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  handles[*handle = ++last_handle] = size;
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  ++calls;
  used -= handles.at(handle);
  handles.erase(handle);
  return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
  ++calls;
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr, size_t) {
  ++calls;
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  ++calls;
  return CUDA_SUCCESS;
}
CUresult granularity(size_t* size, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *size = kPage;
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char** text) {
  *text = "stand-in";
  return CUDA_SUCCESS;
}
CUresult nothing() { return CUDA_SUCCESS; }

}  // namespace

extern "C" {
cudaError_t cudaMalloc(void** at, size_t size) {
  ++calls;
  if (!take(size)) return cudaErrorMemoryAllocation;
  const uint64_t a = address(size);
  allocations[a] = size;
  *at = reinterpret_cast<void*>(a);
  return cudaSuccess;
}
cudaError_t cudaFree(void* at) {
  if (!at) return cudaSuccess;
  ++calls;
  const auto it = allocations.find(reinterpret_cast<uint64_t>(at));
  used -= it->second;
  allocations.erase(it);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = capacity - used;
  *total = capacity;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  memset(p, 0, sizeof *p);
  p->totalGlobalMem = capacity;
  p->major = 9;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* n) {
  *n = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* d) {
  *d = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "stand-in"; }
const char* cudaGetErrorName(cudaError_t) { return "stand-in"; }
cudaError_t cudaDriverGetVersion(int* v) {
  *v = 13000;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) {
  *s = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) {
  *s = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** fn, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  static const std::unordered_map<std::string, void*> known = {
      {"cuDeviceGet", reinterpret_cast<void*>(device_get)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(attribute)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(unreserve)},
      {"cuMemCreate", reinterpret_cast<void*>(create)},
      {"cuMemRelease", reinterpret_cast<void*>(release)},
      {"cuMemMap", reinterpret_cast<void*>(map)},
      {"cuMemUnmap", reinterpret_cast<void*>(unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(set_access)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(granularity)},
      {"cuGetErrorString", reinterpret_cast<void*>(error_string)}};
  const auto it = known.find(name);
  *fn = it == known.end() ? reinterpret_cast<void*>(nothing) : it->second;
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
}  // extern "C"

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) return 2;
  capacity = strtoull(argv[1], nullptr, 10);
  if (*argv[2]) c10::CachingAllocator::setAllocatorSettings(argv[2]);
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  allocator->init(1);
  c10::cuda::detail::init_p2p_access_cache(1);
  if (const double fraction = atof(argv[3]); fraction > 0)
    allocator->setMemoryFraction(fraction, 0);
  if (argc == 5) {
    const int code = passes::run(
        atoi(argv[4]),
        [&](uint64_t bytes, uint64_t on) {
          return allocator->raw_alloc_with_stream(bytes, reinterpret_cast<cudaStream_t>(on));
        },
        [&](void* at) { allocator->raw_delete(at); }, [] { return calls; });
    fflush(stdout);
    _exit(code);
  }
  std::unordered_map<unsigned long long, void*> live;
  char kind;
  unsigned long long id, size, stream;
  while (scanf(" %c %llu", &kind, &id) == 2) {
    if (kind == 'f') {
      const auto it = live.find(id);
      if (it == live.end()) continue;
      allocator->raw_delete(it->second);
      live.erase(it);
      continue;
    }
    if (scanf("%llu %llu", &size, &stream) != 2) return 1;
    try {
      void* at = allocator->raw_alloc_with_stream(size, reinterpret_cast<cudaStream_t>(stream));
      live[id] = at;
      printf("%llu\n",
             reinterpret_cast<unsigned long long>(at) - static_cast<unsigned long long>(kBase));
    } catch (const c10::OutOfMemoryError&) {
      puts("x");
    }
  }
  printf("peak %llu\ncalls %llu\n", static_cast<unsigned long long>(peak),
         static_cast<unsigned long long>(calls));
  fflush(stdout);
  _exit(0);
}
