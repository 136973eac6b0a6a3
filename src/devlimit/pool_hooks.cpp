// cuMemAllocAsync and pools. A pool grows by more than was asked for and keeps what was freed, so
// what is charged follows what the driver says is reserved, and before each request the most by
// which the pool could grow for it.
#include "devlimit/async_free.h"
#include "devlimit/charged_call.h"
#include "devlimit/export.h"
#include "devlimit/pools.h"

namespace flatout::devlimit {

extern "C" {
CUresult cuMemPoolGetAttribute(Opaque pool, int attribute, void* value);
CUresult cuDeviceGetMemPool(Opaque* pool, CUdevice device);
CUresult cuMemGetMemPool(Opaque* pool, const CUmemLocation* location, int type);
CUresult cuStreamIsCapturing(Opaque stream, int* status);
CUresult cuMemPoolTrimTo(Opaque pool, size_t keep);
CUresult cuMemFreeAsync(CUdeviceptr address, Opaque stream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, Opaque stream);
}

namespace {

constexpr uint64_t kPoolGrain = uint64_t{32} << 20;  // by which pools grow: on an H200, too

// Under Locked. nullptr: too many pools.
Pool* pool_of(Opaque handle, int row) {
  Pool* unused = nullptr;
  for (Pool& pool : books().pools) {
    if (pool.handle == key(handle) && !pool.destroyed) return &pool;
    if (pool.handle == 0 && unused == nullptr) unused = &pool;
  }
  if (unused != nullptr) {
    *unused = {};
    unused->handle = key(handle);
    unused->device = row;
  }
  return unused;
}

Pool* known_pool(Opaque handle) {
  for (Pool& pool : books().pools)
    if (pool.handle == key(handle) && !pool.destroyed) return &pool;
  return nullptr;
}

// Under Locked: what is charged comes to what the pool holds. False: it holds more, and there is no
// room for that.
bool true_up(Pool& pool) {
  uint64_t reserved = 0;
  if (pool.destroyed) {
    reserved = pool.live > 0 ? pool.charged : 0;  // all of it goes with the last block
  } else if (FLATOUT_REAL(cuMemPoolGetAttribute, cuMemPoolGetAttribute,
                          reinterpret_cast<Opaque>(pool.handle),
                          CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) != CUDA_SUCCESS) {
    return true;
  }
  const uint64_t held = reserved > pool.live ? reserved : pool.live;
  bool ok = true;
  if (held > pool.charged) {
    ok = ledger()->charge(pool.device, held - pool.charged);
    if (!ok) ledger()->charge_anyway(pool.device, held - pool.charged);
    pool.charged = held;
  } else if (pool.charged > held + pool.growing) {
    give_back(pool.device, pool.charged - held - pool.growing);
    pool.charged = held + pool.growing;
  }
  if (pool.destroyed && pool.live == 0 && pool.requests == 0) pool = {};
  return ok;
}

template <class Call, class Undo>
CUresult take_pooled(Opaque handle, int row, CUdeviceptr* address, uint64_t bytes, Call call,
                     Undo undo) {
  Pool* pool = nullptr;
  // What the pool has idle may lie in pieces, of which none holds the block.
  const uint64_t growth =
      bytes > UINT64_MAX - kPoolGrain ? bytes : (bytes + kPoolGrain - 1) / kPoolGrain * kPoolGrain;
  {
    const Locked lock;
    pool = pool_of(handle, row);
    if (pool == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    row = pool->device;
    ++pool->requests;
  }
  if (!charge(row, growth)) {
    const Locked lock;
    --pool->requests;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  {
    const Locked lock;
    pool->charged += growth;
    pool->growing += growth;
  }
  const CUresult result = call();
  bool fits = true;
  {
    const Locked lock;
    --pool->requests;
    pool->growing -= growth;
    if (result == CUDA_SUCCESS) pool->live += bytes;
    fits = true_up(*pool);
    if (result == CUDA_SUCCESS && fits) {
      ++pool->blocks;
      books().table.put({*address, Kind::kPooled, row, bytes, pool});
    } else if (result == CUDA_SUCCESS) {
      pool->live -= bytes;
    }
  }
  if (result != CUDA_SUCCESS || fits) return result;
  undo();
  relieve(row);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// A stream as the caller means it: 0 is the thread's own for the functions of that kind.
struct Stream {
  Opaque handle;
  bool per_thread;
};

bool capturing(Stream stream) {
  int status = 0;
  const CUresult result =
      stream.per_thread
          ? FLATOUT_REAL(cuStreamIsCapturing, cuStreamIsCapturing_ptsz, stream.handle, &status)
          : FLATOUT_REAL(cuStreamIsCapturing, cuStreamIsCapturing, stream.handle, &status);
  return result == CUDA_SUCCESS && status != 0;
}

// What is captured becomes a node of a graph, which is charged when the graph is made to run.
template <class Call, class Undo>
CUresult allocate_async(CUdeviceptr* address, uint64_t bytes, Stream stream, Call call, Undo undo) {
  const int row = capturing(stream) ? -1 : row_of_stream(stream.handle);
  Opaque pool = nullptr;
  if (row < 0 ||
      FLATOUT_REAL(cuDeviceGetMemPool, cuDeviceGetMemPool, &pool, ordinal_of(row)) != CUDA_SUCCESS)
    return call();
  return take_pooled(pool, row, address, bytes, call, undo);
}

// A pool may be of another device than the stream, or of the host. Where it is was remembered when
// the program got its handle; the stream's device is for pools of no place.
template <class Call, class Undo>
CUresult allocate_from_pool(CUdeviceptr* address, uint64_t bytes, Opaque pool, Stream stream,
                            Call call, Undo undo) {
  if (capturing(stream)) return call();
  int row = -1;
  {
    const Locked lock;
    if (const Pool* const known = known_pool(pool)) row = known->device;
    if (row == kMostDevices) return call();  // of the host
  }
  if (row < 0) row = row_of_stream(stream.handle);
  return row < 0 ? call() : take_pooled(pool, row, address, bytes, call, undo);
}

void remember_pool(Opaque pool, const CUmemLocation& location, int type) {
  constexpr int kNoPlace = 0, kManaged = 2;
  int row = kMostDevices;
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    row = row_of(location.id);
  } else if (location.type == kNoPlace || type == kManaged) {
    row = row_of_current();  // wherever its pages are
  }
  const Locked lock;
  if (row >= 0) pool_of(pool, row);
}

bool is_destroyed(const Pool& pool) {
  const Locked lock;
  return pool.destroyed;
}

// A pool keeps what is freed, so what it is charged with does not change. All else has gone only
// when the stream gets there.
template <class Call>
CUresult free_async(CUdeviceptr address, Stream stream, Call call) {
  const Pooled block = forget_pooled(address);
  const Entry entry = block.pool != nullptr ? block.entry : forget(Kind::kMemory, address);
  const CUresult result = call();
  if (entry.kind == Kind::kNone) return result;
  const bool freed = result == CUDA_SUCCESS;
  if (freed && entry.bytes > 0 && (block.pool == nullptr || is_destroyed(*block.pool))) {
    PendingFree what;
    what.memory = {entry.object, entry.device};
    what.bytes = entry.bytes;
    what.pool = block.pool;
    if (begin_free(what, stream.handle, stream.per_thread)) return result;
  }
  if (block.pool != nullptr) {
    end_free(block, freed);
  } else if (freed) {
    give_back(entry.device, entry.bytes);
  } else {
    remember(entry);
  }
  return result;
}

template <class Call>
CUresult get_pool(Opaque* pool, const CUmemLocation& location, int type, Call call) {
  const Outermost outermost;
  const CUresult result = call();
  if (outermost && result == CUDA_SUCCESS) remember_pool(*pool, location, type);
  return result;
}

}  // namespace

Pooled forget_pooled(CUdeviceptr address) {
  const Locked lock;
  const Entry entry = books().table.take(Kind::kPooled, address);
  if (entry.kind == Kind::kNone) return {};
  return {static_cast<Pool*>(entry.object), entry};
}

void end_free(const Pooled& block, bool freed) {
  const Locked lock;
  if (!freed) {
    books().table.put(block.entry);
    return;
  }
  drop_block(*block.pool, block.entry.bytes);
}

void drop_block(Pool& pool, uint64_t bytes) {
  pool.live -= bytes;
  --pool.blocks;
  true_up(pool);
}

void trim_pools(int row) {
  for (Pool& pool : books().pools) {
    Opaque handle = nullptr;
    {
      const Locked lock;
      if (pool.handle == 0 || pool.destroyed || pool.device != row) continue;
      handle = reinterpret_cast<Opaque>(pool.handle);
    }
    FLATOUT_REAL(cuMemPoolTrimTo, cuMemPoolTrimTo, handle, 0);
    const Locked lock;
    if (pool.handle == key(handle) && !pool.destroyed) true_up(pool);
  }
}

extern "C" {

FLATOUT_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, Opaque stream) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuMemAllocAsync, cuMemAllocAsync, address, bytes, stream);
  };
  const auto undo = [&] { FLATOUT_REAL(cuMemFreeAsync, cuMemFreeAsync, *address, stream); };
  return outermost ? allocate_async(address, bytes, {stream, false}, call, undo) : call();
}

