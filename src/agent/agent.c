/* libflatout_agent.so; see agent.h for the contract and docs/architecture.md, "Process model".
 *
 * One process-wide state, changed by compare-and-swap only, so that a signal or a fork at any
 * moment leaves nothing locked: who cannot have it now loses its packet. */
#include "agent/agent.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/clock.h"
#include "agent/connection.h"
#include "agent/interruption.h"
#include "agent/python_calls.h"
#include "agent/strings.h"
#include "wire/ring.h"

/* Of what is hot (agent.h) all code lies in one page and all data in another: to find a page in a
 * virtual machine takes as long as all that a hook does there. This file comes first. */
__asm__(
    ".pushsection .text.hot, \"ax\", @progbits\n .p2align 12\n"
    " .globl flatout_hot_code\n .hidden flatout_hot_code\nflatout_hot_code:\n .popsection\n"
    ".pushsection flatout_hot, \"aw\", @progbits\n .p2align 11\n .popsection\n");

#define WAIT_MS 200 /* for the recorder's answer; then packets are lost until it comes */
#define COST_PERIOD_NS 1000000000u
#define LONGEST_INFO 32768u

enum state {
  STATE_IDLE,
  STATE_CHANGING, /* one thread is connecting */
  STATE_WAITING,  /* Hello is sent, Config has not come yet */
  STATE_READY,
  STATE_FORKED, /* a child that has not said Hello yet */
  STATE_OFF,
};

FLATOUT_HOT_DATA static int state = STATE_IDLE;
FLATOUT_HOT_DATA static struct connection connection = {0};
static char socket_name[108];
static uint32_t agent_kind;
FLATOUT_HOT_DATA static uint32_t process_id = 0;
FLATOUT_HOT_DATA static uint32_t generation =
    1; /* counts forks: cached thread ids and sent strings end with it */
static uint64_t last_step_end;

/* By kind of slice: the way to such a hook and back. */
#define KINDS 32u
FLATOUT_HOT_DATA static uint32_t overhead_ns[KINDS] = {0};
FLATOUT_HOT_DATA static struct flatout_cost cost = {0};
FLATOUT_HOT_DATA static uint64_t last_cost_ns = 0;

static __thread uint32_t thread_id, thread_generation;

