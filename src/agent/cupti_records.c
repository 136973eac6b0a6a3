#include "agent/cupti_records.h"

#include <string.h>

#define MOST_OF_BLOCK 1024 /* threads, of any device */

/* Copied before it is read: a buffer's records are aligned to 8 bytes, but any bytes may come. */
#define READ(type)                              \
  struct type r;                                \
  if (size < sizeof r) return 0;                \
  memcpy(&r, record, sizeof r);                 \
  out->start = r.start;                         \
  out->end = r.end > r.start ? r.end : r.start; \
  out->correlation = r.correlation;

#define READ_COPY(type)             \
  READ(type)                        \
  out->device = r.device;           \
  out->stream = r.stream;           \
  out->bytes = r.bytes;             \
  out->copy_kind = r.copy_kind;     \
  out->source_kind = r.source_kind; \
  out->target_kind = r.target_kind;

static uint64_t saturated(uint64_t a, uint64_t b) {
  return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

int cupti_read_record(const void* record, size_t size, struct cupti_event* out) {
  memset(out, 0, sizeof *out);
  if (size < sizeof out->kind) return 0;
  memcpy(&out->kind, record, sizeof out->kind);
  switch (out->kind) {
    case CUPTI_KIND_CONCURRENT_KERNEL: {
      READ(cupti_kernel)
      out->device = r.device;
      out->stream = r.stream;
      out->name = r.name;
      out->blocks = out->block_threads = 1;
      for (int i = 0; i < 3; ++i) {
        if (r.grid[i] > 0) out->blocks = saturated(out->blocks, (uint64_t)r.grid[i]);
        if (r.block[i] > 0 && r.block[i] <= MOST_OF_BLOCK)
          out->block_threads *= (uint32_t)r.block[i];
      }
      if (out->block_threads > MOST_OF_BLOCK) out->block_threads = MOST_OF_BLOCK;
      out->registers = r.registers;
      if (r.static_shared > 0) out->shared = (uint32_t)r.static_shared;
      if (r.dynamic_shared > 0) out->shared += (uint32_t)r.dynamic_shared;
      return 1;
    }
    case CUPTI_KIND_MEMCPY: {
      READ_COPY(cupti_memcpy)
      return 1;
    }
    case CUPTI_KIND_MEMCPY2: {
      READ_COPY(cupti_memcpy2)
      return 1;
    }
    case CUPTI_KIND_MEMSET: {
      READ(cupti_memset)
      out->device = r.device;
      out->stream = r.stream;
      out->bytes = r.bytes;
      out->target_kind = (uint8_t)r.memory_kind;
      return 1;
    }
    case CUPTI_KIND_DRIVER:
    case CUPTI_KIND_RUNTIME: {
      READ(cupti_call)
      out->thread = r.thread;
      out->function = r.function;
      return 1;
    }
    case CUPTI_KIND_SYNCHRONIZATION: {
      READ(cupti_synchronization)
      out->stream = r.stream;
      return 1;
    }
    case CUPTI_KIND_GRAPH_TRACE: {
      READ(cupti_graph)
      out->device = r.device;
      out->stream = r.stream;
      out->graph = r.graph;
      return 1;
    }
    default:
      return 0;
  }
}

const char* cupti_copy_name(uint8_t copy_kind) {
  switch (copy_kind) {
    case 1:
      return "HtoD";
    case 2:
      return "DtoH";
    case 8:
      return "DtoD";
    case 9:
      return "HtoH";
    case 10:
      return "PtoP";
    default:
      return "other";
  }
}

const char* cupti_memory_name(uint8_t memory_kind) {
  static const char* const names[] = {"Unknown", "Pageable", "Pinned",
                                      "Device",  "Array",    "Managed"};
  return memory_kind < sizeof names / sizeof names[0] ? names[memory_kind] : "Unknown";
}
