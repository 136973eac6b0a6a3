/* A simulated device behind libcuda.so.1, for tests without a GPU. Work on it takes the time that
 * it is told to take: a kernel's first parameter is its length in nanoseconds at full clock (the
 * real kernels of train.cpp spin that long), copies go at fixed rates. Kernels run one after the
 * other, copies in each direction too, side by side with kernels; streams keep their order. Nothing
 * is computed and no thread runs: when an operation is launched, its begin and end are known.
 *
 * The device is described by the script that also NVML's stand-in plays ($NVML_STAND_IN, see
 * src/probe/testing/nvml_stand_in.c), of device 0: mem_total, clock_sm, clock_sm_max, process_1 and
 * on (others, which hold memory). Besides: multiprocessors; lost_after (launches after which the
 * device is gone). What this process holds, and a lost device, is written back into the script. */
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver_api.h"
#include "observer.h"
#include "probe/testing/stand_in_script.h"

#define API __attribute__((visibility("default")))
enum {
  OK = 0,
  INVALID = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NOT_FOUND = 500,
  UNKNOWN = 999
};

#define LAUNCH_NS 4000u /* what the driver itself takes for a call */
#define LATENCY_NS 2000u
#define PINNED_BYTES_PER_NS 20.0
#define PAGEABLE_BYTES_PER_NS 5.0
#define MOST_FUNCTIONS 64
#define MOST_BLOCKS 4096
#define ALIGNMENT 512u

