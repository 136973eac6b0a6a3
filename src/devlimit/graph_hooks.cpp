// Graphs whose nodes allocate. The memory comes when the graph is made ready or launched, and stays
// reserved for graphs until it is trimmed; the driver says how much. Nodes are counted by walking
// the graph, so it does not matter how they came into it: by name, by capture, by cloning.
#include "devlimit/export.h"
#include "devlimit/pages.h"
#include "devlimit/pools.h"

namespace flatout::devlimit {

extern "C" {
CUresult cuGraphGetNodes(Opaque graph, Opaque* nodes, size_t* count);
CUresult cuGraphNodeGetType(Opaque node, int* type);
CUresult cuGraphChildGraphNodeGetGraph(Opaque node, Opaque* graph);
CUresult cuGraphMemAllocNodeGetParams(Opaque node, CUDA_MEM_ALLOC_NODE_PARAMS* params);
CUresult cuDeviceGraphMemTrim(CUdevice device);
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void* value);
}

namespace {

constexpr uint64_t kPage = uint64_t{2} << 20;

// What graphs allocate, by row of the ledger.
struct Needs {
  uint64_t bytes[kMostDevices] = {};
  bool unknown = false;  // no memory to walk it with
};

uint64_t key_of(Opaque graph, int row) {
  return reinterpret_cast<uint64_t>(graph) * kMostDevices + static_cast<uint64_t>(row);
}

void count_nodes(Opaque graph, Needs& needs, int depth) {
  constexpr int kDeepest = 32;
  size_t count = 0;
  if (depth > kDeepest ||
      FLATOUT_REAL(cuGraphGetNodes, cuGraphGetNodes, graph, nullptr, &count) != CUDA_SUCCESS ||
      count == 0)
    return;
  Pages<Opaque> nodes(count);
  if (nodes.data() == nullptr) {
    needs.unknown = true;
    return;
  }
  if (FLATOUT_REAL(cuGraphGetNodes, cuGraphGetNodes, graph, nodes.data(), &count) != CUDA_SUCCESS)
    return;
  for (size_t i = 0; i < count; ++i) {
    Opaque const node = nodes.data()[i];
    int type = -1;
    FLATOUT_REAL(cuGraphNodeGetType, cuGraphNodeGetType, node, &type);
    Opaque child = nullptr;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
        FLATOUT_REAL(cuGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph, node, &child) ==
            CUDA_SUCCESS)
      count_nodes(child, needs, depth + 1);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) continue;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {};
    if (FLATOUT_REAL(cuGraphMemAllocNodeGetParams, cuGraphMemAllocNodeGetParams, node, &params) !=
        CUDA_SUCCESS)
      continue;
    const CUmemLocation& place = params.poolProps.location;
    const int row = place.type == CU_MEM_LOCATION_TYPE_DEVICE ? row_of(place.id) : -1;
    if (row < 0) continue;
    const uint64_t most = UINT64_MAX - kPage - needs.bytes[row];
    needs.bytes[row] +=
        params.bytesize > most ? most : (params.bytesize + kPage - 1) / kPage * kPage;
  }
}

// Under Locked: what is charged comes to what the driver has reserved.
void true_up(int row) {
  GraphMemory& memory = books().graphs[row];
  uint64_t reserved = 0;
  if (FLATOUT_REAL(cuDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute, ordinal_of(row),
                   CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) != CUDA_SUCCESS)
    return;
  if (reserved > memory.charged) {
    // It was charged with the sum of the nodes before, so this is the driver's rounding.
    if (!ledger()->charge(row, reserved - memory.charged))
      ledger()->charge_anyway(row, reserved - memory.charged);
    memory.charged = reserved;
  } else if (memory.pending == 0) {
    give_back(row, memory.charged - reserved);
    memory.charged = reserved;
  }
}

void end(const Needs& needs) {
  const Locked lock;
  for (int row = 0; row < kMostDevices; ++row) {
    if (needs.bytes[row] == 0) continue;
    --books().graphs[row].pending;
    true_up(row);
  }
}

// Charges all of it or nothing.
bool begin(const Needs& needs) {
  if (needs.unknown) return false;
  for (int row = 0; row < kMostDevices; ++row) {
    const uint64_t bytes = needs.bytes[row];
    if (bytes == 0) continue;
    {
      const Locked lock;
      books().devices_with_graphs |= uint64_t{1} << row;
      ++books().graphs[row].pending;
    }
    const bool fits = charge(row, bytes);
    const Locked lock;
    if (fits) {
      books().graphs[row].charged += bytes;
      continue;
    }
    --books().graphs[row].pending;
    for (int before = 0; before < row; ++before) {
      if (needs.bytes[before] == 0) continue;
      --books().graphs[before].pending;
      true_up(before);
    }
    return false;
  }
  return true;
}

void remember(Opaque graph, const Needs& needs) {
  const Locked lock;
  for (int row = 0; row < kMostDevices; ++row) {
    if (needs.bytes[row] == 0) continue;
    books().table.take(Kind::kGraph, key_of(graph, row));
    books().table.put({key_of(graph, row), Kind::kGraph, row, needs.bytes[row]});
  }
}

