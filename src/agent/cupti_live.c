#include "agent/cupti_live.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/clock.h"
#include "agent/cupti_library.h"
#include "agent/cupti_records.h"
#include "agent/device_window.h"

#define MS UINT64_C(1000000)
#define FIRST_PAUSE_NS (100 * MS)
#define FIRST_WINDOW_NS (1000 * MS)
#define WINDOW_NS (2000 * MS)
/* A window that has so many ends: the busier the job, the shorter. */
#define ENOUGH_RECORDS 12000u
#define LOOK_NS (20 * MS)
#define LAST_WAIT_S 1    /* for the worker, when the job ends */
#define PAUSE_WINDOWS 3u /* the pause after a window, in windows; after the first ones 1 */
#define FIRST_WINDOWS 3u
#define MOST_IDLE 256u /* slices of idle times from one window */
#define SHORTEST_WAIT_NS 5000u
#define BUFFERS 16u
#define BUFFER_BYTES (1u << 20)
#define MOST_CALLS 2048u /* callback ids of a domain */
#define MOST_NAMES 1024u /* kernels whose use is remembered */

enum { ERROR_OUT_OF_MEMORY = 2 };

static struct cupti_api cupti;
static void* subscriber;
static pid_t process;
static pthread_t worker;
static int running;     /* the worker is to go on */
static int has_context; /* of the device: kernels may be recorded */

static uint8_t use_of_call[2][MOST_CALLS]; /* enum call_use, of driver and runtime */
static uint8_t blocking[2][MOST_CALLS];    /* of a copy */
static const char* name_of_call[2][MOST_CALLS];

static int (*ask_memory)(size_t*, size_t*); /* cuMemGetInfo */

/* Of this thread: how many of the watched calls it is in. */
static __thread uint32_t depth;

/* ---- records of a window ---- */

static struct device_window* window;
static pthread_mutex_t window_lock = PTHREAD_MUTEX_INITIALIZER; /* CUPTI has threads of its own */
static uint8_t* buffers;
static int buffer_used[BUFFERS];
static uint64_t dropped_records, taken_records;
static struct device_size device_sizes[DEVICE_WINDOW_DEVICES];

static struct {
  const char* name;
  uint8_t use;
} known_kernels[MOST_NAMES];

static enum device_use use_of_kernel(const char* name) {
  const size_t at = ((uintptr_t)name >> 4) % MOST_NAMES;
  if (known_kernels[at].name != name || name == NULL) {
    known_kernels[at].name = name;
    known_kernels[at].use = (uint8_t)device_use_of_kernel(name);
  }
  return known_kernels[at].use;
}

