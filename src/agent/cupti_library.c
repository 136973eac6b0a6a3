#include "agent/cupti_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define TAKEN 39    /* CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED */
#define CUDA_12 18u /* CUPTI_API_VERSION of CUDA 12.0 */

static int find(void* library, const char* name, void* slot) {
  void* const found = dlsym(library, name);
  memcpy(slot, &found, sizeof found); /* a function: POSIX says so, ISO C needs this detour */
  return found != NULL;
}

static int load(struct cupti_api* api) {
  static const char* const files[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
  void* library = NULL;
  for (int loaded = 1; loaded >= 0 && library == NULL; --loaded) {
    for (size_t i = 0; i < sizeof files / sizeof files[0] && library == NULL; ++i)
      library = dlopen(files[i], RTLD_NOW | (loaded ? RTLD_NOLOAD : 0));
  }
  if (library == NULL) return 0;
  find(library, "cuptiSubscribe_v2", &api->subscribe_v2); /* from CUPTI 13 on */
  find(library, "cuptiActivityFlushPeriod", &api->flush_period);
  find(library, "cuptiSetThreadIdType", &api->thread_ids);
  find(library, "cuptiEnableCallback", &api->enable_callback);
  return find(library, "cuptiGetVersion", &api->get_version) &&
         find(library, "cuptiSubscribe", &api->subscribe) &&
         find(library, "cuptiUnsubscribe", &api->unsubscribe) &&
         find(library, "cuptiActivityRegisterCallbacks", &api->register_callbacks) &&
         find(library, "cuptiActivityRegisterTimestampCallback", &api->register_clock) &&
         find(library, "cuptiActivityEnable", &api->enable) &&
         find(library, "cuptiActivityDisable", &api->disable) &&
         find(library, "cuptiActivityFlushAll", &api->flush_all) &&
         find(library, "cuptiActivityGetNextRecord", &api->next_record) &&
         find(library, "cuptiActivityGetNumDroppedRecords", &api->dropped) &&
         find(library, "cuptiGetCallbackName", &api->callback_name);
}

const char* cupti_open(struct cupti_api* api, void** subscriber, cupti_callback callback) {
  static char why[256];
  char other[128] = "";
  uint32_t version = 0;
  int result;
  if (!load(api)) return "no libcupti.so of CUDA 12 or 13 was found";
  if (api->get_version(&version) != CUPTI_OK || version < CUDA_12)
    return "this CUPTI is older than CUDA 12's: its records are others";
  if (api->subscribe_v2 != NULL) {
    struct cupti_subscriber_params params = {sizeof params, "flatout", other, sizeof other};
    result = api->subscribe_v2(subscriber, callback, NULL, &params);
  } else {
    result = api->subscribe(subscriber, callback, NULL);
  }
  if (result == CUPTI_OK) return NULL;
  *subscriber = NULL;
  if (result == TAKEN) {
    snprintf(why, sizeof why, "%s has CUPTI, which serves one tool at a time (error 39)",
             other[0] != 0 ? other : "another tool (the framework's profiler, Nsight, a debugger)");
  } else {
    snprintf(why, sizeof why, "CUPTI refuses a subscriber (error %d)", result);
  }
  return why;
}

void cupti_plain_name(const char* name, char* to, size_t size) {
  snprintf(to, size, "%s", name);
  for (char* version = strstr(to, "_v"); version != NULL; version = strstr(version + 1, "_v")) {
    if (version[2] >= '0' && version[2] <= '9') {
      *version = 0;
      return;
    }
  }
}