FLATOUT_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, Opaque stream) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuMemAllocAsync_ptsz, cuMemAllocAsync_ptsz, address, bytes, stream);
  };
  const auto undo = [&] {
    FLATOUT_REAL(cuMemFreeAsync_ptsz, cuMemFreeAsync_ptsz, *address, stream);
  };
  return outermost ? allocate_async(address, bytes, {stream, true}, call, undo) : call();
}

FLATOUT_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, Opaque pool,
                                                Opaque stream) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, address, bytes, pool,
                        stream);
  };
  const auto undo = [&] { FLATOUT_REAL(cuMemFreeAsync, cuMemFreeAsync, *address, stream); };
  return outermost ? allocate_from_pool(address, bytes, pool, {stream, false}, call, undo) : call();
}

FLATOUT_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes,
                                                     Opaque pool, Opaque stream) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync_ptsz, address, bytes,
                        pool, stream);
  };
  const auto undo = [&] {
    FLATOUT_REAL(cuMemFreeAsync_ptsz, cuMemFreeAsync_ptsz, *address, stream);
  };
  return outermost ? allocate_from_pool(address, bytes, pool, {stream, true}, call, undo) : call();
}

FLATOUT_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, Opaque stream) {
  const Outermost outermost;
  const auto call = [&] { return FLATOUT_REAL(cuMemFreeAsync, cuMemFreeAsync, address, stream); };
  return outermost ? free_async(address, {stream, false}, call) : call();
}

