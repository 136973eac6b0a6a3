/* CUPTI for the simulated device (sim_cuda.c): activity records of the kinds that are enabled, in
 * the layouts of agent/cupti_records.h with some bytes more, as a newer version's would be, and
 * callbacks of the driver's calls. An operation's record comes once it has ended. $SIM_CUPTI:
 * "taken" has another subscriber already, "refuses" records no kernels, "drops" loses records,
 * "hangs" never comes back from disabling a kind. Of a context that is made while kernels are being
 * recorded, none is until they are enabled anew: the real one does so at times. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/cupti_library.h"
#include "agent/cupti_records.h"
#include "observer.h"

#define API __attribute__((visibility("default")))
enum { OK = 0, INVALID = 1, NO_MORE_RECORDS = 12, NOT_SUBSCRIBED = 15, NO_RIGHTS = 35, TAKEN = 39 };
#define EXTRA 24u /* bytes that a record has more */
#define KINDS 64
#define MOST_RUNNING 65536u

union record {
  struct cupti_kernel kernel;
  struct cupti_memcpy copy;
  struct cupti_call call;
};
struct pending {
  uint64_t end;
  union record record;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cupti_callback subscriber;
static void* subscriber_data;
static int enabled[KINDS], watched[SIM_CALL_COUNT];
static int watches_contexts, blind; /* blind: no kernels are recorded */
static struct pending* waiting; /* records that are not in a buffer yet, by when they were made */
static size_t waiting_count;
static size_t lost;
static void (*request)(uint8_t**, size_t*, size_t*);
static void (*complete)(void*, uint32_t, uint8_t*, size_t, size_t);
static uint64_t (*read_clock)(void);

static const char* const names[] = {"",
#define SIM_CALL_NAME(name) #name,
                                    SIM_CALLS(SIM_CALL_NAME)
#undef SIM_CALL_NAME
};

static size_t size_of(uint32_t kind) {
  const size_t plain = kind == CUPTI_KIND_CONCURRENT_KERNEL ? sizeof(struct cupti_kernel)
                       : kind == CUPTI_KIND_MEMCPY          ? sizeof(struct cupti_memcpy)
                                                            : sizeof(struct cupti_call);
  return (plain + EXTRA + 7) / 8 * 8;
}

static int mode(const char* name) {
  const char* const set = getenv("SIM_CUPTI");
  return set != NULL && strcmp(set, name) == 0;
}

static void add(uint32_t kind, uint64_t end, const void* record, size_t size) {
  pthread_mutex_lock(&lock);
  if (enabled[kind]) {
    if (waiting == NULL) waiting = calloc(MOST_RUNNING, sizeof *waiting);
    if (waiting == NULL || waiting_count == MOST_RUNNING) {
      ++lost;
    } else {
      waiting[waiting_count].end = end;
      memcpy(&waiting[waiting_count++].record, record, size);
    }
  }
  pthread_mutex_unlock(&lock);
}

/* ---- what the simulated driver tells ---- */

static void on_op(const struct sim_op* op) {
  if (op->kernel != NULL && blind) return;
  if (op->kernel != NULL) {
    struct cupti_kernel r = {.kind = CUPTI_KIND_CONCURRENT_KERNEL,
                             .start = op->start,
                             .end = op->end,
                             .completed = op->end,
                             .stream = op->stream,
                             .correlation = op->correlation,
                             .name = op->kernel};
    memcpy(r.grid, op->grid, sizeof r.grid);
    memcpy(r.block, op->block, sizeof r.block);
    add(r.kind, op->end, &r, sizeof r);
    return;
  }
  const uint8_t host = op->pinned ? 2 : 1, device = 3;
  const struct cupti_memcpy r = {.kind = CUPTI_KIND_MEMCPY,
                                 .copy_kind = op->to_host ? 2 : 1,
                                 .source_kind = op->to_host ? device : host,
                                 .target_kind = op->to_host ? host : device,
                                 .bytes = op->bytes,
                                 .start = op->start,
                                 .end = op->end,
                                 .stream = op->stream,
                                 .correlation = op->correlation};
  add(r.kind, op->end, &r, sizeof r);
}

static void on_context_made(void) {
  blind = enabled[CUPTI_KIND_CONCURRENT_KERNEL];
  if (watches_contexts && subscriber != NULL)
    subscriber(subscriber_data, CUPTI_RESOURCE_DOMAIN, CUPTI_CONTEXT_CREATED, NULL);
}

static void call_back(struct sim_call* call, uint32_t site) {
  if (!watched[call->id] || subscriber == NULL) return;
  struct cupti_callback_data data = {.site = site,
                                     .function = names[call->id],
                                     .params = call->params,
                                     .result = site == 1 ? &call->result : NULL,
                                     .shared = &call->shared,
                                     .correlation = call->correlation};
  subscriber(subscriber_data, CUPTI_DRIVER_DOMAIN, call->id, &data);
}
static void on_call_begins(struct sim_call* call) { call_back(call, 0); }
static void on_call_ends(struct sim_call* call) {
  const struct cupti_call r = {.kind = CUPTI_KIND_DRIVER,
                               .function = call->id,
                               .start = call->start,
                               .end = call->end,
                               .process = (uint32_t)getpid(),
                               .thread = (uint32_t)gettid(),
                               .correlation = call->correlation,
                               .result = (uint32_t)call->result};
  add(r.kind, call->end, &r, sizeof r);
  call_back(call, 1);
}

/* ---- CUPTI ---- */

API int cuptiGetVersion(uint32_t* version) {
  *version = 130001;
  return OK;
}
API int cuptiSubscribe(void** handle, cupti_callback callback, void* data) {
  static const struct sim_observer observer = {on_call_begins, on_call_ends, on_op,
                                               on_context_made};
  if (subscriber != NULL || mode("taken")) return TAKEN;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* const symbol = driver != NULL ? dlsym(driver, "sim_cuda_observe") : NULL;
  if (symbol == NULL) return INVALID;
  sim_cuda_observe_function observe = NULL;
  memcpy(&observe, &symbol, sizeof observe);
  subscriber = callback;
  subscriber_data = data;
  *handle = &subscriber;
  observe(&observer);
  return OK;
}
API int cuptiUnsubscribe(void* handle) {
  if (handle != &subscriber) return INVALID;
  subscriber = NULL;
  return OK;
}
API int cuptiEnableCallback(uint32_t enable, void* handle, uint32_t domain, uint32_t id) {
  if (handle == &subscriber && domain == CUPTI_RESOURCE_DOMAIN && id == CUPTI_CONTEXT_CREATED) {
    watches_contexts = enable != 0;
    return OK;
  }
  if (handle != &subscriber || domain != CUPTI_DRIVER_DOMAIN || id >= SIM_CALL_COUNT)
    return INVALID;
  watched[id] = enable != 0;
  return OK;
}
API int cuptiGetCallbackName(uint32_t domain, uint32_t id, const char** name) {
  if (domain != CUPTI_DRIVER_DOMAIN || id == 0 || id >= SIM_CALL_COUNT) return INVALID;
  *name = names[id];
  return OK;
}
API int cuptiSetThreadIdType(uint32_t type) {
  return type == CUPTI_SYSTEM_THREAD_IDS ? OK : INVALID;
}
API int cuptiActivityRegisterTimestampCallback(uint64_t (*clock)(void)) {
  if (subscriber == NULL) return NOT_SUBSCRIBED;
  read_clock = clock; /* the simulated device has that clock already */
  return OK;
}
API int cuptiActivityRegisterCallbacks(void (*requested)(uint8_t**, size_t*, size_t*),
                                       void (*completed)(void*, uint32_t, uint8_t*, size_t,
                                                         size_t)) {
  if (subscriber == NULL) return NOT_SUBSCRIBED;
  request = requested;
  complete = completed;
  return OK;
}
API int cuptiActivityEnable(uint32_t kind) {
  if (subscriber == NULL || request == NULL || read_clock == NULL) return NOT_SUBSCRIBED;
  if (kind >= KINDS) return INVALID;
  if (kind == CUPTI_KIND_CONCURRENT_KERNEL && mode("refuses")) return NO_RIGHTS;
  enabled[kind] = 1;
  if (kind == CUPTI_KIND_CONCURRENT_KERNEL) blind = 0;
  return OK;
}
API int cuptiActivityDisable(uint32_t kind) {
  while (mode("hangs")) pause();
  if (kind >= KINDS) return INVALID;
  enabled[kind] = 0;
  return OK;
}
API int cuptiActivityGetNumDroppedRecords(void* context, uint32_t stream, size_t* dropped) {
  (void)context;
  (void)stream;
  pthread_mutex_lock(&lock);
  *dropped = mode("drops") ? 1 : lost;
  lost = 0;
  pthread_mutex_unlock(&lock);
  return OK;
}
API int cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, void** record) {
  uint8_t* next = buffer;
  if (*record != NULL) {
    uint32_t kind;
    memcpy(&kind, *record, sizeof kind);
    next = (uint8_t*)*record + size_of(kind);
  }
  if ((size_t)(next - buffer) >= valid) return NO_MORE_RECORDS;
  *record = next;
  return OK;
}

/* Fills one buffer with what has ended; 0 when nothing is left. */
static int fill(uint64_t now) {
  uint8_t* buffer = NULL;
  size_t size = 0, most = 0, used = 0, kept = 0;
  request(&buffer, &size, &most);
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < waiting_count; ++i) {
    const uint32_t kind = waiting[i].record.call.kind;
    if (waiting[i].end > now || (buffer != NULL && used + size_of(kind) > size)) {
      waiting[kept++] = waiting[i];
    } else if (buffer == NULL) {
      ++lost;
    } else {
      memset(buffer + used, 0xA5, size_of(kind)); /* not zeroed, as told */
      memcpy(buffer + used, &waiting[i].record, size_of(kind) - EXTRA);
      used += size_of(kind);
    }
  }
  waiting_count = kept;
  pthread_mutex_unlock(&lock);
  if (buffer != NULL) complete(NULL, 0, buffer, size, used);
  return used > 0;
}

API int cuptiActivityFlushAll(uint32_t forced) {
  if (request == NULL) return NOT_SUBSCRIBED;
  const uint64_t now = forced ? UINT64_MAX : read_clock();
  while (fill(now)) {
  }
  return OK;
}
