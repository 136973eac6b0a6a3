// A stand-in for libcuda.so.1 that hands out addresses and counts what lies behind them, as the
// real one does where that matters to a limit: contexts and modules take memory, pools grow by 32
// MiB and keep it, memory from cuMemCreate lives until the last mapping is gone, graphs reserve at
// launch. Work on a stream goes on until somebody waits for it; what cuMemFreeAsync frees outside
// of living pools is there until then. Functions that begin with fake are for tests: devmem's use
// them, too.
#include <dlfcn.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "devlimit/cuda_abi.h"
#include "devlimit/testing/fake_card.h"

using namespace flatout::devlimit;
using fake::card;
using fake::kMiB;

namespace {

constexpr CUresult kNoContext = 201, kInvalidHandle = 400;

struct Context {
  int device = 0;
  size_t heap = 8 * kMiB;
  bool primary = false;
  uint64_t modules = 0;
  Context* parent = nullptr;  // of a green one: the primary, which what it allocates goes with
};
struct Node {
  int type = 0;
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  struct Graph* child = nullptr;
};
struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
};
struct PhysicalState;
struct Stream {
  Context* context = nullptr;
  Graph* capture = nullptr;
  bool spoilt = false;            // the capture: this thread asked what it may not
  uint64_t queued = 0, done = 0;  // pieces of work
};
struct Event {
  Stream* stream = nullptr;
  uint64_t after = 0;
};
struct Mapping {
  PhysicalState* physical = nullptr;
  size_t bytes = 0;
  std::set<int> devices;  // that may use it
};
struct Exec {
  int device = 0;
  uint64_t bytes = 0;
  bool backed = false;
};
struct PoolState {
  int device = 0;
  bool host = false, destroyed = false;
  uint64_t live = 0, reserved = 0;
};
struct PhysicalState {
  int device = 0;
  uint64_t bytes = 0;
  int handles = 0, maps = 0;
  bool imported = false;
};
struct Block {
  int device = 0;
  uint64_t bytes = 0;
  Context* context = nullptr;
  PoolState* pool = nullptr;
  bool foreign = false;
};
struct Array {
  int device = 0;
  uint64_t bytes = 0;
};
struct Deferred {  // freed once the stream has done so much
  Stream* stream = nullptr;
  uint64_t after = 0;
  Block block;
};
struct Opened {
  CUdeviceptr address = 0;
  int times = 0;
};

std::mutex g_lock;
std::map<CUdeviceptr, Block> g_blocks;
std::map<uint64_t, PhysicalState*> g_handles;
std::map<CUdeviceptr, Mapping> g_mappings;
std::map<CUdeviceptr, size_t> g_ranges;
std::vector<Deferred> g_deferred;
std::map<std::pair<Context*, std::string>, Opened> g_opened;  // by the handle
std::atomic<int> g_events{0};
Stream g_null_streams[fake::kCards];
PoolState g_default_pools[fake::kCards] = {{0}, {1}};
PoolState g_host_pool = {0, true};
Context g_primary[fake::kCards];
int g_retained[fake::kCards] = {};
std::set<Exec*> g_execs;
uint64_t g_graph_reserved[fake::kCards] = {};
CUdeviceptr g_next = CUdeviceptr{1} << 40;
uint64_t g_next_handle = 1;
thread_local std::vector<Context*> t_contexts;
thread_local Stream t_stream;  // of the functions for per-thread default streams
thread_local int t_capture_mode = 0;
thread_local std::set<Stream*> t_captures;  // that forbid what is unsafe

Context* current() { return t_contexts.empty() ? nullptr : t_contexts.back(); }

// Under the lock.
Stream* work_of(Opaque stream) {
  constexpr uintptr_t kLastSpecial = 2;
  if (reinterpret_cast<uintptr_t>(stream) > kLastSpecial) return static_cast<Stream*>(stream);
  return &g_null_streams[current() != nullptr ? current()->device : 0];
}

Stream* capture_of(Opaque stream, bool per_thread) {
  const auto number = reinterpret_cast<uintptr_t>(stream);
  if (number == 2 || (number == 0 && per_thread)) return &t_stream;
  return number > 2 ? static_cast<Stream*>(stream) : nullptr;  // the legacy one cannot be captured
}