static void give_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  *most_records = 0;
  for (size_t i = 0; i < BUFFERS; ++i) {
    int unused = 0;
    if (!__atomic_compare_exchange_n(&buffer_used[i], &unused, 1, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
      continue;
    *buffer = buffers + i * BUFFER_BYTES;
    *size = BUFFER_BYTES;
    return;
  }
  *buffer = NULL; /* CUPTI drops what comes now, and counts it */
  *size = 0;
}

static void take_call(const struct cupti_event* e) {
  const int runtime = e->kind == CUPTI_KIND_RUNTIME;
  if (e->function >= MOST_CALLS) return;
  const struct device_call call = {.start = e->start,
                                   .end = e->end,
                                   .correlation = e->correlation,
                                   .thread = e->thread,
                                   .use = use_of_call[runtime][e->function]};
  device_window_add_call(window, &call);
}

static void take_op(const struct cupti_event* e) {
  struct device_op op = {.start = e->start,
                         .end = e->end,
                         .device = e->device,
                         .correlation = e->correlation,
                         .bytes = e->bytes,
                         .use = USE_OTHER_COPY,
                         .filled = 1};
  if (e->kind == CUPTI_KIND_CONCURRENT_KERNEL) {
    op.use = (uint8_t)use_of_kernel(e->name);
    const struct kernel_size size = {e->blocks, e->block_threads, e->registers, e->shared};
    if (e->device < DEVICE_WINDOW_DEVICES)
      op.filled = device_share_of(&device_sizes[e->device], &size);
  } else if (e->kind == CUPTI_KIND_GRAPH_TRACE) {
    op.use = USE_COMPUTE;
  } else if (e->kind == CUPTI_KIND_MEMCPY) {
    const char* const way = cupti_copy_name(e->copy_kind);
    if (strcmp(way, "HtoD") == 0) op.use = USE_FROM_HOST;
    if (strcmp(way, "DtoH") == 0) op.use = USE_TO_HOST;
    const uint8_t host = op.use == USE_FROM_HOST ? e->source_kind : e->target_kind;
    op.pageable = op.use != USE_OTHER_COPY && strcmp(cupti_memory_name(host), "Pageable") == 0;
  }
  device_window_add_op(window, &op);
}

static void take_buffer(void* context, uint32_t stream, uint8_t* buffer, size_t size,
                        size_t valid) {
  (void)size;
  /* Another's: who else in the process takes activity records has replaced our callbacks. */
  if (buffer < buffers || buffer >= buffers + (size_t)BUFFERS * BUFFER_BYTES) return;
  void* record = NULL;
  pthread_mutex_lock(&window_lock);
  while (valid > 0 && cupti.next_record(buffer, valid, &record) == CUPTI_OK) {
    struct cupti_event event;
    const size_t left = valid - (size_t)((uint8_t*)record - buffer);
    if (!cupti_read_record(record, left, &event)) continue;
    ++taken_records;
    if (event.kind == CUPTI_KIND_DRIVER || event.kind == CUPTI_KIND_RUNTIME) {
      take_call(&event);
    } else {
      take_op(&event);
    }
  }
  size_t lost = 0;
  if (cupti.dropped(context, stream, &lost) == CUPTI_OK) dropped_records += lost;
  pthread_mutex_unlock(&window_lock);
  __atomic_store_n(&buffer_used[(size_t)(buffer - buffers) / BUFFER_BYTES], 0, __ATOMIC_RELEASE);
}

/* ---- calls, in the job's threads ---- */

/* Bytes that a failed call had asked for; 0 where its arguments are not known to us. */
static uint64_t asked_bytes(const char* name, const void* params) {
  /* generated_cuda_meta.h, generated_cuda_runtime_api_meta.h: where the result goes, then the size.
   * A pitched allocation has its width there. */
  static const char* const plain[] = {"cuMemAlloc",
                                      "cuMemCreate",
                                      "cudaMalloc",
                                      "cuMemAllocAsync",
                                      "cudaMallocAsync",
                                      "cuMemAllocFromPoolAsync",
                                      "cudaMallocFromPoolAsync"};
  char short_name[96];
  cupti_plain_name(name, short_name, sizeof short_name);
  char* const mode = strstr(short_name, "_pt"); /* _ptsz, _ptds: another default stream */
  if (mode != NULL) *mode = 0;
  for (size_t i = 0; i < sizeof plain / sizeof plain[0]; ++i) {
    if (strcmp(short_name, plain[i]) != 0) continue;
    size_t bytes = 0;
    memcpy(&bytes, (const uint8_t*)params + sizeof(void*), sizeof bytes);
    return bytes;
  }
  return 0;
}

/* Errors of the device or its driver that no later call of the process recovers from, as CUresult
 * and cudaError_t number them alike. */
static int is_fatal(int result) {
  switch (result) {
    case 46:  /* devices unavailable */
    case 101: /* invalid device: it is gone */
    case 214: /* an ECC error that cannot be corrected */
    case 220: /* NVLink */
    case 226: /* contained */
    case 700: /* illegal address */
    case 702: /* timeout */
    case 719: /* launch failed */
    case 999: /* unknown: also of a device that fell off the bus */
      return 1;
    default:
      return 0;
  }
}

/* "2 cuMemAlloc_v2 8589934592 ...": the result, the call, the bytes that it asked for, when, and
 * what the context's device had free and in all then; 0 0 where that is not known. */
static void tell_failure(const char* key, int result, const char* name, uint64_t bytes,
                         int memory) {
  size_t left = 0, total = 0;
  char value[256];
  if (memory && ask_memory != NULL && ask_memory(&left, &total) != 0) left = total = 0;
  snprintf(value, sizeof value, "%d %s %" PRIu64 " %" PRIu64 " %zu %zu", result, name, bytes,
           now_ns(), left, total);
  flatout_agent_info(key, value);
}

static void on_result(const struct cupti_callback_data* data) {
  static int told_error;
  int result = 0;
  if (data->result == NULL) return;
  memcpy(&result, data->result, sizeof result);
  if (result == ERROR_OUT_OF_MEMORY) {
    tell_failure("cuda.out_of_memory", result, data->function,
                 asked_bytes(data->function, data->params), 1);
  } else if (is_fatal(result) && !__atomic_exchange_n(&told_error, 1, __ATOMIC_RELAXED)) {
    tell_failure("cuda.error", result, data->function, 0, 0);
  }
}

static void on_call(void* user, uint32_t domain, uint32_t id, const void* info) {
  (void)user;
  if (domain == CUPTI_RESOURCE_DOMAIN && id == CUPTI_CONTEXT_CREATED)
    __atomic_store_n(&has_context, 1, __ATOMIC_RELEASE);
  if ((domain != CUPTI_DRIVER_DOMAIN && domain != CUPTI_RUNTIME_DOMAIN) || id >= MOST_CALLS) return;
  const struct cupti_callback_data* const data = info;
  const int runtime = domain == CUPTI_RUNTIME_DOMAIN;
  if (data->site == 0) {
    /* The runtime's call holds the driver's: the outer one counts. */
    *data->shared = depth++ == 0 ? now_ns() : 0;
    return;
  }
  if (depth > 0) --depth;
  const uint64_t begin = *data->shared;
  const enum call_use use = use_of_call[runtime][id];
  if (begin == 0) return;
  on_result(data);
  const uint64_t end = now_ns();
  if (use == CALL_ALLOCATE || end - begin < SHORTEST_WAIT_NS) return;
  const char* const name = name_of_call[runtime][id];
  const int to_device = use == CALL_COPY && strstr(name, "HtoD") != NULL;
  flatout_agent_slice(to_device ? FLATOUT_SLICE_H2D : FLATOUT_SLICE_SYNC,
                      flatout_agent_intern(name), begin, end, 0, 0);
  const uint64_t spent = now_ns() - end;
  flatout_agent_cost(1, spent, spent, 0);
}

/* ---- windows, in the worker ---- */

static void rest(uint64_t ns) {
  struct timespec left = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

/* Until the job ends, or nobody listens any more. */
static int goes_on(void) {
  return __atomic_load_n(&running, __ATOMIC_ACQUIRE) && flatout_agent_active();
}

/* In small pieces, so that the job's end does not wait for it. */
static void pause_for(uint64_t ns) {
  const uint64_t until = now_ns() + ns;
  while (goes_on() && now_ns() < until) rest(LOOK_NS);
}

static void learn_devices(void) {
  /* CUdevice_attribute; the last three of a multiprocessor */
  enum { MULTIPROCESSORS = 16, THREADS = 39, SHARED = 81, REGISTERS = 82 };
  int (*count)(int*) = NULL;
  int (*attribute)(int*, int, int) = NULL;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == NULL) return;
  void* symbol = dlsym(driver, "cuDeviceGetCount");
  memcpy(&count, &symbol, sizeof count);
  symbol = dlsym(driver, "cuDeviceGetAttribute");
  memcpy(&attribute, &symbol, sizeof attribute);
  int devices = 0;
  if (count == NULL || attribute == NULL || count(&devices) != 0) return;
  for (int i = 0; i < devices && i < (int)DEVICE_WINDOW_DEVICES; ++i) {
    static const int wanted[] = {MULTIPROCESSORS, THREADS, REGISTERS, SHARED};
    int value[] = {0, 0, 0, 0};
    for (size_t k = 0; k < sizeof wanted / sizeof wanted[0]; ++k)
      if (attribute(&value[k], wanted[k], i) != 0 || value[k] < 0) value[k] = 0;
    const struct device_size size = {(uint32_t)value[0], (uint32_t)value[1], (uint32_t)value[2],
                                     (uint32_t)value[3]};
    pthread_mutex_lock(&window_lock);
    device_sizes[i] = size;
    pthread_mutex_unlock(&window_lock);
  }
}

struct idle_times {
  uint32_t told;
};

static void tell_idle(void* context, uint32_t device, enum flatout_idle_cause cause, uint64_t begin,
                      uint64_t end) {
  struct idle_times* const times = context;
  if (times->told++ < MOST_IDLE)
    flatout_agent_slice(FLATOUT_SLICE_DEVICE_IDLE, 0, begin, end, device, cause);
}

static const uint32_t kinds[] = {CUPTI_KIND_CONCURRENT_KERNEL, CUPTI_KIND_MEMCPY,
                                 CUPTI_KIND_MEMCPY2,           CUPTI_KIND_MEMSET,
                                 CUPTI_KIND_RUNTIME,           CUPTI_KIND_DRIVER};

/* "on", or why nothing is told; each state once, as it changes. */
static void tell_state(const char* state) {
  static const char* told;
  if (told != NULL && strcmp(told, state) == 0) return;
  told = state;
  flatout_agent_info("cuda.live", state);
}

/* Records kernels from when there is a context. One that is made while they are being recorded may
 * leave none: seen on an H200 with CUDA 13, in one of five runs, with all other records there. */
static void wait_for_context(void) {
  while (goes_on() && !__atomic_load_n(&has_context, __ATOMIC_ACQUIRE)) rest(LOOK_NS);
  pause_for(FIRST_PAUSE_NS);
}

static void send_window(uint64_t end) {
  static struct flatout_device devices[DEVICE_WINDOW_DEVICES];
  static int any_sent;
  struct idle_times times = {0};
  pthread_mutex_lock(&window_lock);
  device_window_miss(window, dropped_records + device_window_lacks_kernels(window));
  dropped_records = 0;
  const int has_holes = window->has_holes;
  const size_t count = device_window_read(window, end, devices, tell_idle, &times);
  device_window_clear(window, UINT64_MAX); /* what is late belongs to none */
  pthread_mutex_unlock(&window_lock);
  for (size_t i = 0; i < count; ++i) agent_send_device(&devices[i]);
  any_sent = any_sent || count > 0;
  if (any_sent || has_holes) tell_state(any_sent ? "on" : "CUPTI drops records of this job");
}

/* Whether kernels are recorded: without them a device that works looks idle. */
static int enable_kinds(void) {
  static char why[64];
  const int result = cupti.enable(kinds[0]);
  if (result != CUPTI_OK) {
    snprintf(why, sizeof why, "CUPTI records no kernels (error %d)", result);
    tell_state(why);
    return 0;
  }
  for (size_t i = 1; i < sizeof kinds / sizeof kinds[0]; ++i) cupti.enable(kinds[i]);
  return 1;
}

/* The time that it took, or would have. */
static uint64_t record_window(uint64_t longest) {
  pthread_mutex_lock(&window_lock);
  taken_records = 0;
  pthread_mutex_unlock(&window_lock);
  if (!enable_kinds()) return longest;
  const uint64_t begin = now_ns();
  pthread_mutex_lock(&window_lock);
  device_window_clear(window, begin);
  pthread_mutex_unlock(&window_lock);
  int enough = 0;
  while (goes_on() && !enough && now_ns() - begin < longest) {
    rest(LOOK_NS);
    cupti.flush_all(0);
    pthread_mutex_lock(&window_lock);
    enough = taken_records >= ENOUGH_RECORDS;
    pthread_mutex_unlock(&window_lock);
  }
  const uint64_t end = now_ns();
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) cupti.disable(kinds[i]);
  cupti.flush_all(0);
  send_window(end);
  return now_ns() - begin;
}