struct sim_function {
  char name[64];
};
struct sim_stream {
  uint32_t number;
  uint64_t free_at;
};
struct sim_event {
  uint64_t at;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialised, is_lost;
static double slow_down = 1; /* of kernels, by the clock */
static uint64_t total_bytes, others_bytes;
static long long lost_after = -1, launches;
static uint64_t kernels_free_at, in_free_at, out_free_at;
static uint32_t next_stream = 7, next_correlation = 1;
static struct sim_stream default_stream = {7, 0};
static struct sim_function functions[MOST_FUNCTIONS];
static const struct sim_observer* observer;

/* ---- time ---- */

static uint64_t now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void wait_until(uint64_t at) {
  for (uint64_t now = now_ns(); now < at; now = now_ns()) {
    const struct timespec left = {(time_t)((at - now) / 1000000000u),
                                  (long)((at - now) % 1000000000u)};
    ppoll(NULL, 0, &left, NULL);
  }
}

static void work_for(uint64_t ns) {
  for (const uint64_t until = now_ns() + ns; now_ns() < until;) {
  }
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- the script ---- */

static double number(const char* key, double otherwise) {
  char text[64];
  return script_value("NVML_STAND_IN", 0, key, text, sizeof text) ? strtod(text, NULL) : otherwise;
}

/* Replaces "0 KEY …" in the script, or adds it. */
static void tell(const char* key, const char* value) {
  const char* const path = getenv("NVML_STAND_IN");
  if (path == NULL) return;
  char fresh[4096], line[256], start[64];
  snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid());
  snprintf(start, sizeof start, "0 %s ", key);
  FILE* const in = fopen(path, "r");
  FILE* const out = fopen(fresh, "w");
  if (out == NULL) {
    if (in != NULL) fclose(in);
    return;
  }
  while (in != NULL && fgets(line, sizeof line, in) != NULL)
    if (strncmp(line, start, strlen(start)) != 0) fputs(line, out);
  fprintf(out, "%s%s\n", start, value);
  if (in != NULL) fclose(in);
  fclose(out);
  rename(fresh, path);
}

static uint64_t held_by_others(void) {
  uint64_t sum = 0;
  char key[32], text[64];
  for (int i = 1;; ++i) {
    unsigned pid = 0;
    long long bytes = 0;
    snprintf(key, sizeof key, "process_%d", i);
    if (!script_value("NVML_STAND_IN", 0, key, text, sizeof text)) return sum;
    if (sscanf(text, "%u %lld", &pid, &bytes) == 2 && bytes > 0) sum += (uint64_t)bytes;
  }
}

/* ---- memory: addresses, first fit ---- */

static struct { uint64_t at, bytes; } blocks[MOST_BLOCKS];
static size_t block_count;

static uint64_t held(void) {
  uint64_t sum = 0;
  for (size_t i = 0; i < block_count; ++i) sum += blocks[i].bytes;
  return sum;
}

static void tell_memory(void) {
  char text[64];
  snprintf(text, sizeof text, "%d %llu", (int)getpid(), (unsigned long long)held());
  tell("process_0", text);
  snprintf(text, sizeof text, "%llu", (unsigned long long)(held() + others_bytes));
  tell("mem_used", text);
}

static int allocate(CUdeviceptr* memory, uint64_t bytes) {
  const uint64_t end = total_bytes - others_bytes;
  bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (bytes == 0 || block_count == MOST_BLOCKS) return INVALID;
  uint64_t at = 0;
  size_t i = 0;
  for (; i < block_count && blocks[i].at - at < bytes; ++i) at = blocks[i].at + blocks[i].bytes;
  if (i == block_count && (at > end || end - at < bytes)) return OUT_OF_MEMORY;
  memmove(&blocks[i + 1], &blocks[i], (block_count - i) * sizeof blocks[0]);
  ++block_count;
  blocks[i].at = at;
  blocks[i].bytes = bytes;
  *memory = at + (1ull << 40);
  return OK;
}

static struct {
  const char* at;
  size_t bytes;
} pinned[64];
static size_t pinned_count;

static int is_pinned(const void* memory) {
  for (size_t i = 0; i < pinned_count; ++i) {
    const char* const byte = memory;
    if (byte >= pinned[i].at && byte < pinned[i].at + pinned[i].bytes) return 1;
  }
  return 0;
}

/* ---- calls ---- */

API void sim_cuda_observe(const struct sim_observer* who) { observer = who; }

static void begin(struct sim_call* call, enum sim_call_id id, const void* params) {
  memset(call, 0, sizeof *call);
  call->id = id;
  call->params = params;
  call->correlation = __atomic_fetch_add(&next_correlation, 1, __ATOMIC_RELAXED);
  if (observer != NULL) observer->call_begins(call);
  call->start = now_ns();
}

static CUresult finish(struct sim_call* call, CUresult result) {
  call->result = is_lost ? UNKNOWN : result;
  call->end = now_ns();
  if (observer != NULL) observer->call_ends(call);
  return call->result;
}

static struct sim_stream* stream_of(CUstream stream) {
  return stream != NULL ? stream : &default_stream;
}

/* Gives an operation to the device: when it begins and ends there. */
static void schedule(struct sim_op* op, struct sim_stream* stream, uint64_t* engine,
                     uint64_t length) {
  op->start = later(now_ns() + LATENCY_NS, later(stream->free_at, *engine));
  op->end = op->start + length;
  op->stream = stream->number;
  stream->free_at = *engine = op->end;
  if (observer != NULL) observer->op(op);
}

static void copy(const struct sim_call* call, CUstream stream, const void* host, size_t bytes,
                 int to_host, int wait) {
  struct sim_op op = {.bytes = bytes, .correlation = call->correlation, .to_host = to_host};
  op.pinned = is_pinned(host);
  const double rate = op.pinned ? PINNED_BYTES_PER_NS : PAGEABLE_BYTES_PER_NS;
  work_for(LAUNCH_NS);
  pthread_mutex_lock(&lock);
  schedule(&op, stream_of(stream), to_host ? &out_free_at : &in_free_at,
           (uint64_t)((double)bytes / rate) + LATENCY_NS);
  pthread_mutex_unlock(&lock);
  /* A copy from memory that is not pinned goes through the driver's own: the host waits. */
  if (wait || !op.pinned) wait_until(op.end);
}

API CUresult cuInit(unsigned flags) {
  if (flags != 0) return INVALID;
  if (initialised) return OK;
  initialised = 1;
  total_bytes = (uint64_t)number("mem_total", 0);
  others_bytes = held_by_others();
  if (others_bytes > total_bytes) others_bytes = total_bytes;
  lost_after = (long long)number("lost_after", -1);
  const double clock = number("clock_sm", 1), highest = number("clock_sm_max", clock);
  slow_down = clock > 0 ? highest / clock : 1;
  tell_memory();
  const char* const injection = getenv("CUDA_INJECTION64_PATH");
  void* const library = injection != NULL ? dlopen(injection, RTLD_NOW) : NULL;
  if (library == NULL) return OK;
  int (*inject)(void) = NULL;
  void* const symbol = dlsym(library, "InitializeInjection");
  memcpy(&inject, &symbol, sizeof inject);
  if (inject != NULL) inject();
  return OK;
}
API CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return initialised ? OK : NOT_INITIALIZED;
}
API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? OK : INVALID;
}
API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  enum { MULTIPROCESSORS = 16, THREADS_OF_ONE = 39 };
  if (device != 0) return INVALID;
  if (attribute == MULTIPROCESSORS) {
    *value = (int)number("multiprocessors", 108);
  } else if (attribute == THREADS_OF_ONE) {
    *value = 2048;
  } else {
    return INVALID;
  }
  return OK;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const struct timespec takes = {0, 250000000}; /* as a card's */
  *context = (CUcontext)&default_stream;
  nanosleep(&takes, NULL);
  if (observer != NULL) observer->context_made();
  return device == 0 ? OK : INVALID;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
  (void)context;
  return OK;
}
API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  *module = (CUmodule)functions;
  return image != NULL ? OK : INVALID;
}
API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  (void)module;
  for (size_t i = 0; i < MOST_FUNCTIONS; ++i) {
    if (functions[i].name[0] == 0)
      snprintf(functions[i].name, sizeof functions[i].name, "%s", name);
    if (strcmp(functions[i].name, name) != 0) continue;
    *function = &functions[i];
    return OK;
  }
  return NOT_FOUND;
}
API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, CUstream stream, void** params, void** extra) {
  struct sim_call call;
  (void)shared_bytes;
  (void)extra;
  begin(&call, SIM_CALL_cuLaunchKernel, NULL);
  if (function == NULL || params == NULL) return finish(&call, INVALID);
  work_for(LAUNCH_NS);
  uint64_t length = 0;
  memcpy(&length, params[0], sizeof length);
  struct sim_op op = {.kernel = function->name,
                      .correlation = call.correlation,
                      .grid = {(int)grid_x, (int)grid_y, (int)grid_z},
                      .block = {(int)block_x, (int)block_y, (int)block_z}};
  pthread_mutex_lock(&lock);
  if (++launches == lost_after) {
    is_lost = 1;
    tell("error", "15"); /* NVML_ERROR_GPU_IS_LOST */
  }
  if (!is_lost)
    schedule(&op, stream_of(stream), &kernels_free_at, (uint64_t)((double)length * slow_down));
  pthread_mutex_unlock(&lock);
  return finish(&call, OK);
}
API CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  (void)flags;
  *stream = calloc(1, sizeof **stream);
  (*stream)->number = ++next_stream;
  return OK;
}
API CUresult cuStreamSynchronize(CUstream stream) {
  struct sim_call call;
  begin(&call, SIM_CALL_cuStreamSynchronize, NULL);
  wait_until(stream_of(stream)->free_at);
  return finish(&call, OK);
}
API CUresult cuCtxSynchronize(void) {
  struct sim_call call;
  begin(&call, SIM_CALL_cuCtxSynchronize, NULL);
  wait_until(later(kernels_free_at, later(in_free_at, out_free_at)));
  return finish(&call, OK);
}
API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&lock);
  struct sim_stream* const s = stream_of(stream);
  s->free_at = later(s->free_at, event->at);
  pthread_mutex_unlock(&lock);
  return OK;
}
API CUresult cuEventCreate(CUevent* event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof **event);
  return OK;
}
API CUresult cuEventRecord(CUevent event, CUstream stream) {
  pthread_mutex_lock(&lock);
  event->at = later(now_ns(), stream_of(stream)->free_at);
  pthread_mutex_unlock(&lock);
  return OK;
}
API CUresult cuEventSynchronize(CUevent event) {
  struct sim_call call;
  begin(&call, SIM_CALL_cuEventSynchronize, NULL);
  wait_until(event->at);
  return finish(&call, OK);
}
API CUresult cuMemGetInfo_v2(size_t* left, size_t* total) {
  pthread_mutex_lock(&lock);
  *total = total_bytes;
  *left = total_bytes - others_bytes - held();
  pthread_mutex_unlock(&lock);
  return OK;
}
API CUresult cuMemAlloc_v2(CUdeviceptr* memory, size_t bytes) {
  const struct {
    CUdeviceptr* memory;
    size_t bytes;
  } params = {memory, bytes};
  struct sim_call call;
  begin(&call, SIM_CALL_cuMemAlloc_v2, &params);
  pthread_mutex_lock(&lock);
  const CUresult result = allocate(memory, bytes);
  if (result == OK) tell_memory();
  pthread_mutex_unlock(&lock);
  return finish(&call, result);
}
API CUresult cuMemFree_v2(CUdeviceptr memory) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < block_count; ++i) {
    if (blocks[i].at + (1ull << 40) != memory) continue;
    --block_count;
    memmove(&blocks[i], &blocks[i + 1], (block_count - i) * sizeof blocks[0]);
    break;
  }
  tell_memory();
  pthread_mutex_unlock(&lock);
  return OK;
}
API CUresult cuMemAllocHost_v2(void** memory, size_t bytes) {
  *memory = calloc(1, bytes);
  if (*memory == NULL || pinned_count == sizeof pinned / sizeof pinned[0]) return OUT_OF_MEMORY;
  pinned[pinned_count].at = *memory;
  pinned[pinned_count++].bytes = bytes;
  return OK;
}
API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  struct sim_call call;
  (void)to;
  begin(&call, SIM_CALL_cuMemcpyHtoD_v2, NULL);
  copy(&call, NULL, from, bytes, 0, 1);
  return finish(&call, OK);
}
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  struct sim_call call;
  (void)to;
  begin(&call, SIM_CALL_cuMemcpyHtoDAsync_v2, NULL);
  copy(&call, stream, from, bytes, 0, 0);
  return finish(&call, OK);
}
API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  struct sim_call call;
  (void)from;
  begin(&call, SIM_CALL_cuMemcpyDtoH_v2, NULL);
  copy(&call, NULL, to, bytes, 1, 1);
  return finish(&call, OK);
}
API CUresult cuGetErrorName(CUresult code, const char** name) {
  *name = code == OK              ? "CUDA_SUCCESS"
          : code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == UNKNOWN       ? "CUDA_ERROR_UNKNOWN"
                                  : "CUDA_ERROR_INVALID_VALUE";
  return OK;
}