static int change_state(int from, int to) {
  return __atomic_compare_exchange_n(&state, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void set_state(int to) { __atomic_store_n(&state, to, __ATOMIC_RELEASE); }

static uint32_t this_thread(void) {
  const uint32_t now = __atomic_load_n(&generation, __ATOMIC_RELAXED);
  if (thread_generation != now) {
    thread_id = (uint32_t)syscall(SYS_gettid);
    thread_generation = now;
  }
  return thread_id;
}

/* ---- connecting ---- */

/* Of the thread that owns the held slices (below): another may get its pthread_self() when it ends.
 */
static pthread_key_t held_key;
FLATOUT_HOT_DATA static int held_key_made = 0;
static void owner_ends(void* unused);
static void forget_held(void);

static void after_fork_in_child(void) {
  forget_held();
  const int now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
  if (now == STATE_IDLE || now == STATE_OFF) return;
  connection_drop(&connection);
  memset(&cost, 0, sizeof cost);
  last_step_end = 0;
  python_calls_after_fork();
  ++generation;
  set_state(STATE_FORKED);
}

static void settle(enum connection_state answer) {
  if (answer == CONNECTION_READY) {
    set_state(STATE_READY);
  } else {
    set_state(answer == CONNECTION_WAITING ? STATE_WAITING : STATE_OFF);
  }
}

/* In STATE_CHANGING, which is ours. */
static void connect_now(void) {
  process_id = (uint32_t)getpid();
  clock_adjust();
  __atomic_store_n(&last_cost_ns, now_ns(), __ATOMIC_RELAXED);
  if (!connection_open(&connection, socket_name, agent_kind)) {
    set_state(STATE_OFF);
    return;
  }
  settle(connection_poll(&connection, WAIT_MS));
}

int flatout_agent_start(uint32_t kind) {
  if (change_state(STATE_IDLE, STATE_CHANGING)) {
    const char* name = getenv("FLATOUT_SOCKET");
    if (name == NULL || *name == 0 || strlen(name) >= sizeof socket_name) {
      set_state(STATE_OFF);
    } else {
      strcpy(socket_name, name);
      agent_kind = kind;
      interruption_find();
      pthread_atfork(NULL, NULL, after_fork_in_child);
      held_key_made = pthread_key_create(&held_key, owner_ends) == 0;
      connect_now();
    }
  } else if (change_state(STATE_FORKED, STATE_CHANGING)) {
    connect_now();
  } else if (change_state(STATE_WAITING, STATE_CHANGING)) {
    settle(connection_poll(&connection, WAIT_MS));
  }
  return flatout_agent_active() != 0;
}

int flatout_agent_active(void) {
  const int now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
  if (now == STATE_READY) return 2;
  return now != STATE_IDLE && now != STATE_OFF;
}

void flatout_agent_stop(void) { set_state(STATE_OFF); }

/* The ring to write to, or NULL. */
FLATOUT_HOT static struct flatout_ring* current_ring(uint32_t slice_kind) {
  int now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
  if (now == STATE_READY) return connection.ring;
  if (now == STATE_FORKED) {
    /* The collector runs in every child; only a hook that the job meant makes it worth a ring. */
    if (slice_kind == FLATOUT_SLICE_GC || !change_state(STATE_FORKED, STATE_CHANGING)) return NULL;
    connect_now();
  } else if (now == STATE_WAITING) {
    if (!change_state(STATE_WAITING, STATE_CHANGING)) return NULL;
    settle(connection_poll(&connection, 0));
  }
  now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
  return now == STATE_READY ? connection.ring : NULL;
}

/* ---- packets ---- */

FLATOUT_HOT static struct flatout_packet header_of(uint16_t type, uint32_t tid, uint64_t time_ns) {
  struct flatout_packet header;
  memset(&header, 0, sizeof header);
  header.type = type;
  header.pid = process_id;
  header.tid = tid;
  header.time_ns = time_ns;
  return header;
}

static int send_packet(struct flatout_ring* ring, uint16_t type, const void* payload, size_t size,
                       const void* tail, size_t tail_size) {
  const struct flatout_packet header = header_of(type, this_thread(), now_ns());
  return flatout_ring_write(ring, &header, payload, size, tail, tail_size);
}

static void send_string(struct flatout_ring* ring, uint32_t id) {
  if (!strings_need_sending(id, __atomic_load_n(&generation, __ATOMIC_RELAXED))) return;
  const char* text = strings_text(id);
  if (text == NULL) return;
  const struct flatout_string payload = {.id = id, .size = (uint32_t)strlen(text)};
  if (!send_packet(ring, FLATOUT_PACKET_STRING, &payload, sizeof payload, text, payload.size))
    strings_not_sent(id);
}

static void send_slice(struct flatout_ring* ring, uint32_t kind, uint32_t name, uint64_t begin_ns,
                       uint64_t end_ns, int64_t value, int64_t value2) {
  if (name != 0) send_string(ring, name);
  if (end_ns == 0) end_ns = now_ns();
  if (kind == FLATOUT_SLICE_STEP && begin_ns == 0) {
    begin_ns = __atomic_exchange_n(&last_step_end, end_ns, __ATOMIC_RELAXED);
    if (begin_ns == 0) begin_ns = end_ns;
  }
  if (begin_ns > end_ns) begin_ns = end_ns;
  const struct flatout_slice slice = {.begin_ns = begin_ns,
                                      .end_ns = end_ns,
                                      .kind = kind,
                                      .name = name,
                                      .value = value,
                                      .value2 = value2};
  send_packet(ring, FLATOUT_PACKET_SLICE, &slice, sizeof slice, NULL, 0);
}

static void send_cost(struct flatout_ring* ring) {
  const struct flatout_cost payload = {
      .hooks = __atomic_exchange_n(&cost.hooks, 0, __ATOMIC_RELAXED),
      .sum_ns = __atomic_exchange_n(&cost.sum_ns, 0, __ATOMIC_RELAXED),
      .max_ns = __atomic_exchange_n(&cost.max_ns, 0, __ATOMIC_RELAXED),
      .steps = __atomic_exchange_n(&cost.steps, 0, __ATOMIC_RELAXED),
      .interrupted = __atomic_exchange_n(&cost.interrupted, 0, __ATOMIC_RELAXED),
      .interrupted_ns = __atomic_exchange_n(&cost.interrupted_ns, 0, __ATOMIC_RELAXED)};
  if (payload.hooks != 0) send_packet(ring, FLATOUT_PACKET_COST, &payload, sizeof payload, NULL, 0);
}

/* About once a second, by whichever thread comes by: what we cost, and is anybody still there? */
FLATOUT_HOT static void housekeeping(struct flatout_ring* ring, uint64_t now) {
  uint64_t last = __atomic_load_n(&last_cost_ns, __ATOMIC_RELAXED);
  if (now - last < COST_PERIOD_NS || now < last) return;
  if (!__atomic_compare_exchange_n(&last_cost_ns, &last, now, 0, __ATOMIC_RELAXED,
                                   __ATOMIC_RELAXED))
    return;
  if (connection_lost(&connection)) {
    change_state(STATE_READY, STATE_OFF); /* the ring stays mapped: others may be writing to it */
    return;
  }
  clock_adjust();
  send_cost(ring);
}

FLATOUT_HOT static void add_cost(const struct flatout_cost* more) {
  __atomic_fetch_add(&cost.hooks, more->hooks, __ATOMIC_RELAXED);
  __atomic_fetch_add(&cost.sum_ns, more->sum_ns, __ATOMIC_RELAXED);
  __atomic_fetch_add(&cost.steps, more->steps, __ATOMIC_RELAXED);
  if (more->interrupted != 0) {
    __atomic_fetch_add(&cost.interrupted, more->interrupted, __ATOMIC_RELAXED);
    __atomic_fetch_add(&cost.interrupted_ns, more->interrupted_ns, __ATOMIC_RELAXED);
  }
  uint64_t most = __atomic_load_n(&cost.max_ns, __ATOMIC_RELAXED);
  while (more->max_ns > most && !__atomic_compare_exchange_n(&cost.max_ns, &most, more->max_ns, 0,
                                                             __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

/* Of one hook that took so long. */
FLATOUT_HOT static void count_hook(struct flatout_cost* sum, uint64_t spent, int interrupted) {
  ++sum->hooks;
  if (interrupted) {
    ++sum->interrupted;
    sum->interrupted_ns += spent;
    return;
  }
  sum->sum_ns += spent;
  if (spent > sum->max_ns) sum->max_ns = spent;
}

FLATOUT_HOT void flatout_agent_cost(uint64_t hooks, uint64_t sum_ns, uint64_t max_ns,
                                    uint64_t steps) {
  const struct flatout_cost more = {
      .hooks = hooks, .sum_ns = sum_ns, .max_ns = max_ns, .steps = steps};
  add_cost(&more);
}

FLATOUT_HOT void agent_watched_cost(uint64_t spent_ns) {
  struct flatout_cost one = {0};
  count_hook(&one, spent_ns, interruption_seen());
  add_cost(&one);
}

FLATOUT_HOT uint64_t flatout_agent_overhead(uint32_t kind, uint64_t ns) {
  uint32_t* const of_kind = &overhead_ns[kind % KINDS];
  if (ns != 0) __atomic_store_n(of_kind, (uint32_t)ns, __ATOMIC_RELAXED);
  return __atomic_load_n(of_kind, __ATOMIC_RELAXED);
}

uint32_t flatout_agent_intern(const char* text) { return strings_intern(text); }

void flatout_agent_slice(uint32_t kind, uint32_t name_id, uint64_t begin_ns, uint64_t end_ns,
                         int64_t value, int64_t value2) {
  struct flatout_ring* ring = current_ring(kind);
  if (ring != NULL) send_slice(ring, kind, name_id, begin_ns, end_ns, value, value2);
}

/* The slices of the training thread wait here until its step ends: written one after the other they
 * cost a fraction of what each would by itself. The first thread that ends a step owns it as long
 * as it lives, so that it needs no lock. */
#define MOST_HELD 8u
#define LONGEST_HELD_NS 50000000u
FLATOUT_HOT_DATA static struct {
  uint64_t owner; /* pthread_self(); 0: nobody yet, or it has ended */
  uint32_t count;
  uint32_t tid;
  struct flatout_cost cost; /* theirs, and of those before them in this step */
  struct flatout_slice slices[MOST_HELD];
} held = {0};

static void send_held(struct flatout_ring* ring);

static void owner_ends(void* unused) {
  (void)unused;
  if (held.owner != flatout_thread_self()) return;
  struct flatout_ring* ring = current_ring(FLATOUT_SLICE_GC);
  if (ring != NULL) send_held(ring);
  held.count = 0;
  __atomic_store_n(&held.owner, 0, __ATOMIC_RELEASE);
}

static void forget_held(void) {
  held.owner = 0;
  held.count = 0;
  held.cost = (struct flatout_cost){0};
}

FLATOUT_HOT static void send_held(struct flatout_ring* ring) {
  const uint32_t count = held.count;
  if (count == 0) return;
  for (uint32_t i = 0; i < count; ++i) {
    if (held.slices[i].name != 0) send_string(ring, held.slices[i].name);
  }
  const struct flatout_packet header =
      header_of(FLATOUT_PACKET_SLICE, held.tid, held.slices[count - 1].end_ns);
  flatout_ring_write_many(ring, &header, held.slices, sizeof held.slices[0], count);
  held.count = 0;
}

/* The ring, where it was time to send what was held. */
FLATOUT_HOT static struct flatout_ring* hold(const struct flatout_slice* slice) {
  held.slices[held.count++] = *slice;
  if (slice->kind != FLATOUT_SLICE_OPTIMIZER && held.count != MOST_HELD &&
      slice->end_ns - held.slices[0].begin_ns <= LONGEST_HELD_NS)
    return NULL;
  struct flatout_ring* ring = current_ring(slice->kind);
  if (ring != NULL) send_held(ring);
  held.count = 0;
  return ring;
}

FLATOUT_HOT void agent_later_slice(uint32_t kind, uint64_t begin_ns, uint64_t end_ns,
                                   int64_t value) {
  if (__atomic_load_n(&held.owner, __ATOMIC_RELAXED) != flatout_thread_self()) {
    flatout_agent_slice(kind, 0, begin_ns, end_ns, value, 0);
    return;
  }
  const struct flatout_slice slice = {
      .begin_ns = begin_ns, .end_ns = end_ns, .kind = kind, .value = value};
  hold(&slice);
}

FLATOUT_HOT static void hold_hook(uint32_t kind, uint32_t name_id, uint64_t begin_ns,
                                  uint64_t end_ns, int64_t value, int64_t value2, int watched) {
  const struct flatout_slice slice = {.begin_ns = begin_ns < end_ns ? begin_ns : end_ns,
                                      .end_ns = end_ns,
                                      .kind = kind,
                                      .name = name_id,
                                      .value = value,
                                      .value2 = value2};
  struct flatout_ring* ring = hold(&slice);
  const uint64_t now = now_ns();
  const uint64_t spent = now - end_ns + flatout_agent_overhead(kind, 0);
  count_hook(&held.cost, spent, watched && interruption_seen());
  if (ring == NULL) return;
  held.cost.steps = kind == FLATOUT_SLICE_OPTIMIZER;
  add_cost(&held.cost);
  held.cost = (struct flatout_cost){0};
  housekeeping(ring, now);
}

FLATOUT_HOT static void hook(uint32_t kind, uint32_t name_id, uint64_t begin_ns, uint64_t end_ns,
                             int64_t value, int64_t value2, int watched) {
  const uint64_t me = flatout_thread_self();
  if (__atomic_load_n(&held.owner, __ATOMIC_RELAXED) == me) {
    hold_hook(kind, name_id, begin_ns, end_ns, value, value2, watched);
    return;
  }
  struct flatout_ring* ring = current_ring(kind);
  if (ring == NULL) return;
  send_slice(ring, kind, name_id, begin_ns, end_ns, value, value2);
  const uint64_t now = now_ns();
  struct flatout_cost one = {.steps = kind == FLATOUT_SLICE_OPTIMIZER};
  count_hook(&one, now - end_ns + flatout_agent_overhead(kind, 0), watched && interruption_seen());
  add_cost(&one);
  housekeeping(ring, now);
  uint64_t nobody = 0;
  if (kind == FLATOUT_SLICE_OPTIMIZER && held_key_made &&
      __atomic_compare_exchange_n(&held.owner, &nobody, me, 0, __ATOMIC_ACQUIRE,
                                  __ATOMIC_RELAXED)) {
    held.tid = this_thread();
    pthread_setspecific(held_key, &held);
  }
}

FLATOUT_HOT void flatout_agent_hook(uint32_t kind, uint32_t name_id, uint64_t begin_ns,
                                    uint64_t end_ns, int64_t value, int64_t value2) {
  hook(kind, name_id, begin_ns, end_ns, value, value2, 0);
}

FLATOUT_HOT void agent_watched_hook(uint32_t kind, uint32_t name_id, uint64_t begin_ns,
                                    uint64_t end_ns, int64_t value, int64_t value2) {
  hook(kind, name_id, begin_ns, end_ns, value, value2, 1);
}

void flatout_agent_mark(uint32_t kind, const char* name, uint64_t begin_ns, uint64_t end_ns,
                        int64_t value, int64_t value2) {
  if (__atomic_load_n(&state, __ATOMIC_RELAXED) == STATE_IDLE)
    flatout_agent_start(FLATOUT_AGENT_NATIVE);
  const uint64_t end = end_ns != 0 ? end_ns : now_ns();
  struct flatout_ring* ring = current_ring(kind);
  if (ring == NULL) return;
  send_slice(ring, kind, strings_intern(name), begin_ns, end, value, value2);
  const uint64_t now = now_ns();
  if (end_ns == 0) flatout_agent_cost(1, now - end, now - end, kind == FLATOUT_SLICE_STEP);
  housekeeping(ring, now);
}

void flatout_agent_count(const char* name, double value) {
  if (__atomic_load_n(&state, __ATOMIC_RELAXED) == STATE_IDLE)
    flatout_agent_start(FLATOUT_AGENT_NATIVE);
  struct flatout_ring* ring = current_ring(0);
  if (ring == NULL) return;
  const struct flatout_counter counter = {.name = strings_intern(name), .value = value};
  send_string(ring, counter.name);
  send_packet(ring, FLATOUT_PACKET_COUNTER, &counter, sizeof counter, NULL, 0);
}

void agent_send_device(const struct flatout_device* window) {
  struct flatout_ring* ring = current_ring(0);
  if (ring == NULL) return;
  send_packet(ring, FLATOUT_PACKET_DEVICE, window, sizeof *window, NULL, 0);
  housekeeping(ring, now_ns());
}

void flatout_agent_info(const char* key, const char* value) {
  struct flatout_ring* ring = current_ring(0);
  if (ring == NULL || key == NULL || value == NULL) return;
  send_packet(ring, FLATOUT_PACKET_INFO, key, strnlen(key, 255) + 1, value,
              strnlen(value, LONGEST_INFO));
}

__attribute__((destructor)) static void at_exit(void) {
  if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) != STATE_READY) return;
  send_held(connection.ring);
  add_cost(&held.cost);
  send_cost(connection.ring);
}
