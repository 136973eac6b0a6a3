// Of the stand-in for libcuda: streams and what is ordered by them, captures, pools, graphs.
#include <memory>
#include <utility>

#include "devlimit/testing/fake_state.h"

using namespace fake;

namespace {

Stream* capture_of(Opaque stream, bool per_thread) {
  const auto number = reinterpret_cast<uintptr_t>(stream);
  if (number == 2 || (number == 0 && per_thread)) return &t_stream;
  return number > 2 ? static_cast<Stream*>(stream) : nullptr;  // the legacy one cannot be captured
}

CUresult from_pool(CUdeviceptr* address, size_t bytes, PoolState* pool) {
  const std::lock_guard lock(g_lock);
  if (pool->destroyed) return CUDA_ERROR_INVALID_VALUE;
  // What is idle lies in two pieces.
  if (!pool->host && bytes > (pool->reserved - pool->live) / 2) {
    const uint64_t more = (bytes + 32 * kMiB - 1) / (32 * kMiB) * (32 * kMiB);
    if (!card().take(pool->device, more)) return CUDA_ERROR_OUT_OF_MEMORY;
    pool->reserved += more;
  }
  pool->live += bytes;
  return new_block(address, bytes, pool);
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

}  // extern "C"