template <class Call>
CUresult instantiate(bool outermost, Opaque* made, Opaque graph, Call call) {
  if (!outermost) return call();
  Needs needs;
  count_nodes(graph, needs, 0);
  if (!begin(needs)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  end(needs);
  if (result == CUDA_SUCCESS) remember(*made, needs);
  return result;
}

// A graph that ran since the last trim has its memory; any other is charged for all of it until the
// driver has said what it took.
template <class Call>
CUresult launch(bool outermost, Opaque graph, Call call) {
  Needs needs;
  bool any = false;
  if (outermost && books().devices_with_graphs != 0) {
    const Locked lock;
    for (int row = 0; row < kMostDevices; ++row) {
      if ((books().devices_with_graphs >> row & 1) == 0) continue;
      const Entry* const entry = books().table.find(Kind::kGraph, key_of(graph, row));
      if (entry == nullptr || entry->round == books().graphs[row].round) continue;
      needs.bytes[row] = entry->bytes;
      any = true;
    }
  }
  if (!any) return call();
  if (!begin(needs)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  end(needs);
  const Locked lock;
  for (int row = 0; row < kMostDevices && result == CUDA_SUCCESS; ++row) {
    Entry* const entry = books().table.find(Kind::kGraph, key_of(graph, row));
    if (entry != nullptr) entry->round = books().graphs[row].round;
  }
  return result;
}

}  // namespace

void trim_graphs(int row) {
  {
    const Locked lock;
    if ((books().devices_with_graphs >> row & 1) == 0) return;
    ++books().graphs[row].round;
  }
  FLATOUT_REAL(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, ordinal_of(row));
  const Locked lock;
  true_up(row);
}

extern "C" {

FLATOUT_EXPORT CUresult cuGraphInstantiate(Opaque* made, Opaque graph, Opaque* error, char* log,
                                           size_t size) {
  const Outermost outermost;
  return instantiate(bool(outermost), made, graph, [&] {
    return FLATOUT_REAL(cuGraphInstantiate, cuGraphInstantiate, made, graph, error, log, size);
  });
}

FLATOUT_EXPORT CUresult cuGraphInstantiate_v2(Opaque* made, Opaque graph, Opaque* error, char* log,
                                              size_t size) {
  const Outermost outermost;
  return instantiate(bool(outermost), made, graph, [&] {
    return FLATOUT_REAL(cuGraphInstantiate_v2, cuGraphInstantiate_v2, made, graph, error, log,
                        size);
  });
}

FLATOUT_EXPORT CUresult cuGraphInstantiateWithFlags(Opaque* made, Opaque graph,
                                                    unsigned long long flags) {
  const Outermost outermost;
  return instantiate(bool(outermost), made, graph, [&] {
    return FLATOUT_REAL(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, made, graph,
                        flags);
  });
}

FLATOUT_EXPORT CUresult cuGraphInstantiateWithParams(Opaque* made, Opaque graph, void* params) {
  const Outermost outermost;
  return instantiate(bool(outermost), made, graph, [&] {
    return FLATOUT_REAL(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, made, graph,
                        params);
  });
}

FLATOUT_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(Opaque* made, Opaque graph,
                                                          void* params) {
  const Outermost outermost;
  return instantiate(bool(outermost), made, graph, [&] {
    return FLATOUT_REAL(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams_ptsz, made,
                        graph, params);
  });
}

FLATOUT_EXPORT CUresult cuGraphUpload(Opaque graph, Opaque stream) {
  const Outermost outermost;
  return launch(bool(outermost), graph,
                [&] { return FLATOUT_REAL(cuGraphUpload, cuGraphUpload, graph, stream); });
}

FLATOUT_EXPORT CUresult cuGraphUpload_ptsz(Opaque graph, Opaque stream) {
  const Outermost outermost;
  return launch(bool(outermost), graph, [&] {
    return FLATOUT_REAL(cuGraphUpload_ptsz, cuGraphUpload_ptsz, graph, stream);
  });
}

FLATOUT_EXPORT CUresult cuGraphLaunch(Opaque graph, Opaque stream) {
  const Outermost outermost;
  return launch(bool(outermost), graph,
                [&] { return FLATOUT_REAL(cuGraphLaunch, cuGraphLaunch, graph, stream); });
}

FLATOUT_EXPORT CUresult cuGraphLaunch_ptsz(Opaque graph, Opaque stream) {
  const Outermost outermost;
  return launch(bool(outermost), graph, [&] {
    return FLATOUT_REAL(cuGraphLaunch_ptsz, cuGraphLaunch_ptsz, graph, stream);
  });
}

FLATOUT_EXPORT CUresult cuGraphExecDestroy(Opaque graph) {
  const Outermost outermost;
  if (outermost) {
    const Locked lock;
    for (int row = 0; row < kMostDevices; ++row)
      if ((books().devices_with_graphs >> row & 1) != 0)
        books().table.take(Kind::kGraph, key_of(graph, row));
  }
  return FLATOUT_REAL(cuGraphExecDestroy, cuGraphExecDestroy, graph);
}

FLATOUT_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
  const Outermost outermost;
  const int row = outermost ? row_of(device) : -1;
  if (row >= 0) {
    const Locked lock;
    ++books().graphs[row].round;
  }
  const CUresult result = FLATOUT_REAL(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, device);
  if (row < 0) return result;
  const Locked lock;
  if ((books().devices_with_graphs >> row & 1) != 0) true_up(row);
  return result;
}

}  // extern "C"
}  // namespace flatout::devlimit
