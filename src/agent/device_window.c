#include "agent/device_window.h"

#include <stdlib.h>
#include <string.h>

#define SHORT_NS 1000000u       /* a wait for a launch that is shorter is one of many */
#define MANY_LAUNCHES 16u       /* before a copy that was recorded: some of them have ended, too */
#define MOST_BACK 64u           /* calls before a launch that are looked at */
#define ROUND_TRIP_BYTES 65536u /* less than that is a loss or a count, no data to work on */

/* ---- names ---- */

static int has_any(const char* name, const char* const* parts, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (strstr(name, parts[i]) != NULL) return 1;
  return 0;
}
#define HAS(name, parts) has_any(name, parts, sizeof(parts) / sizeof(parts)[0])

enum device_use device_use_of_kernel(const char* name) {
  static const char* const norms[] = {"batch_norm", "bn_fw", "bn_bw", "BatchNorm"};
  static const char* const follows[] = {"threshold", "clamp_scalar", "clamp_min", "CUDAFunctor_add",
                                        "AddFunctor"};
  static const char* const collectives[] = {"ncclDevKernel", "ncclKernel"};
  if (name == NULL) return USE_COMPUTE;
  if (HAS(name, collectives)) return USE_COLLECTIVE;
  if (HAS(name, norms)) return USE_NORM;
  return HAS(name, follows) ? USE_FOLLOW : USE_COMPUTE;
}

static const char* without_prefix(const char* name) {
  if (strncmp(name, "cuda", 4) == 0) return name + 4;
  return strncmp(name, "cu", 2) == 0 ? name + 2 : name;
}
static int begins(const char* text, const char* with) {
  return strncmp(text, with, strlen(with)) == 0;
}

enum call_use call_use_of(const char* name) {
  const char* const rest = without_prefix(name);
  if (strstr(rest, "Synchronize") != NULL) return CALL_SYNC;
  if (begins(rest, "Launch") || begins(rest, "GraphLaunch")) {
    return strstr(rest, "HostFunc") != NULL ? CALL_NONE : CALL_LAUNCH;
  }
  if (begins(rest, "Memcpy") || begins(rest, "Memset")) return CALL_COPY;
  if (strstr(rest, "Host") != NULL) return CALL_NONE; /* pinned memory is none of the device's */
  /* Not what asks, frees or maps. */
  if (begins(rest, "MemAlloc") || begins(rest, "MemCreate") || begins(rest, "Malloc"))
    return CALL_ALLOCATE;
  return CALL_NONE;
}

float device_share_of(const struct device_size* device, const struct kernel_size* kernel) {
  if (device->multiprocessors == 0 || device->threads == 0) return 1;
  const uint64_t block = kernel->block_threads > 0 ? kernel->block_threads : 1;
  /* How many of its blocks a multiprocessor holds: whatever runs out first limits them. */
  uint64_t most = device->threads / block;
  const uint64_t registers = block * kernel->registers;
  if (device->registers > 0 && registers > 0 && device->registers / registers < most)
    most = device->registers / registers;
  if (device->shared > 0 && kernel->shared > 0 && device->shared / kernel->shared < most)
    most = device->shared / kernel->shared;
  const uint64_t room = (most > 0 ? most : 1) * device->multiprocessors;
  return kernel->blocks < room ? (float)kernel->blocks / (float)room : 1;
}

int call_blocks(const char* name) {
  return strstr(name, "Memcpy") != NULL && strstr(name, "Async") == NULL &&
         strstr(name, "Batch") == NULL;
}

static int is_copy(uint8_t use) { return use >= USE_FROM_HOST; }

/* ---- filling ---- */

void device_window_clear(struct device_window* w, uint64_t begin) {
  w->begin = begin;
  w->end = UINT64_MAX;
  w->lost = 0;
  w->has_holes = 0;
  w->ops = w->calls = 0;
}

void device_window_miss(struct device_window* w, uint64_t records) {
  w->lost += records;
  w->has_holes = w->has_holes || records > 0;
}

