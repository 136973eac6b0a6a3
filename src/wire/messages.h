/* Messages between the agents inside a job and the recorder, and the packets of events.bin and
 * series.bin. Plain C layout, little-endian, 8-byte aligned, versioned: see docs/architecture.md,
 * "Process model". Changing a struct here means raising FLATOUT_WIRE_VERSION. */
#ifndef FLATOUT_WIRE_MESSAGES_H_
#define FLATOUT_WIRE_MESSAGES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLATOUT_WIRE_VERSION 1u
#define FLATOUT_WIRE_MAGIC 0x4C465744u /* "DWFL" */

/* ---- control messages: datagrams on the abstract seqpacket socket FLATOUT_SOCKET ---- */

enum flatout_agent_kind {
  FLATOUT_AGENT_NATIVE = 1, /* a C or C++ program through flatout/marker.h */
  FLATOUT_AGENT_PYTHON = 2, /* the Python hooks */
  FLATOUT_AGENT_MALLOC = 3,
};

struct flatout_hello { /* agent -> recorder, first */
  uint32_t magic, version;
  uint32_t kind; /* flatout_agent_kind */
  int32_t pid, tid;
  int32_t rank, local_rank, world_size; /* -1 where unknown */
  uint64_t start_time_ticks;            /* field 22 of /proc/PID/stat */
};

struct flatout_config { /* recorder -> agent, with the sealed ring memfd as SCM_RIGHTS */
  uint32_t magic, version;
  uint32_t accepted;   /* 0: go quiet */
  uint32_t categories; /* bit mask of flatout_category */
  uint64_t ring_bytes; /* size of the memfd: flatout_ring header and data */
};

enum flatout_category {
  FLATOUT_CATEGORY_STEPS = 1u << 0,
  FLATOUT_CATEGORY_LOADER = 1u << 1,
  FLATOUT_CATEGORY_GC = 1u << 2,
  FLATOUT_CATEGORY_ALL = 0xFFFFFFFFu,
};

/* ---- packets ---- */

/* size counts header and payload, a multiple of 8. In a ring a packet is there once size != 0. */
struct flatout_packet {
  uint32_t size;
  uint16_t type; /* flatout_packet_type */
  uint16_t flags;
  uint32_t pid;
  uint32_t tid;
  uint64_t time_ns; /* CLOCK_MONOTONIC when it was written */
};

enum flatout_packet_type {
  FLATOUT_PACKET_PAD = 0,
  /* from agents; ids of strings are per pid */
  FLATOUT_PACKET_STRING = 1,  /* flatout_string, bytes */
  FLATOUT_PACKET_SLICE = 2,   /* flatout_slice */
  FLATOUT_PACKET_COUNTER = 3, /* flatout_counter */
  FLATOUT_PACKET_INFO = 4,    /* "key\0value": versions, loader settings, traceback, ... */
  FLATOUT_PACKET_COST = 5,    /* flatout_cost */
  FLATOUT_PACKET_DROPPED = 6, /* flatout_counter: packets lost since the last one */
  FLATOUT_PACKET_DEVICE = 7,  /* flatout_device; who does not know it skips it */
  /* from the recorder; ids are per file */
  FLATOUT_PACKET_ENTITY = 32,         /* flatout_entity, name */
  FLATOUT_PACKET_READINGS = 33,       /* flatout_readings, then count x flatout_reading */
  FLATOUT_PACKET_PROCESS = 34,        /* flatout_process, "name\0exe\0cmdline" */
  FLATOUT_PACKET_PROCESS_END = 35,    /* flatout_process_end */
  FLATOUT_PACKET_THREAD = 36,         /* flatout_thread, name */
  FLATOUT_PACKET_FRAME = 37,          /* flatout_frame, "function\0file" */
  FLATOUT_PACKET_STACK = 38,          /* flatout_stack */
  FLATOUT_PACKET_STACK_READINGS = 39, /* flatout_readings, then count x flatout_stack_reading */
  FLATOUT_PACKET_MISSING = 40,        /* "signal\0reason\0hint" */
  FLATOUT_PACKET_RUN_INFO = 41,       /* "key\0value" of the run (host, command, versions) */
  FLATOUT_PACKET_GAP = 42,            /* flatout_gap: events of this time are not recorded */
};

