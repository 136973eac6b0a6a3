/* Records what CUDA does through CUPTI: loaded by the driver where CUDA_INJECTION64_PATH names this
 * library and FLATOUT_CUDA_TRACE a file to write. CUPTI is the one that the process has already
 * (the framework's wheel brings it), else the system's; all of it is found by dlsym. There is one
 * subscriber in a process: where another tool is it, it is named, and nothing is recorded. Buffers
 * are turned into events in CUPTI's own thread, never in the job's.
 *
 * The order matters: subscribe before anything else (the library does not guard activity calls),
 * clock and callbacks before any kind is enabled. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/clock.h"
#include "agent/cupti_records.h"
#include "agent/event_file.h"

#define SUCCESS 0
#define TAKEN 39    /* CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED */
#define CUDA_12 18u /* CUPTI_API_VERSION of CUDA 12.0 */
#define DRIVER_DOMAIN 2
#define RUNTIME_DOMAIN 3
#define SYSTEM_THREAD_IDS 1
#define BUFFER_BYTES (4u << 20)
#define FLUSH_MS 500
#define MOST_NAMES 2048u /* of calls */

struct subscriber_params { /* CUpti_SubscriberParams, CUPTI 13 */
  size_t size;
  const char* name;
  char* other;
  size_t other_size;
};

static struct {
  int (*get_version)(uint32_t*);
  int (*subscribe)(void**, void (*)(void*, uint32_t, uint32_t, const void*), void*);
  int (*subscribe_v2)(void**, void (*)(void*, uint32_t, uint32_t, const void*), void*,
                      struct subscriber_params*);
  int (*unsubscribe)(void*);
  int (*register_callbacks)(void (*)(uint8_t**, size_t*, size_t*),
                            void (*)(void*, uint32_t, uint8_t*, size_t, size_t));
  int (*register_clock)(uint64_t (*)(void));
  int (*enable)(uint32_t);
  int (*disable)(uint32_t);
  int (*flush_all)(uint32_t);
  int (*flush_period)(uint32_t);
  int (*next_record)(uint8_t*, size_t, void**);
  int (*dropped)(void*, uint32_t, size_t*);
  int (*callback_name)(uint32_t, uint32_t, const char**);
  int (*thread_ids)(uint32_t);
} cupti;

static const uint32_t kinds[] = {
    CUPTI_KIND_CONCURRENT_KERNEL, CUPTI_KIND_MEMCPY, CUPTI_KIND_MEMCPY2,        CUPTI_KIND_MEMSET,
    CUPTI_KIND_RUNTIME,           CUPTI_KIND_DRIVER, CUPTI_KIND_SYNCHRONIZATION};
static void* subscriber;
static size_t dropped_records;
static const char*
    names[2][MOST_NAMES]; /* of the driver's and the runtime's calls, once they were asked for */

/* ---- the library ---- */

static int find(void* library, const char* name, void* slot) {
  void* const found = dlsym(library, name);
  memcpy(slot, &found, sizeof found); /* a function: POSIX says so, ISO C needs this detour */
  return found != NULL;
}

