/* Between the simulated driver and the simulated CUPTI: what the latter is told. */
#ifndef FLATOUT_TESTS_GPU_OBSERVER_H_
#define FLATOUT_TESTS_GPU_OBSERVER_H_

#include <stdint.h>

/* Callback ids of the simulated driver; those of the real one are others, and differ by version. */
#define SIM_CALLS(X)     \
  X(cuCtxSynchronize)    \
  X(cuLaunchKernel)      \
  X(cuStreamSynchronize) \
  X(cuEventSynchronize)  \
  X(cuMemAlloc_v2)       \
  X(cuMemcpyHtoD_v2)     \
  X(cuMemcpyDtoH_v2)     \
  X(cuMemcpyHtoDAsync_v2)
enum sim_call_id {
  SIM_CALL_NONE,
#define SIM_CALL_ID(name) SIM_CALL_##name,
  SIM_CALLS(SIM_CALL_ID)
#undef SIM_CALL_ID
      SIM_CALL_COUNT
};

struct sim_call {
  enum sim_call_id id;
  const void* params; /* as generated_cuda_meta.h lays them out */
  int result;
  uint64_t shared; /* of the two callbacks */
  uint32_t correlation;
  uint64_t start, end;
};

struct sim_op {
  const char* kernel; /* NULL: a copy */
  uint64_t start, end, bytes;
  uint32_t stream, correlation;
  int32_t grid[3], block[3];
  int to_host, pinned; /* of a copy */
};

struct sim_observer {
  void (*call_begins)(struct sim_call* call);
  void (*call_ends)(struct sim_call* call);
  void (*op)(const struct sim_op* op); /* when it is given to the device */
  void (*context_made)(void);
};

/* Exported by the simulated libcuda.so.1. */
typedef void (*sim_cuda_observe_function)(const struct sim_observer* observer);

#endif /* FLATOUT_TESTS_GPU_OBSERVER_H_ */