CUdeviceptr new_address(size_t bytes) {
  const CUdeviceptr out = g_next;
  g_next += (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
  return out;
}

// Under the lock.
CUresult new_block(CUdeviceptr* address, size_t bytes, PoolState* pool = nullptr) {
  Context* const context = current();
  if (context == nullptr) return kNoContext;
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = pool != nullptr ? pool->device : context->device;
  if (pool == nullptr && !card().take(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = new_address(bytes);
  g_blocks[*address] = {device, bytes, context->parent != nullptr ? context->parent : context,
                        pool};
  return CUDA_SUCCESS;
}

CUresult from_pool(CUdeviceptr* address, size_t bytes, PoolState* pool) {
  const std::lock_guard lock(g_lock);
  if (pool->destroyed) return CUDA_ERROR_INVALID_VALUE;
  if (!pool->host && pool->live + bytes > pool->reserved) {
    const uint64_t more =
        (pool->live + bytes - pool->reserved + 32 * kMiB - 1) / (32 * kMiB) * (32 * kMiB);
    if (!card().take(pool->device, more)) return CUDA_ERROR_OUT_OF_MEMORY;
    pool->reserved += more;
  }
  pool->live += bytes;
  return new_block(address, bytes, pool);
}

void trim(PoolState* pool, uint64_t keep) {
  const uint64_t least = (pool->live + 32 * kMiB - 1) / (32 * kMiB) * (32 * kMiB);
  const uint64_t target = std::max(least, keep);
  if (pool->host || target >= pool->reserved) return;
  card().give(pool->device, pool->reserved - target);
  pool->reserved = target;
}

void drop(PhysicalState* physical) {
  if (physical->handles > 0 || physical->maps > 0) return;
  if (!physical->imported) card().give(physical->device, physical->bytes);
  delete physical;
}

uint64_t alloc_bytes(const Graph& graph, int& device) {
  uint64_t bytes = 0;
  for (const auto& node : graph.nodes) {
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      bytes += (node->params.bytesize + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
      device = node->params.poolProps.location.id;
    }
    if (node->child != nullptr) bytes += alloc_bytes(*node->child, device);
  }
  return bytes;
}

CUresult back(Exec* exec) {
  const std::lock_guard lock(g_lock);
  if (exec->backed) return CUDA_SUCCESS;
  if (!card().take(exec->device, exec->bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  g_graph_reserved[exec->device] += exec->bytes;
  exec->backed = true;
  return CUDA_SUCCESS;
}

CUresult new_exec(Opaque* made, Opaque graph) {
  const std::lock_guard lock(g_lock);
  auto* const exec = new Exec;
  exec->bytes = alloc_bytes(*static_cast<Graph*>(graph), exec->device);
  g_execs.insert(exec);
  *made = exec;
  return CUDA_SUCCESS;
}

CUresult load(Opaque* made) {
  const std::lock_guard lock(g_lock);
  Context* const context = current();
  if (context == nullptr) return kNoContext;
  if (!card().take(context->device, fake::kModuleBytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  ++context->modules;
  *made = new Array{context->device, fake::kModuleBytes};
  return CUDA_SUCCESS;
}

CUresult unload(Opaque made) {
  const std::lock_guard lock(g_lock);
  auto* const module = static_cast<Array*>(made);
  card().give(module->device, module->bytes);
  delete module;
  return CUDA_SUCCESS;
}

void give(const Block& block) {
  if (block.pool != nullptr) {
    block.pool->live -= block.bytes;
    if (block.pool->destroyed && block.pool->live == 0) trim(block.pool, 0);
  } else if (!block.foreign) {
    card().give(block.device, block.bytes);
  }
}

// Under the lock: the stream has got so far.
void reach(Stream* stream, uint64_t work) {
  stream->done = std::max(stream->done, work);
  std::erase_if(g_deferred, [&](const Deferred& free) {
    if (free.stream != stream || free.after > stream->done) return false;
    give(free.block);
    return true;
  });
}

void end(Context* context) {
  std::erase_if(g_deferred, [&](const Deferred& free) {
    if (free.block.context != context) return false;
    give(free.block);
    return true;
  });
  for (auto it = g_blocks.begin(); it != g_blocks.end();) {
    const Block& block = it->second;
    if (block.context != context || block.pool != nullptr) {
      ++it;
      continue;
    }
    if (!block.foreign) card().give(block.device, block.bytes);
    it = g_blocks.erase(it);
  }
  card().give(context->device, fake::kContextBytes + context->heap - 8 * kMiB);
}

CUresult new_context(Opaque* made, CUdevice device) {
  const std::lock_guard lock(g_lock);
  if (!card().take(device, fake::kContextBytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* const context = new Context;
  context->device = device;
  *made = context;
  t_contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult free_block(CUdeviceptr address) {
  const std::lock_guard lock(g_lock);
  const auto it = g_blocks.find(address);
  if (it == g_blocks.end()) return CUDA_ERROR_INVALID_VALUE;
  give(it->second);
  g_blocks.erase(it);
  return CUDA_SUCCESS;
}

CUresult free_on(CUdeviceptr address, Opaque stream) {
  {
    const std::lock_guard lock(g_lock);
    Stream* const on = work_of(stream);
    const auto it = g_blocks.find(address);
    if (it == g_blocks.end()) return CUDA_ERROR_INVALID_VALUE;
    const PoolState* const pool = it->second.pool;
    if (on->queued > on->done && (pool == nullptr || pool->destroyed)) {
      g_deferred.push_back({on, on->queued, it->second});
      g_blocks.erase(it);
      return CUDA_SUCCESS;
    }
  }
  return free_block(address);
}

CUresult open_ipc(CUdeviceptr* address, const CUipcMemHandle& handle) {
  const std::lock_guard lock(g_lock);
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = 0;
  memcpy(&bytes, handle.reserved, sizeof bytes);
  Opened& opened = g_opened[{current(), std::string(handle.reserved, sizeof handle.reserved)}];
  if (opened.times++ == 0) {
    opened.address = new_address(bytes);
    g_blocks[opened.address] = {current()->device, bytes, current(), nullptr, true};
  }
  *address = opened.address;
  return CUDA_SUCCESS;
}

CUresult new_array(Opaque* made, uint64_t bytes) {
  const std::lock_guard lock(g_lock);
  Context* const context = current();
  if (context == nullptr) return kNoContext;
  if (!card().take(context->device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *made = new Array{context->device, bytes};
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

// Work is queued on a stream, and has been done.
void fakeLaunch(Opaque stream) {
  const std::lock_guard lock(g_lock);
  ++work_of(stream)->queued;
}
void fakeFinish(Opaque stream) {
  const std::lock_guard lock(g_lock);
  reach(work_of(stream), work_of(stream)->queued);
}
int fakeEvents() { return g_events; }
uint64_t fakeQueued(Opaque stream) {
  const std::lock_guard lock(g_lock);
  return work_of(stream)->queued;
}
uint64_t fakeDone(Opaque stream) {
  const std::lock_guard lock(g_lock);
  return work_of(stream)->done;
}
/// Whether the device may use that memory.
int fakeAccessible(CUdeviceptr address, size_t bytes, int device) {
  const std::lock_guard lock(g_lock);
  if (auto block = g_blocks.upper_bound(address); block != g_blocks.begin()) {
    --block;
    if (address + bytes <= block->first + block->second.bytes)
      return block->second.device == device;
  }
  auto it = g_mappings.upper_bound(address);
  if (it == g_mappings.begin()) return 0;
  --it;
  for (CUdeviceptr at = it->first; at < address + bytes; ++it) {
    if (it == g_mappings.end() || it->first != at || it->second.devices.count(device) == 0)
      return 0;
    at += it->second.bytes;
  }
  return 1;
}
uint64_t fakeUsed(int device) { return card().used[device]; }
/// Another process takes memory, or gives it back.
int fakeTake(int device, uint64_t bytes) { return card().take(device, bytes); }
void fakeGive(int device, uint64_t bytes) { card().give(device, bytes); }

CUresult cuGetErrorName(CUresult error, const char** name) {
  *name =
      error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_STAND_IN";
  return CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  *can = device != peer;
  return CUDA_SUCCESS;
}
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* count) {
  *count = fake::kCards;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < fake::kCards ? CUDA_SUCCESS : 101;
}
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  memset(uuid, 0x10 + device, sizeof *uuid);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = fake::kCapacity;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, int, CUdevice) {
  *value = 32;
  return CUDA_SUCCESS;
}
CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  if (current() == nullptr) return kNoContext;
  *total = fake::kCapacity;
  *free_bytes = fake::kCapacity - card().used[current()->device];
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(Opaque* made, unsigned, CUdevice device) {
  return new_context(made, device);
}
CUresult cuCtxCreate_v4(Opaque* made, void*, unsigned, CUdevice device) {
  return new_context(made, device);
}
CUresult cuCtxDestroy_v2(Opaque context) {
  const std::lock_guard lock(g_lock);
  if (current() == context) t_contexts.pop_back();
  end(static_cast<Context*>(context));
  delete static_cast<Context*>(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(Opaque* context) {
  *context = current();
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(Opaque context) {
  t_contexts.assign(context != nullptr ? 1 : 0, static_cast<Context*>(context));
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(Opaque context) {
  t_contexts.push_back(static_cast<Context*>(context));
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(Opaque* context) {
  *context = current();
  t_contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  if (current() == nullptr) return kNoContext;
  *device = current()->device;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(Opaque* context, CUdevice device) {
  const std::lock_guard lock(g_lock);
  if (g_retained[device] == 0) {
    if (!card().take(device, fake::kContextBytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    g_primary[device] = {device, 8 * kMiB, true};
  }
  ++g_retained[device];
  *context = &g_primary[device];
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  const std::lock_guard lock(g_lock);
  if (g_retained[device] == 0) return kNoContext;
  if (--g_retained[device] == 0) end(&g_primary[device]);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  const std::lock_guard lock(g_lock);
  if (g_retained[device] > 0) end(&g_primary[device]);
  g_retained[device] = 0;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned*, int* active) {
  *active = g_retained[device] > 0;
  return CUDA_SUCCESS;
}
// A green context holds the primary one, and what is allocated in it goes with that.
CUresult cuGreenCtxCreate(Opaque* made, Opaque, CUdevice device, unsigned) {
  Opaque primary = nullptr;
  const CUresult result = cuDevicePrimaryCtxRetain(&primary, device);
  if (result != CUDA_SUCCESS) return result;
  *made = new Context{device, 8 * kMiB, false, 0, static_cast<Context*>(primary)};
  return CUDA_SUCCESS;
}
CUresult cuGreenCtxDestroy(Opaque context) {
  const CUdevice device = static_cast<Context*>(context)->device;
  delete static_cast<Context*>(context);
  return cuDevicePrimaryCtxRelease_v2(device);
}
CUresult cuCtxFromGreenCtx(Opaque* context, Opaque green) {
  *context = green;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetLimit(size_t* value, int limit) {
  if (current() == nullptr) return kNoContext;
  *value = limit == CU_LIMIT_MALLOC_HEAP_SIZE ? current()->heap : 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(int limit, size_t value) {
  const std::lock_guard lock(g_lock);
  Context* const context = current();
  if (context == nullptr) return kNoContext;
  if (limit != CU_LIMIT_MALLOC_HEAP_SIZE) return CUDA_SUCCESS;
  if (value > context->heap && !card().take(context->device, value - context->heap))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (value < context->heap) card().give(context->device, context->heap - value);
  context->heap = value;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  const std::lock_guard lock(g_lock);
  return new_block(address, bytes);
}
CUresult cuMemAlloc(unsigned* address, unsigned bytes) {
  CUdeviceptr wide = 0;
  const CUresult result = cuMemAlloc_v2(&wide, bytes);
  *address = static_cast<unsigned>(wide);
  return result;
}
CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned) {
  const std::lock_guard lock(g_lock);
  return new_block(address, bytes);
}
// By its own exported name: an interposer is called from within.
CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                            unsigned) {
  *pitch = (width + 511) / 512 * 512;
  return cuMemAlloc_v2(address, *pitch * height);
}
CUresult cuMemFree_v2(CUdeviceptr address) { return free_block(address); }
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  const std::lock_guard lock(g_lock);
  const auto it = g_blocks.find(address);
  if (it == g_blocks.end()) return CUDA_ERROR_NOT_FOUND;
  *base = address;
  *bytes = it->second.bytes;
  return CUDA_SUCCESS;
}
CUresult cuArrayCreate_v2(Opaque* made, const CUDA_ARRAY_DESCRIPTOR* d) {
  return new_array(made,
                   (d->Width * 4 * d->NumChannels + 63) / 64 * 64 * ((d->Height + 7) / 8 * 8));
}
CUresult cuArray3DCreate_v2(Opaque* made, const CUDA_ARRAY3D_DESCRIPTOR* d) {
  return new_array(made, (d->Width * 4 * d->NumChannels + 63) / 64 * 64 *
                             ((d->Height + 7) / 8 * 8) * std::max<size_t>(d->Depth, 1));
}
CUresult cuMipmappedArrayCreate(Opaque* made, const CUDA_ARRAY3D_DESCRIPTOR* d, unsigned levels) {
  uint64_t bytes = 0;
  for (unsigned level = 0; level < levels; ++level)
    bytes += (std::max<size_t>(d->Width >> level, 1) * 4 * d->NumChannels + 63) / 64 * 64 *
             ((std::max<size_t>(d->Height >> level, 1) + 7) / 8 * 8);
  return new_array(made, bytes);
}
CUresult cuArrayDestroy(Opaque array) { return unload(array); }
CUresult cuMipmappedArrayDestroy(Opaque array) { return unload(array); }
CUresult cuImportExternalMemory(Opaque* made, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* what) {
  return new_array(made, what->size);
}
CUresult cuDestroyExternalMemory(Opaque memory) { return unload(memory); }
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  const CUresult result = cuMemGetAddressRange_v2(&base, &bytes, address);
  memcpy(handle->reserved, &bytes, sizeof bytes);
  return result;
}
CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned) {
  return open_ipc(address, handle);
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned) {
  return open_ipc(address, handle);
}
CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  {
    const std::lock_guard lock(g_lock);
    const auto it = std::find_if(g_opened.begin(), g_opened.end(), [&](const auto& opened) {
      return opened.second.address == address;
    });
    if (it == g_opened.end()) return CUDA_ERROR_INVALID_VALUE;
    if (--it->second.times > 0) return CUDA_SUCCESS;
    g_opened.erase(it);
  }
  return free_block(address);
}
CUresult cuMemPoolImportPointer(CUdeviceptr* address, Opaque, void* data) {
  const std::lock_guard lock(g_lock);
  if (address == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const size_t bytes = *static_cast<size_t*>(data);
  *address = new_address(bytes);
  g_blocks[*address] = {current()->device, bytes, current(), nullptr, true};
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr,
                             unsigned long long) {
  const std::lock_guard lock(g_lock);
  *address = new_address(bytes);
  g_ranges[*address] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  const std::lock_guard lock(g_lock);
  const auto it = g_ranges.find(address);
  const auto mapping = g_mappings.lower_bound(address);
  if (it == g_ranges.end() || it->second != bytes ||
      (mapping != g_mappings.end() && mapping->first < address + bytes))
    return CUDA_ERROR_INVALID_VALUE;
  g_ranges.erase(it);
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                        size_t count) {
  const std::lock_guard lock(g_lock);
  const CUdeviceptr end = address + bytes;
  for (auto it = g_mappings.find(address); address < end; ++it) {
    if (it == g_mappings.end() || it->first != address) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) it->second.devices.insert(access[i].location.id);
    address += it->second.bytes;
  }
  return address == end ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, int) {
  *bytes = 2 * kMiB;
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* prop, unsigned long long) {
  const std::lock_guard lock(g_lock);
  if (bytes == 0 || bytes % (2 * kMiB) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!card().take(prop->location.id, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  while (g_handles.contains(g_next_handle)) ++g_next_handle;
  *handle = g_next_handle++;
  g_handles[*handle] = new PhysicalState{prop->location.id, bytes, 1, 0};
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(g_lock);
  const auto it = g_handles.find(handle);
  if (it == g_handles.end()) return kInvalidHandle;
  PhysicalState* const physical = it->second;
  --physical->handles;
  // The number is used again at once, as drivers do.
  g_next_handle = handle;
  while (g_handles.contains(g_next_handle) && g_next_handle != handle) ++g_next_handle;
  g_handles.erase(it);
  while (g_handles.contains(g_next_handle)) ++g_next_handle;
  drop(physical);
  return CUDA_SUCCESS;
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const std::lock_guard lock(g_lock);
  for (const auto& [at, mapping] : g_mappings) {
    if (reinterpret_cast<uint64_t>(address) - at >= mapping.bytes) continue;
    ++mapping.physical->handles;
    while (g_handles.contains(g_next_handle)) ++g_next_handle;
    *handle = g_next_handle;
    g_handles[*handle] = mapping.physical;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        int) {
  const std::lock_guard lock(g_lock);
  while (g_handles.contains(g_next_handle)) ++g_next_handle;
  *handle = g_next_handle;
  g_handles[*handle] = new PhysicalState{0, reinterpret_cast<uint64_t>(os_handle), 1, 0, true};
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(g_lock);
  const auto it = g_handles.find(handle);
  if (it == g_handles.end()) return kInvalidHandle;
  *prop = {1, 0, {CU_MEM_LOCATION_TYPE_DEVICE, it->second->device}, nullptr, {}};
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  const std::lock_guard lock(g_lock);
  const auto it = g_handles.find(handle);
  if (it == g_handles.end()) return kInvalidHandle;
  ++it->second->maps;
  g_mappings[address] = {it->second, bytes, {}};
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  const std::lock_guard lock(g_lock);
  auto it = g_mappings.lower_bound(address);
  if (it == g_mappings.end() || it->first != address) return CUDA_ERROR_INVALID_VALUE;
  while (it != g_mappings.end() && it->first < address + bytes) {
    PhysicalState* const physical = it->second.physical;
    --physical->maps;
    it = g_mappings.erase(it);
    drop(physical);
  }
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(Opaque* stream, unsigned) {
  *stream = new Stream{current()};
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(Opaque stream) {
  if (current() == nullptr) return kNoContext;
  fakeFinish(stream);
  return CUDA_SUCCESS;
}
CUresult cuEventCreate(Opaque* event, unsigned) {
  if (current() == nullptr) return kNoContext;
  *event = new Event;
  ++g_events;
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy_v2(Opaque event) {
  --g_events;
  delete static_cast<Event*>(event);
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(Opaque event, Opaque stream) {
  const std::lock_guard lock(g_lock);
  if (current() == nullptr) return kNoContext;
  Stream* const on = work_of(stream);
  *static_cast<Event*>(event) = {on, on->queued};
  return CUDA_SUCCESS;
}
CUresult cuEventRecord_ptsz(Opaque event, Opaque stream) { return cuEventRecord(event, stream); }
CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, t_capture_mode);
  return CUDA_SUCCESS;
}
CUresult cuEventQuery(Opaque event) {
  const std::lock_guard lock(g_lock);
  constexpr int kRelaxed = 2;
  if (t_capture_mode != kRelaxed)
    for (Stream* stream : t_captures) stream->spoilt = true;
  const auto* const e = static_cast<Event*>(event);
  return e->stream == nullptr || e->stream->done >= e->after ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult cuEventSynchronize(Opaque event) {
  const std::lock_guard lock(g_lock);
  const auto* const e = static_cast<Event*>(event);
  if (e->stream != nullptr) reach(e->stream, e->after);
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(Opaque stream, Opaque* context) {
  *context = static_cast<Stream*>(stream)->context;
  return CUDA_SUCCESS;
}
}  // extern "C"

namespace {

CUresult is_capturing(const Stream* stream, int* status) {
  *status = stream != nullptr && stream->capture != nullptr;
  return CUDA_SUCCESS;
}
CUresult begin_capture(Stream* stream, int mode) {
  constexpr int kRelaxed = 2;
  stream->capture = new Graph;
  stream->spoilt = false;
  if (mode != kRelaxed) t_captures.insert(stream);
  return CUDA_SUCCESS;
}
CUresult end_capture(Stream* stream, Opaque* graph) {
  constexpr CUresult kInvalidated = 901;
  t_captures.erase(stream);
  *graph = stream->capture;
  stream->capture = nullptr;
  return stream->spoilt ? kInvalidated : CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuStreamIsCapturing(Opaque stream, int* status) {
  return is_capturing(capture_of(stream, false), status);
}
CUresult cuStreamIsCapturing_ptsz(Opaque stream, int* status) {
  return is_capturing(capture_of(stream, true), status);
}
CUresult cuStreamBeginCapture_v2(Opaque stream, int mode) {
  return begin_capture(capture_of(stream, false), mode);
}
CUresult cuStreamBeginCapture_v2_ptsz(Opaque stream, int mode) {
  return begin_capture(capture_of(stream, true), mode);
}
CUresult cuStreamEndCapture(Opaque stream, Opaque* graph) {
  return end_capture(capture_of(stream, false), graph);
}
CUresult cuStreamEndCapture_ptsz(Opaque stream, Opaque* graph) {
  return end_capture(capture_of(stream, true), graph);
}
CUresult cuMemGetDefaultMemPool(Opaque* pool, CUmemLocation* location, int) {
  *pool =
      location->type == CU_MEM_LOCATION_TYPE_DEVICE ? &g_default_pools[location->id] : &g_host_pool;
  return CUDA_SUCCESS;
}
CUresult cuMemGetMemPool(Opaque* pool, CUmemLocation* location, int type) {
  return cuMemGetDefaultMemPool(pool, location, type);
}
CUresult cuDeviceGetDefaultMemPool(Opaque* pool, CUdevice device) {
  *pool = &g_default_pools[device];
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetMemPool(Opaque* pool, CUdevice device) {
  return cuDeviceGetDefaultMemPool(pool, device);
}
CUresult cuMemPoolCreate(Opaque* pool, const CUmemPoolProps* props) {
  *pool = new PoolState{props->location.id, props->location.type != CU_MEM_LOCATION_TYPE_DEVICE};
  return CUDA_SUCCESS;
}
CUresult cuMemPoolDestroy(Opaque pool) {
  const std::lock_guard lock(g_lock);
  auto* const state = static_cast<PoolState*>(pool);  // kept, so that its number is not used again
  state->destroyed = true;
  trim(state, 0);
  return CUDA_SUCCESS;
}
CUresult cuMemPoolTrimTo(Opaque pool, size_t keep) {
  const std::lock_guard lock(g_lock);
  trim(static_cast<PoolState*>(pool), keep);
  return CUDA_SUCCESS;
}
CUresult cuMemPoolGetAttribute(Opaque pool, int attribute, void* value) {
  const std::lock_guard lock(g_lock);
  if (attribute != CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<uint64_t*>(value) = static_cast<PoolState*>(pool)->reserved;
  return CUDA_SUCCESS;
}
CUresult cuGraphAddMemAllocNode(Opaque* node, Opaque graph, const Opaque*, size_t,
                                CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  const std::lock_guard lock(g_lock);
  auto made = std::make_unique<Node>();
  made->type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  params->dptr = new_address(params->bytesize);
  made->params = *params;
  *node = made.get();
  static_cast<Graph*>(graph)->nodes.push_back(std::move(made));
  return CUDA_SUCCESS;
}
}  // extern "C"

namespace {

CUresult allocate_on(CUdeviceptr* address, size_t bytes, Opaque pool, const Stream* s) {
  if (s != nullptr && s->capture != nullptr) {
    const auto* const state = static_cast<PoolState*>(pool);
    constexpr int kHost = 2;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {};
    params.poolProps.location = {state->host ? kHost : CU_MEM_LOCATION_TYPE_DEVICE, state->device};
    params.bytesize = bytes;
    Opaque node = nullptr;
    const CUresult result = cuGraphAddMemAllocNode(&node, s->capture, nullptr, 0, &params);
    *address = params.dptr;
    return result;
  }
  return from_pool(address, bytes, static_cast<PoolState*>(pool));
}
CUresult allocate_default_on(CUdeviceptr* address, size_t bytes, const Stream* stream) {
  if (current() == nullptr) return kNoContext;
  return allocate_on(address, bytes, &g_default_pools[current()->device], stream);
}

}  // namespace

extern "C" {

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, Opaque pool, Opaque stream) {
  return allocate_on(address, bytes, pool, capture_of(stream, false));
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, Opaque pool,
                                      Opaque stream) {
  return allocate_on(address, bytes, pool, capture_of(stream, true));
}
CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, Opaque stream) {
  return allocate_default_on(address, bytes, capture_of(stream, false));
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, Opaque stream) {
  return allocate_default_on(address, bytes, capture_of(stream, true));
}
CUresult cuMemFreeAsync(CUdeviceptr address, Opaque stream) { return free_on(address, stream); }
CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, Opaque stream) {
  return free_on(address, stream);
}

CUresult cuGraphCreate(Opaque* graph, unsigned) {
  *graph = new Graph;
  return CUDA_SUCCESS;
}
CUresult cuGraphAddChildGraphNode(Opaque* node, Opaque graph, const Opaque*, size_t, Opaque child) {
  auto made = std::make_unique<Node>();
  made->type = CU_GRAPH_NODE_TYPE_GRAPH;
  made->child = static_cast<Graph*>(child);
  *node = made.get();
  static_cast<Graph*>(graph)->nodes.push_back(std::move(made));
  return CUDA_SUCCESS;
}
CUresult cuGraphGetNodes(Opaque graph, Opaque* nodes, size_t* count) {
  const auto& all = static_cast<Graph*>(graph)->nodes;
  for (size_t i = 0; nodes != nullptr && i < *count && i < all.size(); ++i) nodes[i] = all[i].get();
  *count = all.size();
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetType(Opaque node, int* type) {
  *type = static_cast<Node*>(node)->type;
  return CUDA_SUCCESS;
}
CUresult cuGraphChildGraphNodeGetGraph(Opaque node, Opaque* graph) {
  *graph = static_cast<Node*>(node)->child;
  return CUDA_SUCCESS;
}
CUresult cuGraphMemAllocNodeGetParams(Opaque node, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  *params = static_cast<Node*>(node)->params;
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(Opaque* made, Opaque graph, unsigned long long) {
  return new_exec(made, graph);
}
CUresult cuGraphLaunch(Opaque exec, Opaque) { return back(static_cast<Exec*>(exec)); }
CUresult cuGraphUpload(Opaque exec, Opaque) { return back(static_cast<Exec*>(exec)); }
CUresult cuGraphExecDestroy(Opaque exec) {
  const std::lock_guard lock(g_lock);
  g_execs.erase(static_cast<Exec*>(exec));  // what it reserved stays until a trim
  return CUDA_SUCCESS;
}
CUresult cuDeviceGraphMemTrim(CUdevice device) {
  const std::lock_guard lock(g_lock);
  card().give(device, g_graph_reserved[device]);
  g_graph_reserved[device] = 0;
  for (Exec* exec : g_execs)
    if (exec->device == device) exec->backed = false;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int, void* value) {
  const std::lock_guard lock(g_lock);
  *static_cast<uint64_t*>(value) = g_graph_reserved[device];
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(Opaque* made, const void*) { return load(made); }
CUresult cuModuleUnload(Opaque made) { return unload(made); }
CUresult cuLibraryLoadData(Opaque* made, const void*, int*, void**, unsigned, int*, void**,
                           unsigned) {
  return load(made);
}
CUresult cuLibraryUnload(Opaque made) { return unload(made); }

CUresult cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags,
                             int* status) {
  static void* const self = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  *function = nullptr;
  // The newest first, but for the functions whose first version is asked for.
  std::vector<std::string> suffixes = {"_v4", "_v2", ""};
  if (version < 12050) suffixes.erase(suffixes.begin());
  if (version < 3020) suffixes = {""};
  if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0)
    suffixes.insert(suffixes.begin(), "_ptsz");
  // The driver's own table, past any interposed dlsym.
  using Dlsym = void* (*)(void*, const char*);
  static const auto look_up = reinterpret_cast<Dlsym>(::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  for (const std::string& suffix : suffixes) {
    *function = look_up(self, (name + suffix).c_str());
    if (*function != nullptr) break;
  }
  if (status != nullptr) *status = *function == nullptr;
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

}  // extern "C"