FLATOUT_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, Opaque stream) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuMemFreeAsync_ptsz, cuMemFreeAsync_ptsz, address, stream);
  };
  return outermost ? free_async(address, {stream, true}, call) : call();
}

FLATOUT_EXPORT CUresult cuMemPoolCreate(Opaque* pool, const CUmemPoolProps* properties) {
  const Outermost outermost;
  const CUresult result = FLATOUT_REAL(cuMemPoolCreate, cuMemPoolCreate, pool, properties);
  if (!outermost || result != CUDA_SUCCESS || properties == nullptr) return result;
  remember_pool(*pool, properties->location, properties->allocType);
  return result;
}

FLATOUT_EXPORT CUresult cuDeviceGetDefaultMemPool(Opaque* pool, CUdevice device) {
  return get_pool(pool, {CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ALLOCATION_TYPE_PINNED, [&] {
    return FLATOUT_REAL(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, pool, device);
  });
}

FLATOUT_EXPORT CUresult cuDeviceGetMemPool(Opaque* pool, CUdevice device) {
  return get_pool(pool, {CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ALLOCATION_TYPE_PINNED, [&] {
    return FLATOUT_REAL(cuDeviceGetMemPool, cuDeviceGetMemPool, pool, device);
  });
}

FLATOUT_EXPORT CUresult cuMemGetDefaultMemPool(Opaque* pool, const CUmemLocation* location,
                                               int type) {
  const auto call = [&] {
    return FLATOUT_REAL(cuMemGetDefaultMemPool, cuMemGetDefaultMemPool, pool, location, type);
  };
  return location != nullptr ? get_pool(pool, *location, type, call) : call();
}

FLATOUT_EXPORT CUresult cuMemGetMemPool(Opaque* pool, const CUmemLocation* location, int type) {
  const auto call = [&] {
    return FLATOUT_REAL(cuMemGetMemPool, cuMemGetMemPool, pool, location, type);
  };
  return location != nullptr ? get_pool(pool, *location, type, call) : call();
}

FLATOUT_EXPORT CUresult cuMemPoolDestroy(Opaque handle) {
  const Outermost outermost;
  Pool* pool = nullptr;
  if (outermost) {
    const Locked lock;
    pool = known_pool(handle);
    if (pool != nullptr) pool->destroyed = true;  // its handle may be given again at once
  }
  const CUresult result = FLATOUT_REAL(cuMemPoolDestroy, cuMemPoolDestroy, handle);
  if (pool == nullptr) return result;
  const Locked lock;
  if (result != CUDA_SUCCESS) {
    pool->destroyed = false;
  } else if (pool->device == kMostDevices) {
    *pool = {};
  } else {
    true_up(*pool);
  }
  return result;
}

FLATOUT_EXPORT CUresult cuMemPoolTrimTo(Opaque handle, size_t keep) {
  const Outermost outermost;
  const CUresult result = FLATOUT_REAL(cuMemPoolTrimTo, cuMemPoolTrimTo, handle, keep);
  if (!outermost) return result;
  const Locked lock;
  Pool* const pool = known_pool(handle);
  if (pool != nullptr && pool->device != kMostDevices) true_up(*pool);
  return result;
}

}  // extern "C"
}  // namespace flatout::devlimit