static int load(void) {
  static const char* const files[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
  void* library = NULL;
  for (int loaded = 1; loaded >= 0 && library == NULL; --loaded) {
    for (size_t i = 0; i < sizeof files / sizeof files[0] && library == NULL; ++i)
      library = dlopen(files[i], RTLD_NOW | (loaded ? RTLD_NOLOAD : 0));
  }
  if (library == NULL) return 0;
  find(library, "cuptiSubscribe_v2", &cupti.subscribe_v2); /* from CUPTI 13 on */
  find(library, "cuptiActivityFlushPeriod", &cupti.flush_period);
  find(library, "cuptiSetThreadIdType", &cupti.thread_ids);
  return find(library, "cuptiGetVersion", &cupti.get_version) &&
         find(library, "cuptiSubscribe", &cupti.subscribe) &&
         find(library, "cuptiUnsubscribe", &cupti.unsubscribe) &&
         find(library, "cuptiActivityRegisterCallbacks", &cupti.register_callbacks) &&
         find(library, "cuptiActivityRegisterTimestampCallback", &cupti.register_clock) &&
         find(library, "cuptiActivityEnable", &cupti.enable) &&
         find(library, "cuptiActivityDisable", &cupti.disable) &&
         find(library, "cuptiActivityFlushAll", &cupti.flush_all) &&
         find(library, "cuptiActivityGetNextRecord", &cupti.next_record) &&
         find(library, "cuptiActivityGetNumDroppedRecords", &cupti.dropped) &&
         find(library, "cuptiGetCallbackName", &cupti.callback_name);
}

/* ---- callbacks, in CUPTI's threads ---- */

static void ignore(void* data, uint32_t domain, uint32_t id, const void* info) {
  (void)data;
  (void)domain;
  (void)id;
  (void)info;
}

static uint64_t read_clock(void) { return now_ns(); }

static void give_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  *buffer = aligned_alloc(8, BUFFER_BYTES);
  *size = *buffer != NULL ? BUFFER_BYTES : 0;
  *most_records = 0;
}

/* "cudaLaunchKernel" for "cudaLaunchKernel_v7000" */
static const char* name_of_call(const struct cupti_event* e, char* to, size_t size) {
  const int runtime = e->kind == CUPTI_KIND_RUNTIME;
  const char* name = e->function < MOST_NAMES
                         ? __atomic_load_n(&names[runtime][e->function], __ATOMIC_RELAXED)
                         : NULL;
  if (name == NULL) {
    if (cupti.callback_name(runtime ? RUNTIME_DOMAIN : DRIVER_DOMAIN, e->function, &name) !=
            SUCCESS ||
        name == NULL)
      return runtime ? "cuda runtime call" : "cuda driver call";
    if (e->function < MOST_NAMES)
      __atomic_store_n(&names[runtime][e->function], name, __ATOMIC_RELAXED);
  }
  snprintf(to, size, "%s", name);
  char* const version = strstr(to, "_v");
  if (version != NULL && version[2] >= '0' && version[2] <= '9') *version = 0;
  return to;
}

static void write_event(const struct cupti_event* e) {
  char name[256], args[256];
  switch (e->kind) {
    case CUPTI_KIND_DRIVER:
    case CUPTI_KIND_RUNTIME:
      snprintf(args, sizeof args, "\"correlation\": %" PRIu32, e->correlation);
      event_file_slice(e->kind == CUPTI_KIND_RUNTIME ? "cuda_runtime" : "cuda_driver",
                       name_of_call(e, name, sizeof name), getpid(), e->thread, e->start, e->end,
                       args);
      return;
    case CUPTI_KIND_SYNCHRONIZATION:
      snprintf(args, sizeof args, "\"correlation\": %" PRIu32, e->correlation);
      event_file_slice("cuda_sync", "Synchronize", getpid(), -1, e->start, e->end, args);
      return;
    default:
      break;
  }
  const int filled =
      snprintf(args, sizeof args,
               "\"device\": %" PRIu32 ", \"stream\": %" PRIu32 ", \"correlation\": %" PRIu32,
               e->device, e->stream, e->correlation);
  const char* category = "kernel";
  const char* shown = e->name;
  if (e->kind == CUPTI_KIND_MEMCPY || e->kind == CUPTI_KIND_MEMCPY2) {
    category = "gpu_memcpy";
    snprintf(name, sizeof name, "Memcpy %s (%s -> %s)", cupti_copy_name(e->copy_kind),
             cupti_memory_name(e->source_kind), cupti_memory_name(e->target_kind));
    shown = name;
  } else if (e->kind == CUPTI_KIND_MEMSET) {
    category = "gpu_memset";
    snprintf(name, sizeof name, "Memset (%s)", cupti_memory_name(e->target_kind));
    shown = name;
  } else if (e->kind == CUPTI_KIND_GRAPH_TRACE) {
    snprintf(name, sizeof name, "CUDA graph %" PRIu32, e->graph);
    shown = name;
  }
  if (e->kind != CUPTI_KIND_CONCURRENT_KERNEL && e->kind != CUPTI_KIND_GRAPH_TRACE)
    snprintf(args + filled, sizeof args - (size_t)filled, ", \"bytes\": %" PRIu64, e->bytes);
  event_file_slice(category, shown, e->device, e->stream, e->start, e->end, args);
}