static void* work(void* unused) {
  (void)unused;
  prctl(PR_SET_NAME, "flatout-cuda");
  wait_for_context();
  for (uint32_t n = 0; goes_on(); ++n) {
    if (device_sizes[0].threads == 0) learn_devices(); /* the driver may still start at first */
    const uint64_t took = record_window(n == 0 ? FIRST_WINDOW_NS : WINDOW_NS);
    pause_for(took * (n < FIRST_WINDOWS ? 1 : PAUSE_WINDOWS));
  }
  return NULL;
}

static void let_go(void) {
  cupti.unsubscribe(subscriber);
  subscriber = NULL;
}

static void stop(void) {
  /* A child that a fork left behind has neither the worker nor, maybe, CUPTI's locks. */
  if (subscriber == NULL || process != getpid()) return;
  __atomic_store_n(&running, 0, __ATOMIC_RELEASE);
  /* CUPTI may wait for a device that hangs: the job's end does not wait for that. */
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += LAST_WAIT_S;
  if (pthread_timedjoin_np(worker, NULL, &until) != 0) return;
  let_go();
}

/* ---- start ---- */

static int reserve(void) {
  void* const memory = mmap(NULL, sizeof *window + (size_t)BUFFERS * BUFFER_BYTES,
                            PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
  buffers = memory;
  window = (struct device_window*)(buffers + (size_t)BUFFERS * BUFFER_BYTES);
  device_window_clear(window, UINT64_MAX);
  return 1;
}

static void find_memory_call(void) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* const symbol = driver != NULL ? dlsym(driver, "cuMemGetInfo_v2") : NULL;
  memcpy(&ask_memory, &symbol, sizeof ask_memory);
}

