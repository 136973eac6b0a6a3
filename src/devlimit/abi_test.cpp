// Holds wire/cuda_abi.h and the versions in hooks.def to NVIDIA's headers; compiled where those are
// installed. A mistake does not compile.
#include "devlimit/cuda_abi.h"

#include <gtest/gtest.h>
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaTypedefs.h>

namespace ours = flatout::devlimit;

#define FLATOUT_SAME(type, member)                                          \
  static_assert(offsetof(ours::type, member) == offsetof(::type, member) && \
                sizeof(ours::type) == sizeof(::type))

FLATOUT_SAME(CUuuid, bytes);
FLATOUT_SAME(CUmemLocation, id);
FLATOUT_SAME(CUmemAccessDesc, flags);
FLATOUT_SAME(CUmemAllocationProp, location);
FLATOUT_SAME(CUmemAllocationProp, allocFlags);
FLATOUT_SAME(CUmemPoolProps, location);
FLATOUT_SAME(CUDA_MEM_ALLOC_NODE_PARAMS, poolProps);
FLATOUT_SAME(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize);
FLATOUT_SAME(CUDA_MEM_ALLOC_NODE_PARAMS, dptr);
FLATOUT_SAME(CUDA_ARRAY_DESCRIPTOR, NumChannels);
FLATOUT_SAME(CUDA_ARRAY3D_DESCRIPTOR, Flags);
FLATOUT_SAME(CUipcMemHandle, reserved);
FLATOUT_SAME(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size);
FLATOUT_SAME(CUarrayMapInfo, memOperationType);
FLATOUT_SAME(CUarrayMapInfo, memHandle);

static_assert(int{ours::CU_MEM_LOCATION_TYPE_DEVICE} == int{::CU_MEM_LOCATION_TYPE_DEVICE});
static_assert(int{ours::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT} ==
              int{::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT});
static_assert(int{ours::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT} ==
              int{::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT});
static_assert(int{ours::CU_GRAPH_NODE_TYPE_GRAPH} == int{::CU_GRAPH_NODE_TYPE_GRAPH});
static_assert(int{ours::CU_GRAPH_NODE_TYPE_MEM_ALLOC} == int{::CU_GRAPH_NODE_TYPE_MEM_ALLOC});
static_assert(int{ours::CU_LIMIT_MALLOC_HEAP_SIZE} == int{::CU_LIMIT_MALLOC_HEAP_SIZE});
static_assert(int{ours::CU_MEM_OPERATION_TYPE_MAP} == int{::CU_MEM_OPERATION_TYPE_MAP});
static_assert(int{ours::CU_MEM_ALLOCATION_TYPE_PINNED} == int{::CU_MEM_ALLOCATION_TYPE_PINNED});
static_assert(int{ours::CU_MEM_ACCESS_FLAGS_PROT_READWRITE} ==
              int{::CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
static_assert(int{ours::CU_MEM_ALLOC_GRANULARITY_MINIMUM} ==
              int{::CU_MEM_ALLOC_GRANULARITY_MINIMUM});
static_assert(int{ours::CU_EVENT_DISABLE_TIMING} == int{::CU_EVENT_DISABLE_TIMING});
static_assert(int{ours::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED} ==
              int{::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED});
static_assert(int{ours::CUDA_ERROR_NOT_READY} == int{::CUDA_ERROR_NOT_READY});
static_assert(int{ours::CUDA_ERROR_DEINITIALIZED} == int{::CUDA_ERROR_DEINITIALIZED});
static_assert(ours::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ==
              ::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);

#if CUDA_VERSION < 13000
using PFN_cuMemGetDefaultMemPool_v13000 = void*;
using PFN_cuMemGetMemPool_v13000 = void*;
#endif

// Each line of hooks.def has a type of that name and version in cudaTypedefs.h.
#define FLATOUT_TYPE_0(name, since) PFN_##name##_v##since
#define FLATOUT_TYPE_1(name, since) PFN_##name##_v##since##_ptsz
#define FLATOUT_HOOK(name, symbol, since, per_thread) \
  using type_of_##symbol [[maybe_unused]] = FLATOUT_TYPE_##per_thread(name, since);
#define FLATOUT_NVML_HOOK(symbol)
#undef cuGetProcAddress
namespace hooks_of_the_table {
#include "devlimit/hooks.def"
}

TEST(DevlimitAbi, IsNvidias) { SUCCEED() << "it compiled"; }