static void take_buffer(void* context, uint32_t stream, uint8_t* buffer, size_t size,
                        size_t valid) {
  (void)size;
  void* record = NULL;
  while (valid > 0 && cupti.next_record(buffer, valid, &record) == SUCCESS) {
    struct cupti_event event;
    const size_t left = valid - (size_t)((uint8_t*)record - buffer);
    if (cupti_read_record(record, left, &event)) write_event(&event);
  }
  size_t lost = 0;
  if (cupti.dropped(context, stream, &lost) == SUCCESS && lost > 0)
    __atomic_fetch_add(&dropped_records, lost, __ATOMIC_RELAXED);
  free(buffer);
}

/* ---- start and end ---- */

static void refuse(const char* why) {
  event_file_missing(why);
  flatout_agent_info("cuda.trace", why);
  fprintf(stderr, "flatout: warning: the CUDA trace stays empty: %s\n", why);
}

static int subscribe(void) {
  char other[128] = "", why[256];
  int result;
  if (cupti.subscribe_v2 != NULL) {
    struct subscriber_params params = {sizeof params, "flatout", other, sizeof other};
    result = cupti.subscribe_v2(&subscriber, ignore, NULL, &params);
  } else {
    result = cupti.subscribe(&subscriber, ignore, NULL);
  }
  if (result == SUCCESS) return 1;
  if (result == TAKEN) {
    snprintf(why, sizeof why, "%s has CUPTI, which serves one tool at a time (error 39)",
             other[0] != 0 ? other : "another tool (the framework's profiler, Nsight, a debugger)");
  } else {
    snprintf(why, sizeof why, "CUPTI refuses a subscriber (error %d)", result);
  }
  refuse(why);
  return 0;
}

static void stop(void) {
  if (subscriber == NULL) return;
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) cupti.disable(kinds[i]);
  cupti.flush_all(1); /* what is not complete, too */
  const size_t lost = __atomic_load_n(&dropped_records, __ATOMIC_RELAXED);
  if (lost > 0) {
    char text[96];
    snprintf(text, sizeof text, "CUPTI dropped %zu records", lost);
    event_file_missing(text);
  }
  cupti.unsubscribe(subscriber);
  subscriber = NULL;
}

/* The driver calls this in cuInit. 1: all is well; the job goes on either way. */
FLATOUT_EXPORT int InitializeInjection(void) {
  static int called;
  if (__atomic_exchange_n(&called, 1, __ATOMIC_ACQ_REL) || !event_file_open()) return 1;
  uint32_t version = 0;
  if (!load()) {
    refuse("no libcupti.so of CUDA 12 or 13 was found");
    return 1;
  }
  if (cupti.get_version(&version) != SUCCESS || version < CUDA_12) {
    refuse("this CUPTI is older than CUDA 12's: its records are others");
    return 1;
  }
  if (!subscribe()) return 1;
  int fine = cupti.register_clock(read_clock) == SUCCESS;
  fine = cupti.register_callbacks(give_buffer, take_buffer) == SUCCESS && fine;
  if (!fine) {
    refuse("CUPTI takes no callbacks");
    cupti.unsubscribe(subscriber);
    subscriber = NULL;
    return 1;
  }
  if (cupti.thread_ids != NULL) cupti.thread_ids(SYSTEM_THREAD_IDS);
  if (cupti.flush_period != NULL) cupti.flush_period(FLUSH_MS);
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
    const int result = cupti.enable(kinds[i]);
    if (result == SUCCESS) continue;
    char text[96];
    snprintf(text, sizeof text, "CUPTI does not record activity kind %u (error %d)", kinds[i],
             result);
    event_file_missing(text);
  }
  atexit(stop);
  return 1;
}
