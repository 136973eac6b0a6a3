// What the parts of the stand-in for libcuda share: the driver's state, behind one lock.
#pragma once

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

namespace fake {

using namespace flatout::devlimit;  // NOLINT: the driver's own names

inline constexpr CUresult kNoContext = 201, kInvalidHandle = 400;

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

inline std::mutex g_lock;
inline std::map<CUdeviceptr, Block> g_blocks;
inline std::map<uint64_t, PhysicalState*> g_handles;
inline std::map<CUdeviceptr, Mapping> g_mappings;
inline std::map<CUdeviceptr, size_t> g_ranges;
inline std::vector<Deferred> g_deferred;
inline std::map<std::pair<Context*, std::string>, Opened> g_opened;  // by the handle
inline std::atomic<int> g_events{0};
inline Stream g_null_streams[kCards];
inline PoolState g_default_pools[kCards] = {{0}, {1}};
inline PoolState g_host_pool = {0, true};
inline Context g_primary[kCards];
inline int g_retained[kCards] = {};
inline std::set<Exec*> g_execs;
inline uint64_t g_graph_reserved[kCards] = {};
inline CUdeviceptr g_next = CUdeviceptr{1} << 40;
inline uint64_t g_next_handle = 1;
inline thread_local std::vector<Context*> t_contexts;
inline thread_local Stream t_stream;  // of the functions for per-thread default streams
inline thread_local int t_capture_mode = 0;
inline thread_local std::set<Stream*> t_captures;  // that forbid what is unsafe

inline Context* current() { return t_contexts.empty() ? nullptr : t_contexts.back(); }

// Under the lock.
inline Stream* work_of(Opaque stream) {
  constexpr uintptr_t kLastSpecial = 2;
  if (reinterpret_cast<uintptr_t>(stream) > kLastSpecial) return static_cast<Stream*>(stream);
  return &g_null_streams[current() != nullptr ? current()->device : 0];
}

inline CUdeviceptr new_address(size_t bytes) {
  const CUdeviceptr out = g_next;
  g_next += (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
  return out;
}

// Under the lock.
inline CUresult new_block(CUdeviceptr* address, size_t bytes, PoolState* pool = nullptr) {
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

inline void trim(PoolState* pool, uint64_t keep) {
  const uint64_t least = (pool->live + 32 * kMiB - 1) / (32 * kMiB) * (32 * kMiB);
  const uint64_t target = std::max(least, keep);
  if (pool->host || target >= pool->reserved) return;
  card().give(pool->device, pool->reserved - target);
  pool->reserved = target;
}

inline void give(const Block& block) {
  if (block.pool != nullptr) {
    block.pool->live -= block.bytes;
    if (block.pool->destroyed && block.pool->live == 0) trim(block.pool, 0);
  } else if (!block.foreign) {
    card().give(block.device, block.bytes);
  }
}

// Under the lock: the stream has got so far.
inline void reach(Stream* stream, uint64_t work) {
  stream->done = std::max(stream->done, work);
  std::erase_if(g_deferred, [&](const Deferred& free) {
    if (free.stream != stream || free.after > stream->done) return false;
    give(free.block);
    return true;
  });
}

inline CUresult free_block(CUdeviceptr address) {
  const std::lock_guard lock(g_lock);
  const auto it = g_blocks.find(address);
  if (it == g_blocks.end()) return CUDA_ERROR_INVALID_VALUE;
  give(it->second);
  g_blocks.erase(it);
  return CUDA_SUCCESS;
}

}  // namespace fake
