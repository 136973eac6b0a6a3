/* What devices did in a window of time, from CUPTI's records: how long each was busy with what, and
 * what it waited for when it was not. Holds so many records and no more; what comes later shortens
 * the window. Knows nothing of CUPTI: one thread at a time fills it and reads it. */
#ifndef FLATOUT_AGENT_DEVICE_WINDOW_H_
#define FLATOUT_AGENT_DEVICE_WINDOW_H_

#include <stddef.h>
#include <stdint.h>

#include "wire/messages.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DEVICE_WINDOW_OPS 32768u
#define DEVICE_WINDOW_CALLS 65536u
#define DEVICE_WINDOW_DEVICES 16u
#define DEVICE_WINDOW_LONG_IDLE_NS 500000u

enum device_use {
  USE_COMPUTE,
  USE_NORM,       /* batch norm as a kernel of its own */
  USE_FOLLOW,     /* adding or an activation as one */
  USE_COLLECTIVE, /* of NCCL */
  USE_FROM_HOST,
  USE_TO_HOST,
  USE_OTHER_COPY, /* within or between devices, fills */
};
/* Of a kernel, by its name. */
enum device_use device_use_of_kernel(const char* name);

enum call_use {
  CALL_NONE,
  CALL_LAUNCH,
  CALL_COPY, /* may wait for the copy, and for what is before it */
  CALL_SYNC,
  CALL_ALLOCATE,
};
/* Of a call of the driver or the runtime, by its name without a version: "cuLaunchKernel". */
enum call_use call_use_of(const char* name);
/* Whether a copying call of that name waits by its contract: it is no *Async. */
int call_blocks(const char* name);

/* What a device has: multiprocessors, and of each threads, registers, bytes of shared memory. 0:
 * not known. */
struct device_size {
  uint32_t multiprocessors, threads, registers, shared;
};
struct kernel_size {
  uint64_t blocks;
  uint32_t block_threads, registers, shared; /* of a block, of a thread, of a block */
};
/* How much of a device a kernel fills: its blocks among those that fit at once. 1 where the device
 * is not known. */
float device_share_of(const struct device_size* device, const struct kernel_size* kernel);

struct device_op {
  uint64_t start, end, bytes;
  uint32_t device, correlation;
  float filled; /* share of the device that a kernel fills */
  uint8_t use, pageable;
};
struct device_call {
  uint64_t start, end;
  uint32_t correlation, thread;
  uint8_t use;
};

struct device_window {
  uint64_t begin, end; /* of what was recorded; lost records bring the end forward */
  uint64_t lost;       /* records */
  int has_holes;       /* of them, some of an unknown time */
  uint32_t ops, calls;
  struct device_op op[DEVICE_WINDOW_OPS];
  struct device_call call[DEVICE_WINDOW_CALLS];
  uint64_t by_correlation[DEVICE_WINDOW_CALLS]; /* correlation << 32 | index of the call, sorted */
  uint64_t edges[2 * DEVICE_WINDOW_OPS];
};

void device_window_clear(struct device_window* w, uint64_t begin);
void device_window_add_op(struct device_window* w, const struct device_op* op);
void device_window_add_call(struct device_window* w, const struct device_call* call);
/* Records were lost, nobody knows which: idle times can't be told from holes any more. */
void device_window_miss(struct device_window* w, uint64_t records);
/* Launches of which kernels must have left records, where none has; else 0. */
uint64_t device_window_lacks_kernels(const struct device_window* w);

typedef void (*device_idle_sink)(void* context, uint32_t device, enum flatout_idle_cause cause,
                                 uint64_t begin, uint64_t end);
/* What each device did until `end`, ordered by device: how many are in `out`, which has room for
 * DEVICE_WINDOW_DEVICES. `sink` is told of each idle time of 0.5 ms or longer, in order. Sorts the
 * records: to be called once before it is cleared. A device that did nothing in all the window is
 * not told of: it may be working through what was launched before; none is where records are
 * missing. */
size_t device_window_read(struct device_window* w, uint64_t end, struct flatout_device* out,
                          device_idle_sink sink, void* context);

#ifdef __cplusplus
}
#endif
#endif /* FLATOUT_AGENT_DEVICE_WINDOW_H_ */
