/* Behaves as CUPTI does towards the recorder, by $FAKE_CUPTI: "taken" has another subscriber,
 * "dropped" loses records, "old" is CUDA 11's, "dies in a child" of a fork when it is called there.
 * Records are longer than those that the recorder knows, as a newer CUPTI's would be. Anything
 * called in the wrong order is an error that the test sees. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/cupti_records.h"

#define EXPORT __attribute__((visibility("default")))
#define EXTRA 24u /* bytes that a record has more */
#define KINDS 64

static int subscribed; /* the process that is, or 0 */
static int callbacks, clock_set;
static int enabled[KINDS];
static void (*request)(uint8_t**, size_t*, size_t*);
static void (*complete)(void*, uint32_t, uint8_t*, size_t, size_t);
static uint64_t (*read_clock)(void);

struct params {
  size_t size;
  const char* name;
  char* other;
  size_t other_size;
};

static int mode(const char* name) {
  const char* const set = getenv("FAKE_CUPTI");
  return set != NULL && strcmp(set, name) == 0;
}

EXPORT int cuptiGetVersion(uint32_t* version) {
  *version = mode("old") ? 17 : 130001;
  return 0;
}
EXPORT int cuptiSubscribe(void** subscriber, void* callback, void* data) {
  (void)callback;
  (void)data;
  if (mode("taken")) return 39;
  subscribed = getpid();
  *subscriber = &subscribed;
  return 0;
}
EXPORT int cuptiSubscribe_v2(void** subscriber, void* callback, void* data, struct params* params) {
  if (mode("taken")) {
    strncpy(params->other, "CUPTI for Other", params->other_size - 1);
    return 39;
  }
  return cuptiSubscribe(subscriber, callback, data);
}
EXPORT int cuptiUnsubscribe(void* subscriber) {
  if (subscriber != &subscribed) return 1;
  subscribed = 0;
  return 0;
}
EXPORT int cuptiActivityRegisterTimestampCallback(uint64_t (*f)(void)) {
  if (!subscribed) return 15;
  read_clock = f;
  clock_set = 1;
  return 0;
}
EXPORT int cuptiActivityRegisterCallbacks(void (*requested)(uint8_t**, size_t*, size_t*),
                                          void (*completed)(void*, uint32_t, uint8_t*, size_t,
                                                            size_t)) {
  if (!subscribed) return 15;
  request = requested;
  complete = completed;
  callbacks = 1;
  return 0;
}
EXPORT int cuptiActivityEnable(uint32_t kind) {
  if (!subscribed || !callbacks || !clock_set) return 15;
  if (kind == CUPTI_KIND_MEMCPY2) return 7; /* not on this device */
  enabled[kind] = 1;
  return 0;
}
EXPORT int cuptiActivityDisable(uint32_t kind) {
  if (mode("dies in a child") && getpid() != subscribed) abort();
  enabled[kind] = 0;
  return 0;
}
EXPORT int cuptiActivityFlushPeriod(uint32_t time) {
  (void)time;
  return 0;
}
EXPORT int cuptiSetThreadIdType(uint32_t type) { return type == 1 ? 0 : 1; }
EXPORT int cuptiGetCallbackName(uint32_t domain, uint32_t id, const char** name) {
  if (domain != 2 || id != 211) return 1;
  *name = "cudaLaunchKernel_v7000";
  return 0;
}
EXPORT int cuptiActivityGetNumDroppedRecords(void* context, uint32_t stream, size_t* dropped) {
  (void)context;
  (void)stream;
  *dropped = mode("dropped") ? 7 : 0;
  return 0;
}

static size_t size_of(uint32_t kind) {
  switch (kind) {
    case CUPTI_KIND_CONCURRENT_KERNEL:
      return sizeof(struct cupti_kernel);
    case CUPTI_KIND_MEMCPY:
      return sizeof(struct cupti_memcpy);
    case CUPTI_KIND_MEMSET:
      return sizeof(struct cupti_memset);
    case CUPTI_KIND_RUNTIME:
    case CUPTI_KIND_DRIVER:
      return sizeof(struct cupti_call);
    default:
      return sizeof(struct cupti_synchronization);
  }
}
static size_t room_of(uint32_t kind) { return (size_of(kind) + EXTRA + 7) / 8 * 8; }

EXPORT int cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, void** record) {
  uint8_t* next = buffer;
  if (*record != NULL) {
    uint32_t kind;
    memcpy(&kind, *record, sizeof kind);
    next = (uint8_t*)*record + room_of(kind);
  }
  if ((size_t)(next - buffer) >= valid) return 12;
  *record = next;
  return 0;
}

/* What the driver would have seen since: for each of `count` a launch and its kernel, a copy now
 * and then. */
static uint8_t* pending;
static size_t pending_size, pending_used;

static void put(const void* record, uint32_t kind) {
  if (kind < KINDS && !enabled[kind]) return;
  if (pending == NULL || pending_used + room_of(kind) > pending_size) {
    size_t most = 0;
    if (pending != NULL) complete(NULL, 0, pending, pending_size, pending_used);
    request(&pending, &pending_size, &most);
    memset(pending, 0xA5, pending_size); /* not zeroed, as told */
    pending_used = 0;
  }
  memcpy(pending + pending_used, record, size_of(kind));
  pending_used += room_of(kind);
}

EXPORT int fake_cupti_work(uint32_t count) {
  if (read_clock == NULL) return 0;
  for (uint32_t i = 1; i <= count; ++i) {
    const uint64_t now = read_clock();
    const struct cupti_call call = {CUPTI_KIND_RUNTIME, 211, now, now + 5000, 1, 4711, i, 0};
    put(&call, call.kind);
    const struct cupti_kernel kernel = {.kind = CUPTI_KIND_CONCURRENT_KERNEL,
                                        .start = now + 6000,
                                        .end = now + 16000,
                                        .device = 1,
                                        .stream = 7,
                                        .correlation = i,
                                        .name = i % 2 == 0 ? "_Z4gemmIfEvPT_" : "plain \"name\""};
    put(&kernel, kernel.kind);
    if (i % 10 != 0) continue;
    const struct cupti_memcpy copy = {CUPTI_KIND_MEMCPY, 1,           2, 3, 0, 4096,
                                      now + 16000,       now + 17000, 1, 1, 8, i};
    put(&copy, copy.kind);
    const struct cupti_memset fill = {.kind = CUPTI_KIND_MEMSET,
                                      .bytes = 64,
                                      .start = now + 17000,
                                      .end = now + 17100,
                                      .device = 1,
                                      .stream = 8,
                                      .correlation = i,
                                      .memory_kind = 3};
    put(&fill, fill.kind);
    const struct cupti_synchronization wait = {
        CUPTI_KIND_SYNCHRONIZATION, 3, now, now + 1000, i, 1, 7};
    put(&wait, wait.kind);
  }
  return 1;
}

EXPORT int cuptiActivityFlushAll(uint32_t forced) {
  if (forced && pending != NULL) complete(NULL, 0, pending, pending_size, pending_used);
  pending = NULL;
  return 0;
}
EXPORT int fake_cupti_subscribed(void) { return subscribed; }