static void lose(struct device_window* w, uint64_t start) {
  ++w->lost;
  if (start < w->end) w->end = start;
}

void device_window_add_op(struct device_window* w, const struct device_op* op) {
  if (op->start < w->begin || op->end < op->start) return; /* of the window before */
  if (w->ops == DEVICE_WINDOW_OPS) {
    lose(w, op->start);
    return;
  }
  w->op[w->ops++] = *op;
}

void device_window_add_call(struct device_window* w, const struct device_call* call) {
  if (call->end < w->begin || call->use == CALL_NONE) return;
  if (w->calls == DEVICE_WINDOW_CALLS) {
    lose(w, call->start);
    return;
  }
  w->call[w->calls++] = *call;
}

uint64_t device_window_lacks_kernels(const struct device_window* w) {
  uint64_t last = 0, launches = 0;
  for (uint32_t i = 0; i < w->ops; ++i) {
    if (!is_copy(w->op[i].use)) return 0;
    if (w->op[i].start > last) last = w->op[i].start;
  }
  for (uint32_t i = 0; i < w->calls; ++i)
    if (w->call[i].use == CALL_LAUNCH && w->call[i].end < last) ++launches;
  return launches >= MANY_LAUNCHES ? launches : 0;
}

/* ---- reading ---- */

static int by_device_and_start(const void* a, const void* b) {
  const struct device_op *x = a, *y = b;
  if (x->device != y->device) return x->device < y->device ? -1 : 1;
  return x->start < y->start ? -1 : x->start > y->start;
}
static int by_thread_and_start(const void* a, const void* b) {
  const struct device_call *x = a, *y = b;
  if (x->thread != y->thread) return x->thread < y->thread ? -1 : 1;
  if (x->start != y->start) return x->start < y->start ? -1 : 1;
  return x->end > y->end ? -1 : x->end < y->end;
}
static int by_value(const void* a, const void* b) {
  const uint64_t x = *(const uint64_t*)a, y = *(const uint64_t*)b;
  return x < y ? -1 : x > y;
}

static const struct device_call* call_of(const struct device_window* w, uint32_t correlation) {
  size_t low = 0, high = w->calls;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (w->by_correlation[middle] >> 32 < correlation) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == w->calls || w->by_correlation[low] >> 32 != correlation) return NULL;
  return &w->call[w->by_correlation[low] & UINT32_MAX];
}

/* Whether the thread of `launch` stood in a call that waits when the device ran out of work. */
static int host_waited(const struct device_window* w, const struct device_call* launch,
                       uint64_t idle_since) {
  const struct device_call* c = launch;
  for (uint32_t back = 0; back < MOST_BACK && c > w->call; ++back) {
    --c;
    if (c->thread != launch->thread) return 0;
    /* What contains the launch is its own call, of the runtime. */
    const int waits = c->use == CALL_SYNC || c->use == CALL_COPY;
    if (waits && c->start < idle_since && c->end >= idle_since && c->end <= launch->start) return 1;
    if (c->end < idle_since) return 0;
  }
  return 0;
}

static enum flatout_idle_cause cause_of(const struct device_window* w, const struct device_op* last,
                                        const struct device_op* next, uint64_t idle_since) {
  const struct device_call* const launch = call_of(w, next->correlation);
  if (launch == NULL || launch->end <= idle_since) return FLATOUT_IDLE_DEPENDENCY;
  if (host_waited(w, launch, idle_since)) {
    const int round_trip = last->use == USE_TO_HOST && last->bytes >= ROUND_TRIP_BYTES &&
                           next->use == USE_FROM_HOST && next->bytes >= ROUND_TRIP_BYTES;
    return round_trip ? FLATOUT_IDLE_ROUND_TRIP : FLATOUT_IDLE_SYNC;
  }
  return next->start - idle_since < SHORT_NS ? FLATOUT_IDLE_LAUNCH : FLATOUT_IDLE_HOST;
}

