// The part of the CUDA driver's binary interface that Flatout needs (the interposer of devlimit,
// the driver of devmem), declared here so that both build without CUDA. devlimit/abi_test.cpp holds
// the layouts to NVIDIA's headers where they are installed. Names of functions and constants are
// NVIDIA's, so that they can be looked up.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flatout::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = uint64_t;
using Opaque = void*;  // contexts, streams, events, graphs, pools, arrays, modules

enum : CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_NOT_SUPPORTED = 801,
};

enum : int {
  CU_MEM_LOCATION_TYPE_DEVICE = 1,
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
  CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
  CU_GRAPH_NODE_TYPE_GRAPH = 4,
  CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
  CU_LIMIT_MALLOC_HEAP_SIZE = 2,
  CU_MEM_OPERATION_TYPE_MAP = 1,
  CU_MEM_ALLOCATION_TYPE_PINNED = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
  CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
  CU_EVENT_DISABLE_TIMING = 2,
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
};
inline constexpr unsigned CUDA_ARRAY3D_SPARSE = 0x40, CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80;
inline constexpr uint64_t CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2;

struct CUuuid {
  unsigned char bytes[16];
};
struct CUmemLocation {
  int type;
  int id;
};
struct CUmemAccessDesc {
  CUmemLocation location;
  int flags;
};
struct CUmemAllocationProp {
  int type;
  int requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  unsigned char allocFlags[8];
};
struct CUmemPoolProps {
  int allocType;
  int handleTypes;
  CUmemLocation location;
  void* win32SecurityAttributes;
  size_t maxSize;
  unsigned char usage_and_reserved[56];
};
struct CUDA_MEM_ALLOC_NODE_PARAMS {
  CUmemPoolProps poolProps;
  const void* accessDescs;
  size_t accessDescCount;
  size_t bytesize;
  CUdeviceptr dptr;
};
struct CUDA_ARRAY_DESCRIPTOR {
  size_t Width, Height;
  int Format;
  unsigned NumChannels;
};
struct CUDA_ARRAY3D_DESCRIPTOR {
  size_t Width, Height, Depth;
  int Format;
  unsigned NumChannels;
  unsigned Flags;
};
struct CUipcMemHandle {
  char reserved[64];
};
struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
  int type;
  union {
    int fd;
    struct {
      void* handle;
      const void* name;
    } win32;
  } handle;
  unsigned long long size;
  unsigned flags;
  unsigned reserved[16];
};
struct CUarrayMapInfo {
  int resourceType;
  Opaque resource;
  int subresourceType;
  uint64_t subresource[4];
  int memOperationType;
  int memHandleType;
  uint64_t memHandle;
  unsigned long long offset;
  unsigned deviceBitMask;
  unsigned flags;
  unsigned reserved[2];
};
using CUmemGenericAllocationHandle = uint64_t;

}  // namespace flatout::cuda
