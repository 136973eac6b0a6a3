/* Activity records of CUPTI, read without its headers: what they have in common from CUPTI 12.0
 * to 13.1. Records of newer versions are longer at the end; the prefixes here stay
 * (cuda_trace_test.cpp holds them to NVIDIA's own headers where these are installed). Knows
 * nothing of the library: any bytes may be read. */
#ifndef FLATOUT_AGENT_CUPTI_RECORDS_H_
#define FLATOUT_AGENT_CUPTI_RECORDS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum cupti_kind { /* CUpti_ActivityKind */
                  CUPTI_KIND_MEMCPY = 1,
                  CUPTI_KIND_MEMSET = 2,
                  CUPTI_KIND_DRIVER = 4,
                  CUPTI_KIND_RUNTIME = 5,
                  CUPTI_KIND_CONCURRENT_KERNEL = 10,
                  CUPTI_KIND_MEMCPY2 = 22, /* between devices */
                  CUPTI_KIND_SYNCHRONIZATION = 38,
                  CUPTI_KIND_GRAPH_TRACE = 51,
};

/* CUpti_ActivityKernel9 and later */
struct cupti_kernel {
  uint32_t kind;
  uint8_t cache_config, shared_memory_config;
  uint16_t registers;
  uint32_t partitioned_requested, partitioned_executed;
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3], static_shared, dynamic_shared;
  uint32_t local_per_thread, local_total, correlation;
  int64_t grid_id;
  const char* name;
};

/* CUpti_ActivityMemcpy5 and later; of MEMCPY2 (CUpti_ActivityMemcpyPtoP4) all before `correlation`
 * is the same. */
struct cupti_memcpy {
  uint32_t kind;
  uint8_t copy_kind, source_kind, target_kind, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
};
struct cupti_memcpy2 {
  uint32_t kind;
  uint8_t copy_kind, source_kind, target_kind, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream;
  uint32_t source_device, source_context, target_device, target_context, correlation;
};

/* CUpti_ActivityMemset4 */
struct cupti_memset {
  uint32_t kind, value;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
  uint16_t flags, memory_kind;
};

/* CUpti_ActivityAPI: of the runtime and the driver */
struct cupti_call {
  uint32_t kind, function;
  uint64_t start, end;
  uint32_t process, thread, correlation, result;
};

/* CUpti_ActivitySynchronization and later */
struct cupti_synchronization {
  uint32_t kind, type;
  uint64_t start, end;
  uint32_t correlation, context, stream;
};

/* CUpti_ActivityGraphTrace and later */
struct cupti_graph {
  uint32_t kind, correlation;
  uint64_t start, end;
  uint32_t device, graph, context, stream;
};

/* What any of them says. */
struct cupti_event {
  uint32_t kind;
  uint64_t start, end; /* ns */
  uint32_t device, stream, correlation;
  uint32_t thread;                             /* of a call */
  uint32_t function;                           /* of a call: its callback id */
  uint64_t bytes;                              /* of a copy or fill */
  uint8_t copy_kind, source_kind, target_kind; /* of a copy; a fill has the last alone */
  uint32_t graph;                              /* of a graph */
  uint64_t blocks;                             /* of a kernel, with what each of them takes */
  uint32_t block_threads, registers, shared;   /* registers: of a thread; shared: bytes */
  const char* name;                            /* of a kernel, in the job's memory; may be NULL */
};

/* 1 if `record`, of which `size` bytes may be read, is of a kind that is known and long enough. */
int cupti_read_record(const void* record, size_t size, struct cupti_event* out);

/* "HtoD" for CUpti_ActivityMemcpyKind, "Pinned" for CUpti_ActivityMemoryKind: as PyTorch's traces
 * say it. */
const char* cupti_copy_name(uint8_t copy_kind);
const char* cupti_memory_name(uint8_t memory_kind);

#ifdef __cplusplus
}
#endif
#endif /* FLATOUT_AGENT_CUPTI_RECORDS_H_ */
