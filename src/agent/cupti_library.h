/* CUPTI, found by dlsym: the copy that the process has already (the framework's wheel brings it),
 * else the system's. There is one subscriber in a process; where another tool is it, it is named.
 * Constants and layouts as in NVIDIA's public cupti_callbacks.h and cupti_result.h. */
#ifndef FLATOUT_AGENT_CUPTI_LIBRARY_H_
#define FLATOUT_AGENT_CUPTI_LIBRARY_H_

#include <stddef.h>
#include <stdint.h>

#define CUPTI_OK 0
#define CUPTI_DRIVER_DOMAIN 1 /* CUpti_CallbackDomain */
#define CUPTI_RUNTIME_DOMAIN 2
#define CUPTI_RESOURCE_DOMAIN 3
#define CUPTI_CONTEXT_CREATED 1   /* CUpti_CallbackIdResource */
#define CUPTI_SYSTEM_THREAD_IDS 1 /* CUpti_ActivityThreadIdType */

typedef void (*cupti_callback)(void* data, uint32_t domain, uint32_t id, const void* info);

struct cupti_subscriber_params { /* CUpti_SubscriberParams, CUPTI 13 */
  size_t size;
  const char* name;
  char* other;
  size_t other_size;
};

struct cupti_callback_data { /* CUpti_CallbackData */
  uint32_t site;             /* 0: the call begins, 1: it ends */
  const char* function;
  const void* params;
  void* result; /* of a call that ends: its int */
  const char* symbol;
  void* context;
  uint32_t context_id;
  uint64_t* shared; /* between begin and end of one call */
  uint32_t correlation;
};

struct cupti_api {
  int (*get_version)(uint32_t*);
  int (*subscribe)(void**, cupti_callback, void*);
  int (*subscribe_v2)(void**, cupti_callback, void*, struct cupti_subscriber_params*);
  int (*unsubscribe)(void*);
  int (*enable_callback)(uint32_t, void*, uint32_t, uint32_t);
  int (*register_callbacks)(void (*)(uint8_t**, size_t*, size_t*),
                            void (*)(void*, uint32_t, uint8_t*, size_t, size_t));
  int (*register_clock)(uint64_t (*)(void));
  int (*enable)(uint32_t);
  int (*disable)(uint32_t);
  int (*flush_all)(uint32_t);
  int (*flush_period)(uint32_t);
  int (*next_record)(uint8_t*, size_t, void**);
  int (*dropped)(void*, uint32_t, size_t*);
  int (*callback_name)(uint32_t, uint32_t, const char**);
  int (*thread_ids)(uint32_t);
};

/* Loads the library and subscribes. NULL: done; else why not, as a sentence's end. Call once. */
const char* cupti_open(struct cupti_api* api, void** subscriber, cupti_callback callback);

/* "cudaLaunchKernel" for "cudaLaunchKernel_v7000". */
void cupti_plain_name(const char* name, char* to, size_t size);

#endif /* FLATOUT_AGENT_CUPTI_LIBRARY_H_ */
