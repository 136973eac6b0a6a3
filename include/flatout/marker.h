/* flatout/marker.h: a C or C++ job tells Flatout what it is doing.
 *
 *   #include <flatout/marker.h>
 *   while (training) {
 *     uint64_t t = flatout_now();
 *     batch = queue.get();
 *     flatout_slice(FLATOUT_INPUT_WAIT, NULL, t);   // from t until now
 *     ...
 *     flatout_step(step);                           // a step ended here
 *   }
 *
 * Header only, nothing to link. Without Flatout every call returns at once: the agent is found by
 * dlsym, else loaded from $FLATOUT_AGENT, which `flatout run` sets. Threads and fork are safe. */
#ifndef FLATOUT_MARKER_H_
#define FLATOUT_MARKER_H_

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Same numbers as enum flatout_slice_kind in Flatout's src/wire/messages.h. */
enum {
  FLATOUT_STEP = 1,
  FLATOUT_INPUT_WAIT = 2,
  FLATOUT_FORWARD = 3,
  FLATOUT_BACKWARD = 4,
  FLATOUT_OPTIMIZER = 5,
  FLATOUT_H2D = 6,
  FLATOUT_SYNC = 7,
  FLATOUT_COMMUNICATION = 8,
  FLATOUT_CHECKPOINT = 9,
  FLATOUT_VALIDATION = 11,
  FLATOUT_FETCH = 13, /* a loader thread makes one batch: value = samples, value2 = batch index */
  FLATOUT_SAMPLE = 14,
  FLATOUT_COLLATE = 15,
  FLATOUT_HANDOVER = 16,
  FLATOUT_LOGGING = 18,
  FLATOUT_PHASE = 20, /* a phase of your own name */
};

struct flatout_marker_api {
  void (*slice)(uint32_t kind, const char* name, uint64_t begin_ns, uint64_t end_ns, int64_t value,
                int64_t value2);
  void (*counter)(const char* name, double value);
};

/* Threads that come here at once find the same and may store it twice. */
static inline struct flatout_marker_api flatout_marker_find(void) {
  static void *found_slice, *found_counter;
  static int tried;
  struct flatout_marker_api api;
  void *slice, *counter;
  if (__atomic_load_n(&tried, __ATOMIC_ACQUIRE) == 0) {
    void* agent = RTLD_DEFAULT;
    const char* path = getenv("FLATOUT_AGENT");
    if (dlsym(RTLD_DEFAULT, "flatout_agent_mark") == NULL && path != NULL && path[0] != 0) {
      agent = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    /* A failed dlopen leaves RTLD_DEFAULT (NULL), where nothing is found: calls then do nothing. */
    __atomic_store_n(&found_slice, dlsym(agent, "flatout_agent_mark"), __ATOMIC_RELAXED);
    __atomic_store_n(&found_counter, dlsym(agent, "flatout_agent_count"), __ATOMIC_RELAXED);
    __atomic_store_n(&tried, 1, __ATOMIC_RELEASE);
  }
  slice = __atomic_load_n(&found_slice, __ATOMIC_RELAXED);
  counter = __atomic_load_n(&found_counter, __ATOMIC_RELAXED);
  /* dlsym's result is a function here: POSIX says so, ISO C needs this detour. */
  __builtin_memcpy(&api.slice, &slice, sizeof slice);
  __builtin_memcpy(&api.counter, &counter, sizeof counter);
  return api;
}

/* Nanoseconds on the clock that the calls below take. */
static inline uint64_t flatout_now(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* An interval of this thread from begin_ns until now. name may be NULL. */
static inline void flatout_slice_values(uint32_t kind, const char* name, uint64_t begin_ns,
                                        int64_t value, int64_t value2) {
  struct flatout_marker_api api = flatout_marker_find();
  if (api.slice != NULL) api.slice(kind, name, begin_ns, 0, value, value2);
}
static inline void flatout_slice(uint32_t kind, const char* name, uint64_t begin_ns) {
  flatout_slice_values(kind, name, begin_ns, 0, 0);
}

/* A phase of your own name, from begin_ns until now. */
static inline void flatout_phase(const char* name, uint64_t begin_ns) {
  flatout_slice(FLATOUT_PHASE, name, begin_ns);
}

/* A step ended here. `index` counts from 0. */
static inline void flatout_step(int64_t index) {
  struct flatout_marker_api api = flatout_marker_find();
  if (api.slice != NULL) api.slice(FLATOUT_STEP, NULL, 0, 0, index, 0);
}

/* A value over time: loss, queue length, bytes read. */
static inline void flatout_counter(const char* name, double value) {
  struct flatout_marker_api api = flatout_marker_find();
  if (api.counter != NULL) api.counter(name, value);
}

/* A fact about the job ("model", "resnet18"), or why it ends: "exception.type",
 * "exception.message", "exception.file", "exception.line", "exception.function". Rare: it looks the
 * agent up each time. */
static inline void flatout_info(const char* key, const char* value) {
  const char* path = getenv("FLATOUT_AGENT");
  void* agent = RTLD_DEFAULT;
  void *found_start, *found_info;
  int (*start)(uint32_t);
  void (*info)(const char*, const char*);
  flatout_marker_find(); /* loads the agent */
  if (dlsym(agent, "flatout_agent_info") == NULL && path != NULL && path[0] != 0) {
    agent = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  }
  found_start = dlsym(agent, "flatout_agent_start");
  found_info = dlsym(agent, "flatout_agent_info");
  if (found_start == NULL || found_info == NULL) return;
  __builtin_memcpy(&start, &found_start, sizeof start);
  __builtin_memcpy(&info, &found_info, sizeof info);
  start(1); /* as a native job, where nobody has started it yet */
  info(key, value);
}

#ifdef __cplusplus
}
#endif
#endif /* FLATOUT_MARKER_H_ */
