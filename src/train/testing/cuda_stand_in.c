/* A stand-in for libcuda.so.1 whose device memory holds bytes: what the trainer's messages over
 * NCCL need of it. An address of a device is that of host memory with a bit set that no host's has,
 * so neither can be taken for the other. $CUDA_STAND_IN_CARDS: how many there are (8). A stream is
 * at work for as long as nccl_stand_in.c says so. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/testing/cuda_stand_in.h"

#define API __attribute__((visibility("default")))
enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NO_CONTEXT = 201 };

static __thread struct card* current;
/* What failed ranks leave behind is no leak of a test's. */
enum { MOST_BLOCKS = 4096 };
static void* all[MOST_BLOCKS];
static atomic_int all_count;
static struct card cards[64];

static int card_count(void) {
  const char* const text = getenv("CUDA_STAND_IN_CARDS");
  return text != NULL ? atoi(text) : 8;
}

API int cuInit(unsigned flags) { return flags != 0 ? INVALID : card_count() == 0 ? NO_DEVICE : OK; }
API int cuDeviceGetCount(int* count) {
  *count = card_count();
  return OK;
}
API int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < card_count() ? OK : INVALID;
}
API int cuDeviceGetUuid(unsigned char uuid[16], int device) {
  memset(uuid, 0, 16);
  uuid[0] = (unsigned char)(device + 1);
  return OK;
}
API int cuDevicePrimaryCtxRetain(struct card** context, int device) {
  *context = &cards[device];
  return OK;
}
API int cuCtxSetCurrent(struct card* context) {
  current = context;
  return OK;
}
API int cuCtxGetCurrent(struct card** context) {
  *context = current;
  return OK;
}
API int cuMemAlloc_v2(uint64_t* memory, size_t bytes) {
  if (current == NULL) return NO_CONTEXT;
  void* const at = malloc(bytes);
  const int index = all_count++;
  if (at == NULL || index >= MOST_BLOCKS) return OUT_OF_MEMORY;
  all[index] = at;
  memset(at, 0xA5, bytes);
  *memory = (uint64_t)(uintptr_t)at | ON_CARD;
  return OK;
}
API int cuMemFree_v2(uint64_t memory) {
  if ((memory & ON_CARD) == 0) return INVALID;
  free((void*)(uintptr_t)(memory & ~ON_CARD));
  return OK;
}
API int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  if (current == NULL) return NO_CONTEXT;
  if ((to & ON_CARD) == 0) return INVALID;
  memcpy((void*)(uintptr_t)(to & ~ON_CARD), from, bytes);
  return OK;
}
API int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  if (current == NULL) return NO_CONTEXT;
  if ((from & ON_CARD) == 0) return INVALID;
  memcpy(to, (const void*)(uintptr_t)(from & ~ON_CARD), bytes);
  return OK;
}
API int cuStreamCreate(struct stream** stream, unsigned flags) {
  (void)flags;
  if (current == NULL) return NO_CONTEXT;
  *stream = calloc(1, sizeof **stream);
  const int index = all_count++;
  if (*stream == NULL || index >= MOST_BLOCKS) return OUT_OF_MEMORY;
  all[index] = *stream;
  return OK;
}
API int cuStreamSynchronize(struct stream* stream) {
  if (current == NULL) return NO_CONTEXT;
  while (__atomic_load_n(&stream->at_work, __ATOMIC_ACQUIRE) != 0) usleep(50);
  return OK;
}
API int cuStreamDestroy_v2(struct stream* stream) {
  free(stream);
  return OK;
}
API int cuGetErrorName(int code, const char** name) {
  *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == NO_CONTEXT  ? "CUDA_ERROR_INVALID_CONTEXT"
                                : "CUDA_ERROR_INVALID_VALUE";
  return OK;
}
