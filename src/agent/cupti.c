/* Records what CUDA does through CUPTI: loaded by the driver where CUDA_INJECTION64_PATH names this
 * library and FLATOUT_CUDA_TRACE a file to write; where it names none, what a recorder wants to
 * know is told live (cupti_live.h). Buffers are turned into events in CUPTI's own thread, never in
 * the job's.
 *
 * The order matters: subscribe before anything else (the library does not guard activity calls),
 * clock and callbacks before any kind is enabled. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/clock.h"
#include "agent/cupti_library.h"
#include "agent/cupti_live.h"
#include "agent/cupti_records.h"
#include "agent/event_file.h"

#define BUFFER_BYTES (4u << 20)
#define FLUSH_MS 500
#define MOST_NAMES 2048u /* of calls */

static struct cupti_api cupti;

static const uint32_t kinds[] = {
    CUPTI_KIND_CONCURRENT_KERNEL, CUPTI_KIND_MEMCPY, CUPTI_KIND_MEMCPY2,        CUPTI_KIND_MEMSET,
    CUPTI_KIND_RUNTIME,           CUPTI_KIND_DRIVER, CUPTI_KIND_SYNCHRONIZATION};
static void* subscriber;
static pid_t subscribed_in; /* this process */
static size_t dropped_records;
static const char*
    names[2][MOST_NAMES]; /* of the driver's and the runtime's calls, once they were asked for */

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
    if (cupti.callback_name(runtime ? CUPTI_RUNTIME_DOMAIN : CUPTI_DRIVER_DOMAIN, e->function,
                            &name) != CUPTI_OK ||
        name == NULL)
      return runtime ? "cuda runtime call" : "cuda driver call";
    if (e->function < MOST_NAMES)
      __atomic_store_n(&names[runtime][e->function], name, __ATOMIC_RELAXED);
  }
  cupti_plain_name(name, to, size);
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
  while (valid > 0 && cupti.next_record(buffer, valid, &record) == CUPTI_OK) {
    struct cupti_event event;
    const size_t left = valid - (size_t)((uint8_t*)record - buffer);
    if (cupti_read_record(record, left, &event)) write_event(&event);
  }
  size_t lost = 0;
  if (cupti.dropped(context, stream, &lost) == CUPTI_OK && lost > 0)
    __atomic_fetch_add(&dropped_records, lost, __ATOMIC_RELAXED);
  free(buffer);
}

/* ---- start and end ---- */

static void refuse(const char* why) {
  event_file_missing(why);
  flatout_agent_info("cuda.trace", why);
  fprintf(stderr, "flatout: warning: the CUDA trace stays empty: %s\n", why);
}

static void stop(void) {
  /* A child that a fork left behind has neither CUPTI's threads nor, maybe, its locks. */
  if (subscriber == NULL || subscribed_in != getpid()) return;
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

static void start_trace(void) {
  const char* const why = cupti_open(&cupti, &subscriber, ignore);
  if (why != NULL) {
    refuse(why);
    return;
  }
  int fine = cupti.register_clock(read_clock) == CUPTI_OK;
  fine = cupti.register_callbacks(give_buffer, take_buffer) == CUPTI_OK && fine;
  if (!fine) {
    refuse("CUPTI takes no callbacks");
    cupti.unsubscribe(subscriber);
    subscriber = NULL;
    return;
  }
  if (cupti.thread_ids != NULL) cupti.thread_ids(CUPTI_SYSTEM_THREAD_IDS);
  if (cupti.flush_period != NULL) cupti.flush_period(FLUSH_MS);
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
    const int result = cupti.enable(kinds[i]);
    if (result == CUPTI_OK) continue;
    char text[96];
    snprintf(text, sizeof text, "CUPTI does not record activity kind %u (error %d)", kinds[i],
             result);
    event_file_missing(text);
  }
  subscribed_in = getpid();
  atexit(stop);
}

/* The driver calls this in cuInit. 1: all is well; the job goes on either way. */
FLATOUT_EXPORT int InitializeInjection(void) {
  static int called;
  if (__atomic_exchange_n(&called, 1, __ATOMIC_ACQ_REL)) return 1;
  if (event_file_open()) {
    start_trace();
  } else {
    cupti_live_start();
  }
  return 1;
}