/* Times at which the number of running operations of one kind changes, as one number that sorts:
 * time << 4 | kind << 1 | begins. Sixty bits of nanoseconds are 36 years of uptime. */
enum { EDGE_KERNEL, EDGE_COLLECTIVE, EDGE_HOST_COPY, EDGE_PAGEABLE, EDGE_COPY, EDGES };

static int edge_kind(const struct device_op* op) {
  switch (op->use) {
    case USE_COLLECTIVE:
      return EDGE_COLLECTIVE;
    case USE_FROM_HOST:
    case USE_TO_HOST:
      return op->pageable ? EDGE_PAGEABLE : EDGE_HOST_COPY;
    case USE_OTHER_COPY:
      return EDGE_COPY;
    default:
      return EDGE_KERNEL;
  }
}

static void add_running(const uint32_t running[EDGES], uint64_t length,
                        struct flatout_device* out) {
  const int kernel = running[EDGE_KERNEL] > 0, collective = running[EDGE_COLLECTIVE] > 0;
  const int host = running[EDGE_HOST_COPY] + running[EDGE_PAGEABLE] > 0;
  const int copy = host || running[EDGE_COPY] > 0;
  if (!kernel && !collective && !copy) return;
  out->busy += length;
  if (kernel) out->compute += length;
  if (collective) out->communication += length;
  if (copy) out->copies += length;
  if (collective && !kernel) out->exposed_communication += length;
  if (host && !kernel && !collective) {
    out->exposed_copies += length;
    if (running[EDGE_PAGEABLE] > 0) out->exposed_pageable += length;
  }
}

/* Of operations that are ordered by start; clipped to the window that `out` has. */
static void add_busy(const struct device_op* op, size_t count, uint64_t* edges,
                     struct flatout_device* out) {
  size_t n = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t from = op[i].start < out->begin_ns ? out->begin_ns : op[i].start;
    const uint64_t to = op[i].end > out->end_ns ? out->end_ns : op[i].end;
    if (from >= to) continue;
    const uint64_t kind = (uint64_t)edge_kind(&op[i]) << 1;
    edges[n++] = from << 4 | kind | 1;
    edges[n++] = to << 4 | kind;
  }
  qsort(edges, n, sizeof *edges, by_value);
  uint32_t running[EDGES] = {0};
  uint64_t at = out->begin_ns;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t time = edges[i] >> 4;
    add_running(running, time - at, out);
    at = time;
    if (edges[i] & 1) {
      ++running[edges[i] >> 1 & 7];
    } else {
      --running[edges[i] >> 1 & 7];
    }
  }
}

static void add_sums(const struct device_op* op, size_t count, struct flatout_device* out) {
  for (size_t i = 0; i < count; ++i) {
    if (op[i].start >= out->end_ns) break;
    const uint64_t length = op[i].end - op[i].start;
    if (is_copy(op[i].use)) {
      if (op[i].use == USE_OTHER_COPY) continue;
      ++out->copy_count;
      out->copy_bytes += op[i].bytes;
      continue;
    }
    ++out->kernels;
    if (op[i].use == USE_COLLECTIVE) continue;
    out->kernel_sum += length;
    out->filled += (uint64_t)((double)length * op[i].filled);
    if (op[i].use == USE_NORM) out->norm_sum += length;
    if (op[i].use == USE_FOLLOW) out->follow_sum += length;
  }
}

/* What ran before the window is not recorded: the device is known from its first operation on, or
 * from when a thread had waited for it. */
static uint64_t known_from(const struct device_window* w, const struct device_op* first) {
  uint64_t from = first->start;
  for (uint32_t i = 0; i < w->calls; ++i) {
    const struct device_call* c = &w->call[i];
    if (c->use == CALL_SYNC && c->end >= w->begin && c->end < from) from = c->end;
  }
  return from;
}

