/* A stand-in for libcuda.so.1, for machines without a GPU: as much of the driver as creates a
 * context. It answers from a script, the file that $CUDA_STAND_IN names. Keys: devices, init (a
 * return code), hang (seconds in which cuInit does not return); of a device: uuid (32 hexadecimal
 * digits), context (a return code), free, total (bytes), crash (1: creating its context ends the
 * process). */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "probe/testing/stand_in_script.h"

enum { kOk = 0, kOutOfMemory = 2, kNoDevice = 100, kUnknown = 999 };

#define API __attribute__((visibility("default")))

static long long number(int index, const char* key, long long otherwise) {
  char text[64];
  return script_value("CUDA_STAND_IN", index, key, text, sizeof text) ? strtoll(text, NULL, 10)
                                                                      : otherwise;
}

static int current = -1; /* the device whose context is the current one */

API int cuInit(unsigned flags) {
  (void)flags;
  if (number(-1, "hang", 0) > 0) sleep((unsigned)number(-1, "hang", 0));
  return (int)number(-1, "init", kOk);
}
API int cuDeviceGetCount(int* count) {
  *count = (int)number(-1, "devices", 0);
  return kOk;
}
API int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kOk;
}
API int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  char text[64];
  if (!script_value("CUDA_STAND_IN", device, "uuid", text, sizeof text)) return kUnknown;
  for (int i = 0; i < 16; ++i) {
    const char digits[3] = {text[2 * i], text[2 * i + 1], 0};
    uuid[i] = (unsigned char)strtoul(digits, NULL, 16);
  }
  return kOk;
}
API int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (number(device, "crash", 0) == 1) raise(SIGSEGV);
  *context = (void*)(size_t)(device + 1);
  return (int)number(device, "context", kOk);
}
API int cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  return kOk;
}
API int cuCtxSetCurrent(void* context) {
  current = (int)(size_t)context - 1;
  return kOk;
}
API int cuMemGetInfo_v2(size_t* left, size_t* total) {
  *left = (size_t)number(current, "free", 0);
  *total = (size_t)number(current, "total", 0);
  return kOk;
}
API int cuGetErrorName(int code, const char** name) {
  *name = code == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == kNoDevice  ? "CUDA_ERROR_NO_DEVICE"
                               : "CUDA_ERROR_UNKNOWN";
  return kOk;
}