struct flatout_string {
  uint32_t id; /* from 1; 0 is the empty string */
  uint32_t size;
};

/* What an interval in the job was. Names for people: model/slice.h. */
enum flatout_slice_kind {
  FLATOUT_SLICE_STEP = 1,       /* a whole step, marked by the job itself (marker.h) */
  FLATOUT_SLICE_INPUT_WAIT = 2, /* the training thread waits for the next batch. value 1: in vain,
                                 * it got an exception */
  FLATOUT_SLICE_FORWARD = 3,
  FLATOUT_SLICE_BACKWARD = 4,
  FLATOUT_SLICE_OPTIMIZER = 5, /* value: id of the optimizer object; value2: steps it has done */
  FLATOUT_SLICE_H2D = 6,       /* value: bytes; value2 bit 0: pageable, bit 1: blocking */
  FLATOUT_SLICE_SYNC = 7,      /* the host waits for the device */
  FLATOUT_SLICE_COMMUNICATION = 8,
  FLATOUT_SLICE_CHECKPOINT = 9,    /* value: bytes where known */
  FLATOUT_SLICE_GC = 10,           /* value: generation; value2: objects collected */
  FLATOUT_SLICE_VALIDATION = 11,   /* value: 1 where the model was in evaluation mode */
  FLATOUT_SLICE_LOADER_START = 12, /* a loader's iterator is made: workers start. value: workers */
  FLATOUT_SLICE_FETCH = 13,        /* a worker (or the loop itself) makes one batch. value: samples;
                                      value2: batch index (-1 unknown) */
  FLATOUT_SLICE_SAMPLE = 14,   /* slowest sample of a fetch. value: its index; value2: sum of all
                                  samples' ns */
  FLATOUT_SLICE_COLLATE = 15,  /* value: bytes of the batch where known */
  FLATOUT_SLICE_HANDOVER = 16, /* worker puts a batch into the queue (pickling, shared memory) */
  FLATOUT_SLICE_WORKER = 17,   /* life of a worker process: begin = end = start. value: worker id */
  FLATOUT_SLICE_LOGGING = 18,  /* marked by the job */
  FLATOUT_SLICE_ZERO_GRAD = 19,
  FLATOUT_SLICE_PHASE = 20, /* a phase of the user's own name */
  FLATOUT_SLICE_EPOCH = 21, /* a loader's iterator is exhausted or started. value: epoch count */
  FLATOUT_SLICE_FEED = 22,  /* Python data enters TensorFlow (feed_dict, py_function, numpy).
                               value: bytes where known */
  FLATOUT_SLICE_DEVICE_IDLE = 23, /* a device had nothing to do, for long. value: its index;
                                     value2: flatout_idle_cause */
  FLATOUT_SLICE_PROFILER = 24,    /* a profiler that the user asked us for was on */
};

struct flatout_slice {
  uint64_t begin_ns, end_ns;
  uint32_t kind; /* flatout_slice_kind */
  uint32_t name; /* string id, 0 for none */
  int64_t value, value2;
};

struct flatout_counter {
  uint32_t name;
  uint32_t reserved;
  double value;
};

struct flatout_cost { /* what the agent itself has cost since the last such packet */
  uint64_t hooks, sum_ns, max_ns, steps;
  /* Older recordings end here. Hooks that the kernel took the processor from; the time that
   * passed until they went on and ended is in neither sum nor maximum. */
  uint64_t interrupted, interrupted_ns;
};

/* What a device that had nothing to do waited for. */
enum flatout_idle_cause {
  FLATOUT_IDLE_HOST = 0,       /* the host had not launched anything, for 1 ms or longer */
  FLATOUT_IDLE_LAUNCH = 1,     /* the same, for less than 1 ms */
  FLATOUT_IDLE_SYNC = 2,       /* the host waited for the device, and only then launched */
  FLATOUT_IDLE_ROUND_TRIP = 3, /* data went to the host and came back from it */
  FLATOUT_IDLE_DEPENDENCY = 4, /* launched in time; an event, a copy, the launch's own latency */
  FLATOUT_IDLE_CAUSES = 5,
};