/* Whether something was launched before `end` that has left no record: it had not ended. */
static int is_pending(const struct device_window* w, uint64_t end) {
  uint32_t newest = 0;
  for (uint32_t i = 0; i < w->ops; ++i)
    if (w->op[i].correlation > newest) newest = w->op[i].correlation;
  const struct device_call* const last = call_of(w, newest);
  if (last == NULL) return 1;
  for (uint32_t i = 0; i < w->calls; ++i) {
    const struct device_call* c = &w->call[i];
    if (c->use == CALL_LAUNCH && c->start > last->end && c->start < end) return 1;
  }
  return 0;
}

static uint64_t last_end_of(const struct device_op* op, size_t count) {
  uint64_t last = 0;
  for (size_t i = 0; i < count; ++i)
    if (op[i].end > last) last = op[i].end;
  return last;
}

static void add_idle(const struct device_window* w, const struct device_op* op, size_t count,
                     struct flatout_device* out, device_idle_sink sink, void* context) {
  uint64_t since = out->begin_ns;
  const struct device_op* last = &op[0];
  for (size_t i = 0; i < count; ++i) {
    const uint64_t until = op[i].start < out->end_ns ? op[i].start : out->end_ns;
    if (until > since) {
      const enum flatout_idle_cause cause = cause_of(w, last, &op[i], since);
      out->idle[cause] += until - since;
      if (until - since >= DEVICE_WINDOW_LONG_IDLE_NS)
        sink(context, out->device, cause, since, until);
    }
    if (op[i].end > since) {
      since = op[i].end;
      last = &op[i];
    }
    if (since >= out->end_ns) return;
  }
  /* Nothing was launched until the window's end. */
  out->idle[FLATOUT_IDLE_HOST] += out->end_ns - since;
  if (out->end_ns - since >= DEVICE_WINDOW_LONG_IDLE_NS)
    sink(context, out->device, FLATOUT_IDLE_HOST, since, out->end_ns);
}

static void sort_records(struct device_window* w) {
  qsort(w->op, w->ops, sizeof w->op[0], by_device_and_start);
  qsort(w->call, w->calls, sizeof w->call[0], by_thread_and_start);
  for (uint32_t i = 0; i < w->calls; ++i)
    w->by_correlation[i] = (uint64_t)w->call[i].correlation << 32 | i;
  qsort(w->by_correlation, w->calls, sizeof w->by_correlation[0], by_value);
}

size_t device_window_read(struct device_window* w, uint64_t end, struct flatout_device* out,
                          device_idle_sink sink, void* context) {
  if (w->has_holes) return 0;
  if (w->end < end) end = w->end;
  sort_records(w);
  const int pending = is_pending(w, end);
  size_t devices = 0;
  for (uint32_t from = 0, to = 0; from < w->ops && devices < DEVICE_WINDOW_DEVICES; from = to) {
    while (to < w->ops && w->op[to].device == w->op[from].device) ++to;
    const struct device_op* const op = &w->op[from];
    const size_t count = to - from;
    struct flatout_device* const d = &out[devices];
    memset(d, 0, sizeof *d);
    d->device = op->device;
    d->begin_ns = known_from(w, op);
    const uint64_t last_end = last_end_of(op, count);
    d->end_ns = pending && last_end < end ? last_end : end;
    if (d->end_ns <= d->begin_ns) continue;
    ++devices;
    add_busy(op, count, w->edges, d);
    add_sums(op, count, d);
    add_idle(w, op, count, d, sink, context);
  }
  if (devices == 0) return 0;
  out[0].lost = w->lost;
  for (uint32_t i = 0; i < w->calls; ++i) {
    const struct device_call* c = &w->call[i];
    /* The driver's call within the runtime's own is the same launch; none tells its device. */
    if (c->use != CALL_LAUNCH || c->start >= end) continue;
    if (i > 0 && c[-1].use == CALL_LAUNCH && c[-1].thread == c->thread && c[-1].end >= c->end)
      continue;
    ++out[0].launches;
    out[0].launch_sum += c->end - c->start;
  }
  return devices;
}