/* Ids of calls differ between versions: they are found by their names. */
static void learn_calls(void) {
  for (int runtime = 0; runtime < 2; ++runtime) {
    const uint32_t domain = runtime ? CUPTI_RUNTIME_DOMAIN : CUPTI_DRIVER_DOMAIN;
    for (uint32_t id = 1; id < MOST_CALLS; ++id) {
      const char* name = NULL;
      if (cupti.callback_name(domain, id, &name) != CUPTI_OK || name == NULL) continue;
      name_of_call[runtime][id] = name;
      use_of_call[runtime][id] = (uint8_t)call_use_of(name);
      blocking[runtime][id] = use_of_call[runtime][id] == CALL_COPY && call_blocks(name);
    }
  }
}

static void watch_calls(void) {
  if (cupti.enable_callback == NULL || cupti.enable_callback(1, subscriber, CUPTI_RESOURCE_DOMAIN,
                                                             CUPTI_CONTEXT_CREATED) != CUPTI_OK)
    has_context = 1; /* that is not told here */
  for (uint32_t runtime = 0; runtime < 2 && cupti.enable_callback != NULL; ++runtime) {
    for (uint32_t id = 1; id < MOST_CALLS; ++id) {
      const uint8_t use = use_of_call[runtime][id];
      if (use == CALL_SYNC || use == CALL_ALLOCATE || blocking[runtime][id])
        cupti.enable_callback(1, subscriber, runtime ? CUPTI_RUNTIME_DOMAIN : CUPTI_DRIVER_DOMAIN,
                              id);
    }
  }
}

static int start_worker(void) {
  sigset_t all, before;
  sigfillset(&all);
  running = 1;
  pthread_sigmask(SIG_SETMASK, &all, &before); /* the job's signals are not for it */
  const int failed = pthread_create(&worker, NULL, work, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return !failed;
}

void cupti_live_start(void) {
  if (!flatout_agent_start(FLATOUT_AGENT_NATIVE)) return;
  const char* const why = cupti_open(&cupti, &subscriber, on_call);
  if (why != NULL) {
    tell_state(why);
    return;
  }
  if (!reserve() || cupti.register_clock(now_ns) != CUPTI_OK ||
      cupti.register_callbacks(give_buffer, take_buffer) != CUPTI_OK) {
    let_go();
    tell_state("CUPTI takes no callbacks");
    return;
  }
  if (cupti.thread_ids != NULL) cupti.thread_ids(CUPTI_SYSTEM_THREAD_IDS);
  find_memory_call();
  learn_calls();
  watch_calls();
  process = getpid();
  tell_state("on");
  if (!start_worker()) {
    let_go();
    tell_state("no thread could be started for it");
    return;
  }
  atexit(stop);
}
