/* Records NVTX ranges: loaded by the NVTX headers that are built into a program or library where
 * NVTX_INJECTION64_PATH names this library and FLATOUT_CUDA_TRACE a file to write. Needs neither a
 * GPU nor CUDA. Pushed and popped ranges are slices of their thread, started and ended ones of a
 * track of their own; marks, colours and payloads are left out.
 *
 * Layouts and numbers: nvtxDetail/nvtxTypes.h and nvToolsExt.h of NVTX 3, whose ABI is fixed. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/clock.h"
#include "agent/event_file.h"

#define CALLBACKS_TABLE 1u
#define MODULE_CORE 1
#define MODULE_CORE2 5
#define DEEPEST 64
#define LONGEST 128 /* bytes of a name that are kept */
#define MOST_STARTED 4096u
#define MESSAGE_ASCII 1
#define MESSAGE_REGISTERED 3

enum {
  CORE_RANGE_START_EX = 4,
  CORE_RANGE_START = 5,
  CORE_RANGE_END = 7,
  CORE_PUSH_EX = 8,
  CORE_PUSH = 9,
  CORE_POP = 11
};
enum {
  CORE2_RANGE_START = 2,
  CORE2_RANGE_END = 3,
  CORE2_PUSH = 4,
  CORE2_POP = 5,
  CORE2_REGISTER_STRING = 10,
  CORE2_CREATE_DOMAIN = 12,
};

typedef void (*function)(void);
struct callbacks_table { /* NvtxExportTableCallbacks */
  size_t size;
  int (*get_module)(int module, function*** table, unsigned* size);
};
struct attributes { /* nvtxEventAttributes_v2 */
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const void* message;
};

struct range {
  uint64_t begin_ns;
  char name[LONGEST];
};
static __thread struct range stack[DEEPEST];
static __thread int depth; /* may be more than the stack holds: deeper ranges are not recorded */
static __thread int64_t thread_id;

static struct {
  int taken;
  struct range range;
} started[MOST_STARTED];
static uint32_t next_started;

static void copy_name(struct range* to, const char* name) {
  snprintf(to->name, sizeof to->name, "%s", name != NULL ? name : "(no name)");
  to->begin_ns = now_ns();
}

static const char* name_of(const struct attributes* a) {
  if (a == NULL || a->size < sizeof *a) return NULL;
  /* A registered string is what register_string gave. */
  return a->message_type == MESSAGE_ASCII || a->message_type == MESSAGE_REGISTERED ? a->message
                                                                                   : NULL;
}

static int push(const char* name) {
  if (depth < DEEPEST) copy_name(&stack[depth], name);
  return depth++;
}

static int pop(void) {
  if (depth == 0) return -1;
  --depth;
  if (depth < DEEPEST) {
    if (thread_id == 0) thread_id = syscall(SYS_gettid);
    event_file_slice("nvtx", stack[depth].name, getpid(), thread_id, stack[depth].begin_ns,
                     now_ns(), "");
  }
  return depth;
}

/* An id, not 0; 0 where too many are open. */
static uint64_t start(const char* name) {
  for (uint32_t tries = 0; tries < MOST_STARTED; ++tries) {
    const uint32_t i = __atomic_fetch_add(&next_started, 1, __ATOMIC_RELAXED) % MOST_STARTED;
    int is_free = 0;
    if (!__atomic_compare_exchange_n(&started[i].taken, &is_free, 1, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
      continue;
    copy_name(&started[i].range, name);
    return i + 1;
  }
  return 0;
}

static void end(uint64_t id) {
  if (id == 0 || id > MOST_STARTED || !__atomic_load_n(&started[id - 1].taken, __ATOMIC_ACQUIRE))
    return;
  const struct range* const r = &started[id - 1].range;
  event_file_slice("nvtx", r->name, getpid(), -(int64_t)id, r->begin_ns, now_ns(), "");
  __atomic_store_n(&started[id - 1].taken, 0, __ATOMIC_RELEASE);
}

static int push_ex(const struct attributes* a) { return push(name_of(a)); }
static uint64_t start_ex(const struct attributes* a) { return start(name_of(a)); }
static int domain_push(void* domain, const struct attributes* a) {
  (void)domain;
  return push(name_of(a));
}
static int domain_pop(void* domain) {
  (void)domain;
  return pop();
}
static uint64_t domain_start(void* domain, const struct attributes* a) {
  (void)domain;
  return start(name_of(a));
}
static void domain_end(void* domain, uint64_t id) {
  (void)domain;
  end(id);
}
/* Handles live as long as the process. */
static void* register_string(void* domain, const char* text) {
  (void)domain;
  return strdup(text != NULL ? text : "");
}
static void* create_domain(const char* name) { return strdup(name != NULL ? name : ""); }

static void put(function** table, unsigned size, unsigned at, function f) {
  if (at < size && table[at] != NULL) *table[at] = f;
}
#define PUT(at, f) put(table, size, at, (function)(f))

/* NVTX calls this at its first use. 1: the functions are in place. */
FLATOUT_EXPORT int InitializeInjectionNvtx2(const void* (*get_table)(uint32_t id)) {
  if (!event_file_open()) return 0;
  const struct callbacks_table* const callbacks =
      get_table != NULL ? get_table(CALLBACKS_TABLE) : NULL;
  if (callbacks == NULL || callbacks->size < sizeof *callbacks || callbacks->get_module == NULL)
    return 0;
  function** table = NULL;
  unsigned size = 0;
  if (callbacks->get_module(MODULE_CORE, &table, &size) && table != NULL) {
    PUT(CORE_RANGE_START_EX, start_ex);
    PUT(CORE_RANGE_START, start);
    PUT(CORE_RANGE_END, end);
    PUT(CORE_PUSH_EX, push_ex);
    PUT(CORE_PUSH, push);
    PUT(CORE_POP, pop);
  }
  if (callbacks->get_module(MODULE_CORE2, &table, &size) && table != NULL) {
    PUT(CORE2_RANGE_START, domain_start);
    PUT(CORE2_RANGE_END, domain_end);
    PUT(CORE2_PUSH, domain_push);
    PUT(CORE2_POP, domain_pop);
    PUT(CORE2_REGISTER_STRING, register_string);
    PUT(CORE2_CREATE_DOMAIN, create_domain);
  }
  return 1;
}
