// A stand-in for libcuda.so.1 that hands out addresses and counts what lies behind them, as the
// real one does where that matters to a limit: contexts and modules take memory, pools grow by 32
// MiB and keep it, memory from cuMemCreate lives until the last mapping is gone, graphs reserve at
// launch. Work on a stream goes on until somebody waits for it; what cuMemFreeAsync frees outside
// of living pools is there until then. Functions that begin with fake are for tests: devmem's use
// them, too.
#include <dlfcn.h>
#include <string.h>

#include <string>
#include <vector>

#include "devlimit/testing/fake_state.h"

using namespace fake;

namespace {

void drop(PhysicalState* physical) {
  if (physical->handles > 0 || physical->maps > 0) return;
  if (!physical->imported) card().give(physical->device, physical->bytes);
  delete physical;
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