/* What a device did in a window that was recorded. Times in ns. */
struct flatout_device {
  uint64_t begin_ns, end_ns;
  uint32_t device;  /* as CUDA counts in this process */
  uint32_t kernels; /* graphs count as one */
  uint64_t busy;    /* anything ran; with what follows up to `idle` no more than end - begin */
  uint64_t compute, communication, copies; /* a kernel, a collective, a copy or fill ran */
  uint64_t exposed_communication;          /* a collective and no other kernel */
  uint64_t exposed_copies;                 /* a copy between host and device and no kernel */
  uint64_t exposed_pageable;               /* of that, memory of the host that is not pinned */
  uint64_t idle[FLATOUT_IDLE_CAUSES];
  uint64_t kernel_sum; /* of kernels' lengths, collectives left out */
  uint64_t filled;     /* of that, times the share of the device that a kernel's threads fill */
  uint64_t norm_sum, follow_sum; /* batch norm; adding and activations in kernels of their own */
  uint64_t launch_sum;           /* of launching calls' lengths */
  uint32_t launches, copy_count;
  uint64_t copy_bytes; /* between host and device */
  uint64_t lost;       /* records that were not kept: the window ends where they begin */
};

struct flatout_entity {
  uint32_t id;
  uint16_t kind; /* model/signal.h, EntityKind */
  uint16_t reserved;
  int64_t key;     /* pid, tid, index, device number */
  uint32_t parent; /* entity id; 0xFFFFFFFF for none */
  uint32_t name_size;
};

struct flatout_readings {
  uint32_t count, reserved;
};

struct flatout_reading {
  uint32_t entity;
  uint16_t signal; /* model/signal.h, SignalId */
  uint16_t reserved;
  double value;
};

struct flatout_process {
  int32_t pid, ppid;
  uint64_t start_time_ticks; /* with pid, what identifies a process */
  uint64_t start_ns;         /* CLOCK_MONOTONIC */
  uint32_t flags;            /* FLATOUT_PROCESS_* */
  uint32_t reserved;
};
#define FLATOUT_PROCESS_IN_JOB 1u
#define FLATOUT_PROCESS_MAIN 2u /* the command itself */
#define FLATOUT_PROCESS_PYTHON 4u

struct flatout_process_end {
  int32_t pid;
  int32_t wait_status; /* as waitpid; -1 where not known */
  uint64_t end_ns;
};

struct flatout_thread {
  uint32_t id; /* per file */
  int32_t pid, tid;
  uint32_t name_size;
};

struct flatout_frame {
  uint32_t id, line;
  uint32_t kind; /* as model/stack.h, FrameKind */
  uint32_t function_size, file_size, reserved;
};

struct flatout_stack { /* a node of the tree of stacks: this frame called by parent's */
  uint32_t id, parent; /* parent 0: the outermost frame; ids from 1 */
  uint32_t frame, reserved;
};

struct flatout_stack_reading {
  uint32_t thread, stack; /* stack 0: none could be read */
  uint32_t weight_us;     /* the time that this reading stands for */
  uint8_t state;          /* model/stack.h, ThreadState */
  uint8_t flags;          /* model/stack.h, kHoldsGil ... */
  int16_t syscall;        /* -1 none or unknown */
};

/* The recording was thinned, or job and recorder were stopped (Ctrl-Z): not "nothing happened". */
struct flatout_gap {
  uint64_t begin_ns, end_ns;
};

/* ---- blocks of events.bin and series.bin ---- */

#define FLATOUT_BLOCK_MAGIC 0x4B424C46u /* "FLBK" */
struct flatout_block {                  /* then `size` bytes of packets */
  uint32_t magic;
  uint32_t version; /* FLATOUT_WIRE_VERSION */
  uint32_t size;
  uint32_t crc32; /* of the packets */
};

#ifdef __cplusplus
}
#endif
#endif /* FLATOUT_WIRE_MESSAGES_H_ */
