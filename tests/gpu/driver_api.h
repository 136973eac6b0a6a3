/* The part of CUDA's driver API that the job and the simulated device here use, declared by
 * ourselves from NVIDIA's public documentation, so that no toolkit is needed to build. */
#ifndef FLATOUT_TESTS_GPU_DRIVER_API_H_
#define FLATOUT_TESTS_GPU_DRIVER_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct sim_context* CUcontext;
typedef struct sim_module* CUmodule;
typedef struct sim_function* CUfunction;
typedef struct sim_stream* CUstream;
typedef struct sim_event* CUevent;

CUresult cuInit(unsigned flags);
CUresult cuDeviceGetCount(int* count);
CUresult cuDeviceGet(CUdevice* device, int ordinal);
CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule* module, const void* image);
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name);
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** params, void** extra);
CUresult cuStreamCreate(CUstream* stream, unsigned flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuEventCreate(CUevent* event, unsigned flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventSynchronize(CUevent event);
CUresult cuMemGetInfo_v2(size_t* left, size_t* total);
CUresult cuMemAlloc_v2(CUdeviceptr* memory, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr memory);
CUresult cuMemAllocHost_v2(void** memory, size_t bytes);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes);
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream);
CUresult cuGetErrorName(CUresult code, const char** name);

#ifdef __cplusplus
}
#endif
#endif /* FLATOUT_TESTS_GPU_DRIVER_API_H_ */
